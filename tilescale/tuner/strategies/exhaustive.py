"""The space in canonical order: for recording a whole space."""

from __future__ import annotations

from tilescale.schedules.schedule import Schedule
from tilescale.tuner.strategy import STRATEGIES, Context, Strategy


@STRATEGIES.register
class Exhaustive(Strategy):
    """Every schedule once, in canonical order."""

    name = "exhaustive"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._rest = iter(context.space)

    def ask(self) -> Schedule | None:
        for schedule in self._rest:
            if schedule not in self.seen:
                self.seen.add(schedule)
                return schedule
        return None
