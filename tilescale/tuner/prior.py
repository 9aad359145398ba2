"""What the cost model says about a whole space, before anything is measured."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Protocol

from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec


class Estimate(Protocol):
    """What is used of a cost model's prediction."""

    @property
    def us(self) -> float: ...


Predictor = Callable[[Spec, Schedule], Estimate]
Tile = tuple[int, ...]

# Spaces up to this size are predicted whole; of larger ones, this many schedules beyond one a plan structure.
EXACT = 1000
_TILE = ("block_m", "block_n", "block_k", "num_stages", "raster_group", "cluster_m", "split_k", "stream_k")


def analytic(spec: Spec, schedule: Schedule) -> Estimate:
    """The analytic model."""
    from tilescale.costmodel.memo import prior as predict

    estimate: Estimate = predict(spec, schedule)
    return estimate


def tile_of(schedule: Schedule) -> Tile:
    """The knobs that only size the launches that multiply."""
    return tuple(getattr(schedule, name) for name in _TILE)


def structure_of(schedule: Schedule) -> tuple[object, ...]:
    """The knobs that shape the plan: all others."""
    return tuple(value for name, value in schedule.as_dict().items() if name not in _TILE)


class Prior:
    """Predicted times of the schedules of a space, microseconds.

    `us` is exact (computed once, when first asked for). `times_us` and `ranked` cover the whole space in bounded work:
    one schedule of every plan structure is predicted, then whole structures, the most promising first, up to `EXACT`
    schedules; the rest is estimated from their structure's one and from what their tile changed elsewhere. What is
    predicted depends on the space alone. `progress(done, total)` counts predictions.
    """

    def __init__(
        self,
        spec: Spec,
        schedules: Sequence[Schedule],
        predictor: Predictor = analytic,
        progress: Callable[[int, int], None] | None = None,
        exact: int = EXACT,
    ) -> None:
        self.spec = spec
        self.schedules = tuple(schedules)
        self.predicted = 0
        self._predictor = predictor
        self._progress = progress
        self._exact = exact
        self._total = len(self.schedules)
        self._known: dict[Schedule, float] = {}
        self._shown = 0

    def us(self, schedule: Schedule) -> float:
        """The predicted time of one schedule."""
        value = self._known.get(schedule)
        if value is None:
            value = self._known[schedule] = float(self._predictor(self.spec, schedule).us)
            self.predicted += 1
            self._show(self.predicted)
        return value

    def _ahead(self, schedules: Sequence[Schedule]) -> None:
        """Predict many that will be asked for, side by side."""
        if self._predictor is not analytic:
            return
        from tilescale.costmodel.memo import ahead

        ahead(self.spec, schedules, lambda done: self._show(self.predicted + done))

    def _show(self, done: int) -> None:
        """Say how many are predicted, where more are than was said: what was made ahead is counted once."""
        if self._progress and done % 32 == 0 and done > self._shown:
            self._shown = done
            self._progress(done, max(self._total, done))

    @cached_property
    def times_us(self) -> tuple[float, ...]:
        """A time for every schedule, in the order of `schedules`; exact where it was predicted."""
        exact = len(self.schedules) <= self._exact
        if exact:
            self._ahead(self.schedules)
        times = tuple(self.us(schedule) for schedule in self.schedules) if exact else self._estimated()
        if self._predictor is analytic:
            from tilescale.costmodel.memo import save

            save(self.spec)
        return times

    @cached_property
    def ranked(self) -> tuple[Schedule, ...]:
        """All schedules, the fastest by `times_us` first; equals in canonical order."""
        times = self.times_us
        return tuple(self.schedules[at] for at in sorted(range(len(times)), key=lambda at: (times[at], at)))

    def best_of(self, holds: Callable[[Schedule], bool]) -> Schedule | None:
        """The first of `ranked` for which `holds`; None where there is none."""
        return next((schedule for schedule in self.ranked if holds(schedule)), None)

    def _estimated(self) -> tuple[float, ...]:
        groups: dict[tuple[object, ...], list[Schedule]] = {}
        for schedule in self.schedules:
            groups.setdefault(structure_of(schedule), []).append(schedule)
        counts = Counter(tile_of(schedule) for members in groups.values() if len(members) > 1 for schedule in members)
        usual = max(counts, key=lambda tile: (counts[tile], tile), default=())
        self._total = min(len(self.schedules), len(groups) + self._exact)
        first = {key: _member(members, usual) for key, members in groups.items()}
        self._ahead(tuple(first.values()))
        order = sorted(groups, key=lambda key: self.us(first[key]))  # stable: equals in canonical order
        whole: list[list[Schedule]] = []
        room = self._exact
        for key in order:
            if len(groups[key]) - 1 > room:
                break
            room -= len(groups[key]) - 1
            whole.append(groups[key])
        self._ahead([schedule for members in whole for schedule in members])
        effects = self._effects(whole, usual)

        def estimate(schedule: Schedule) -> float:
            known = self._known.get(schedule)
            if known is not None:
                return known
            model = first[structure_of(schedule)]
            change = effects.get((schedule.overlap, tile_of(schedule)), 0.0)
            return self.us(model) * math.exp(change - effects.get((model.overlap, tile_of(model)), 0.0))

        return tuple(estimate(schedule) for schedule in self.schedules)

    def _effects(self, whole: Sequence[Sequence[Schedule]], usual: Tile) -> dict[tuple[str, Tile], float]:
        """Mean log ratio of the time with a tile to that with the usual one, by overlap, where both were predicted."""
        logs: dict[tuple[str, Tile], list[float]] = {}
        for members in whole:
            times = {tile_of(schedule): self.us(schedule) for schedule in members}
            for tile, time_us in times.items():
                if usual in times:
                    logs.setdefault((members[0].overlap, tile), []).append(math.log(time_us / times[usual]))
        return {key: math.fsum(values) / len(values) for key, values in logs.items()}


def _member(members: Sequence[Schedule], usual: Tile) -> Schedule:
    """The member that stands for the others: that with the usual tile, else the one in the middle."""
    return next((schedule for schedule in members if tile_of(schedule) == usual), members[len(members) // 2])
