"""Exchange: every rank receives parts of what ranks hold, as the file of the operation says."""

from __future__ import annotations

from tilescale.errors import SpecError
from tilescale.spec.declaration import Spec
from tilescale.spec.result import RESULTS, Kind, Result


def _result(spec: Spec, rank: int) -> Result:
    holds = spec.operation.holds
    if holds is None:
        raise SpecError("an exchange says what a rank receives", spec.op, "give its Operation a function `holds`")
    return holds(spec, rank)


RESULTS.register(Kind("exchange", _result))
