"""What models learn from: measured schedules, and their features as a matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilescale.costmodel.analytic import Prediction
from tilescale.costmodel.features import features
from tilescale.costmodel.memo import prior
from tilescale.errors import TilescaleError
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec
from tilescale.spec.topology import SOURCES

Floats = NDArray[np.float64]

# Sources that a model may learn from: what is replayed was measured once already, what is predicted never was.
TRAINABLE = tuple(sorted(SOURCES.values()))
# Features that mostly say which workload or machine it is. A model that sees them learns the workloads by heart; what
# matters of them for a schedule is in the shares of the analytic prediction.
_NAMING = ("log_", "predicted_log_", "topology_")


class ModelError(TilescaleError):
    """Rows that a model cannot be fitted on, or a model that cannot be used."""


@dataclass(frozen=True)
class Row:
    """One measured schedule. `us`: its time, None where it failed. `prior`: the analytic prediction, where known.

    Raises ModelError for a source that nothing is learned from and for a time that is none.
    """

    spec: Spec
    schedule: Schedule
    us: float | None
    source: str
    prior: Prediction | None = None

    def __post_init__(self) -> None:
        if self.source not in TRAINABLE:
            raise ModelError("a model learns from one of " + ", ".join(TRAINABLE), self.source, "measure it")
        if self.us is not None and not (math.isfinite(self.us) and self.us > 0):
            raise ModelError("a time is positive and finite", self.us, "give None for a failure")

    @property
    def predicted(self) -> Prediction:
        """The analytic prediction."""
        return self.prior or prior(self.spec, self.schedule)


def matrix(
    specs: Sequence[Spec], schedules: Sequence[Schedule], priors: Sequence[Prediction], columns: Sequence[str] = ()
) -> tuple[Floats, tuple[str, ...]]:
    """Features (n, f), a row a schedule, and the names of the columns: `columns`, or all that are learned from.

    Raises ModelError where a column is no longer a feature.
    """
    found = [features(*one) for one in zip(specs, schedules, priors, strict=True)]
    names = tuple(columns) or tuple(name for name in (found[0] if found else {}) if not name.startswith(_NAMING))
    try:
        values = [[one[name] for name in names] for one in found]
    except KeyError as error:
        raise ModelError("the columns of a model are features of this version", error.args[0], "fit it again") from None
    return np.array(values, dtype=np.float64).reshape(len(found), len(names)), names
