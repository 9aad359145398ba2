"""What a runner says about one schedule: a status, the samples of every rank, and where the times come from."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from tilescale.errors import RunnerError
from tilescale.schedules.schedule import Schedule

STATUSES = (
    "ok",
    "illegal",
    "compile_error",
    "compile_timeout",
    "launch_error",
    "timeout",
    "wrong_result",
    "interrupted",
)
SOURCES = ("measured", "measured_scale_model", "measured_shared_gpu", "replayed", "predicted", "emulated")

Samples = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Measurement:
    """The outcome of one schedule; a failure is a value too, with `status` and `message`.

    `samples_us[r]` holds the samples of rank r in microseconds; sample i of every rank belongs to the same call, so all
    ranks have as many. An "ok" measurement has at least one sample. `environment`: sorted pairs of facts about the
    machine. `binary_digest` and `table_digest`: what ran, empty where nothing was compiled.
    Raises RunnerError for an unknown status or source, and for samples that do not fit.
    """

    schedule: Schedule
    status: str
    source: str
    samples_us: Samples = ()
    message: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    binary_digest: str = ""
    table_digest: str = ""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise RunnerError("a measurement's status is one of " + ", ".join(STATUSES), self.status)
        if self.source not in SOURCES:
            raise RunnerError("a measurement's source is one of " + ", ".join(SOURCES), self.source)
        lengths = {len(samples) for samples in self.samples_us}
        if len(lengths) > 1:
            raise RunnerError("every rank has as many samples", [len(s) for s in self.samples_us], "drop partial calls")
        if self.status == "ok" and lengths in (set(), {0}):
            raise RunnerError("a measurement that is ok has samples", self.samples_us, "give it a failure status")
        if any(not (math.isfinite(t) and t > 0) for samples in self.samples_us for t in samples):
            raise RunnerError("samples are positive, finite microseconds", self.samples_us)

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    @property
    def calls_us(self) -> tuple[float, ...]:
        """The value of each sample: the slowest rank's time, microseconds."""
        return tuple(max(call) for call in zip(*self.samples_us, strict=True))

    @property
    def value_us(self) -> float:
        """Median over samples of the maximum over ranks, microseconds; nan unless ok."""
        return statistics.median(self.calls_us) if self.ok else math.nan
