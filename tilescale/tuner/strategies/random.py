"""A uniformly random order of the space: what other strategies are compared with."""

from __future__ import annotations

import random

from tilescale.schedules.schedule import Schedule
from tilescale.tuner.strategy import STRATEGIES, Context, Strategy


@STRATEGIES.register
class Random(Strategy):
    """Every schedule once, in an order drawn from the seed."""

    name = "random"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._order = list(context.space)
        random.Random(context.seed).shuffle(self._order)
        self._order.reverse()  # taken from the end

    def ask(self) -> Schedule | None:
        while self._order:
            schedule = self._order.pop()
            if schedule not in self.seen:
                self.seen.add(schedule)
                return schedule
        return None
