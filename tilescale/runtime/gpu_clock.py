"""Samples on one rank: caches cleared, behind a meeting on the device, events around a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tilescale.runtime.clocks import Clocks, Reading
from tilescale.runtime.gpu_contestant import Rank, Recording
from tilescale.runtime.sampling import Bounds, enough


class Meet(Protocol):
    """Gives a value and returns those of all ranks."""

    def __call__(self, value: Any) -> Sequence[Any]: ...


class Stopwatch:
    """Of one rank. `flush_bytes` are written before each sample, so that nothing of the last is in the L2."""

    def __init__(self, rank: Rank, clocks: Clocks, flush_bytes: int, meet: Meet) -> None:
        self._rank, self._clocks, self._meet = rank, clocks, meet
        self._flush = rank.device.driver.allocate(flush_bytes) if flush_bytes else 0
        self._flush_bytes = flush_bytes
        self._events: list[tuple[int, int]] = []
        self.readings: list[Reading] = []
        self.dropped = 0

    def batch(self, recording: Recording, count: int) -> list[float]:
        """Microseconds a call, `count` times. All ranks do this together. RunnerError where one does not come."""
        driver, stream = self._rank.device.driver, self._rank.device.stream
        while len(self._events) < count:
            self._events.append((driver.timer_event(), driver.timer_event()))
        for start, end in self._events[:count]:
            if self._flush_bytes:
                driver.fill(self._flush, len(self._events) & 0xFF, self._flush_bytes, stream)
            self._rank.meeting.enqueue(stream)
            driver.record(start, stream)
            recording.launch()
            driver.record(end, stream)
        driver.synchronize(stream)
        self._rank.meeting.check()
        return [driver.elapsed_us(start, end) / recording.calls for start, end in self._events[:count]]

    def samples(self, recording: Recording, bounds: Bounds, *, fixed: bool) -> list[float]:
        """This rank's samples: `bounds.minimum` of them (`fixed`), or until the bounds are met, decided by all ranks
        from the samples of all. Batches in which a GPU ran slower for heat or faults are dropped and taken again, at
        most as often as `bounds.maximum` allows; without any other they are kept."""
        self.batch(recording, bounds.warmup)
        wanted = Bounds(bounds.minimum, bounds.minimum) if fixed else bounds
        kept: list[list[float]] = [[] for _ in range(self._rank.world)]
        spoiled: list[list[float]] = [[] for _ in range(self._rank.world)]
        taken = 0
        while not enough(kept, wanted) and taken < 2 * wanted.maximum:
            count = min(bounds.batch, wanted.maximum)
            mine = self.batch(recording, count)
            taken += count
            reading = self._clocks.read()
            if reading is not None:
                self.readings.append(reading)
            answers = self._meet([mine, bool(reading and reading.spoiled)])
            bad = any(answer[1] for answer in answers)
            self.dropped += count if bad else 0
            for rank, answer in enumerate(answers):
                (spoiled if bad else kept)[rank] += answer[0]
        found = kept if kept[0] else spoiled
        return found[self._rank.rank]
