"""The base of search strategies, and their registry. A strategy is one file in `strategies/`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from tilescale.costmodel.rows import Row
from tilescale.registry import Registry
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import Space
from tilescale.spec.op import Spec
from tilescale.tuner.prior import Prior
from tilescale.tuner.trial import Trial


@dataclass(frozen=True)
class Context:
    """What a strategy may look at: what is tuned, its feasible schedules, what they are expected to take, the seed.

    `experience`: what was measured of other workloads, of the same source and kind of machine.
    """

    spec: Spec
    space: Space
    prior: Prior
    seed: int
    experience: tuple[Row, ...] = ()


class Strategy(ABC):
    """Proposes the next schedule to measure.

    - `ask()` returns a schedule of the space that it has neither proposed before nor been told of, or None once there
      is none left. Asked long enough, it proposes the whole space.
    - `tell(trial)` says what came of a schedule, good or failed, whether it was proposed by `ask` or not.
    - Both depend on the context and on what was told, in order, and on nothing else: no clock, no hash order.
    """

    name = ""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.seen: set[Schedule] = set()

    @abstractmethod
    def ask(self) -> Schedule | None:
        """The next schedule, or None."""

    def tell(self, trial: Trial) -> None:
        """Learn from a trial."""
        self.seen.add(trial.schedule)


STRATEGIES: Registry[type[Strategy]] = Registry("strategy", package="tilescale.tuner.strategies")
