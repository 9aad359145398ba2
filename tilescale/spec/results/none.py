"""No move: a rank multiplies what it holds."""

from __future__ import annotations

from tilescale.spec.declaration import Spec
from tilescale.spec.result import NO_MOVE, RESULTS, Kind, Result, local_term


def _result(spec: Spec, rank: int) -> Result:
    return Result((local_term(spec, rank),))


RESULTS.register(Kind(NO_MOVE, _result))
