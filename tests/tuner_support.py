"""What tests of the tuner share: a small space, given times, a prior, and runners of this process."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from support import ag_gemm

from tilescale.runtime.fake import FakeRunner
from tilescale.runtime.measure import Measurement
from tilescale.schedules.knob import Value
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import Space
from tilescale.spec.op import Spec

SPEC = ag_gemm((2048, 4096, 2048))
# Every overlap and both ways to compute, few values of the rest.
SMALL: dict[str, Sequence[Value]] = {
    "transport": ["peer_copy", "copy_engine"],
    "direction": ["push"],
    "chunk_rows": [128, 256, 512],
    "depth": [1, 2],
    "chunk_order": ["peer_major"],
    "num_comm_blocks": [4, 8],
    "block_m": [128],
    "block_n": [128, 256],
    "num_stages": [3, 4],
}


@dataclass(frozen=True)
class Guess:
    """A prediction."""

    us: float


def time_us(spec: Spec, schedule: Schedule) -> float:
    """A timer with one best schedule in SMALL: fused, chunks of 256, 128 x 256 tiles with 4 stages, 8 blocks."""
    base = {"none": 1300.0, "chunked": 1150.0, "fused": 1000.0}[schedule.overlap]
    chunks = abs(math.log2(schedule.chunk_rows / 256)) if schedule.chunk_rows else 0.0
    tile = 0.0 if schedule.compute == "library" else 0.05 * (schedule.block_n != 256) + 0.02 * (schedule.num_stages != 4)
    copies = 0.03 * (schedule.num_comm_blocks != 8) + 0.1 * (schedule.transport != "peer_copy")
    return base * (1 + 0.04 * chunks + 0.01 * (schedule.depth - 1) + tile + copies)


def guess(spec: Spec, schedule: Schedule) -> Guess:
    """A prior that is right about most, and expects too little of fused schedules."""
    return Guess(time_us(spec, schedule) * (1.2 if schedule.overlap == "fused" else 1.0))


def flat(spec: Spec, schedule: Schedule) -> Guess:
    """A prior that knows nothing."""
    return Guess(1000.0)


def fake(timer: Callable[[Spec, Schedule], float] = time_us, **options: object) -> FakeRunner:
    """A fake runner without processes."""
    return FakeRunner(timer, processes=False, **options)  # type: ignore[arg-type]


def small_space() -> Space:
    return Space(SPEC, SMALL)


class Interrupted:
    """Passes measurements on, and is interrupted as by Ctrl-C instead of measurement number `after`."""

    def __init__(self, inner: FakeRunner, after: int) -> None:
        self.inner, self.after = inner, after

    @property
    def source(self) -> str:
        return self.inner.source

    def measure(self, spec: Spec, schedules: Sequence[Schedule]) -> list[Measurement]:
        if self.inner.measured >= self.after:
            raise KeyboardInterrupt
        return self.inner.measure(spec, schedules)

    def close(self) -> None:
        self.inner.close()
