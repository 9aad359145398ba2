"""What a user has today, as members of the space: the answer is never worse than these."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec
from tilescale.spec.routed import is_routed
from tilescale.tuner.prior import Prior
from tilescale.tuner.trial import Trial, fastest


@dataclass(frozen=True)
class Baseline:
    """A named family of schedules; its time is that of its fastest measured member."""

    name: str
    summary: str
    holds: Callable[[Schedule], bool]


GEMM = (
    Baseline(
        "unfused", "communicate, then one library product", lambda s: s.overlap == "none" and s.compute == "library"
    ),
    Baseline(
        "chunked",
        "chunks on streams with library products",
        lambda s: s.overlap == "chunked" and s.compute == "library",
    ),
)
COPY = (
    Baseline(
        "copy_engine",
        "one copy a peer by the copy engines",
        lambda s: s.overlap == "none" and s.transport == "copy_engine",
    ),
    Baseline("peer_copy", "one kernel that copies", lambda s: s.overlap == "none" and s.transport == "peer_copy"),
)

EXPERTS = (Baseline("unfused", "rows are moved by one kernel and multiplied by another", lambda s: s.overlap == "none"),)


def baselines_of(spec: Spec) -> tuple[Baseline, ...]:
    """The baselines of an operation; a local product has nothing to cut into chunks, and no library multiplies rows whose
    number the device alone knows."""
    if spec.local:
        return GEMM[:1]
    if is_routed(spec) and spec.operation.compute == "gemm":
        return EXPERTS
    return GEMM if spec.operation.compute == "gemm" else COPY


def first_candidates(spec: Spec, prior: Prior) -> tuple[Schedule, ...]:
    """The member of each baseline that the prior expects to be the fastest: what a search measures first."""
    found = [prior.best_of(baseline.holds) for baseline in baselines_of(spec)]
    return tuple(dict.fromkeys(schedule for schedule in found if schedule is not None))


def times(spec: Spec, trials: Iterable[Trial]) -> dict[str, float]:
    """Microseconds of every baseline that has a good trial."""
    measured = list(trials)
    result = {}
    for baseline in baselines_of(spec):
        best = fastest([trial for trial in measured if baseline.holds(trial.schedule)])
        if best is not None:
            result[baseline.name] = best.time_us
    return result
