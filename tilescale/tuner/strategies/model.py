"""The prior, corrected by what was measured, mixed with Optuna's proposals and with steps away from the best."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle

from tilescale.schedules.schedule import Schedule
from tilescale.tuner.strategies._correction import Correction, family
from tilescale.tuner.strategies._tpe import Proposer
from tilescale.tuner.strategy import STRATEGIES, Context, Strategy
from tilescale.tuner.trial import Trial

# A family of schedules is opened by its best member if that is expected within this factor of the best of all.
OPENING_FACTOR = 1.5
TPE_ATTEMPTS = 8
# After so many turns in which Optuna proposed nothing new and feasible, it is not asked again: little is left.
TPE_IDLE_TURNS = 4


@STRATEGIES.register
class Model(Strategy):
    """First the best predicted member of every promising family; then in turn the best by the corrected prior, a
    proposal of Optuna, the best by the corrected prior, and the most promising neighbour of the best measured.

    Knobs do not compose (a schedule may gain from either of two and lose from both), hence the mixture; a prior may be
    wrong about a whole family, hence the openings and the correction.
    """

    name = "model"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._correction = Correction(context.prior, context.space)
        self._tpe: Proposer | None = None
        self._idle_turns = 0
        self._told: list[Trial] = []
        self._openings = self._families()
        self._turns: Iterator[Callable[[list[float]], Schedule | None]] = cycle(
            (self._by_prior, self._by_tpe, self._by_prior, self._by_neighbour)
        )
        self._best: Trial | None = None
        self._place = {schedule: at for at, schedule in enumerate(context.prior.schedules)}

    def ask(self) -> Schedule | None:
        for schedule in self._openings:
            if schedule not in self.seen:
                return self._propose(schedule)
        if len(self.seen) >= len(self._place):
            return None
        scores = self._correction.scores_us()
        found = next(self._turns)(scores) or self._by_prior(scores)
        return None if found is None else self._propose(found)

    def tell(self, trial: Trial) -> None:
        super().tell(trial)
        self._told.append(trial)
        self._correction.tell(trial)
        if trial.ok and (self._best is None or trial.time_us < self._best.time_us):
            self._best = trial
        if self._tpe is not None:
            self._tpe.tell(trial)

    def _propose(self, schedule: Schedule) -> Schedule:
        self.seen.add(schedule)
        return schedule

    def _families(self) -> Iterator[Schedule]:
        prior = self.context.prior
        opened = set()
        for schedule in prior.ranked:
            if prior.us(schedule) > OPENING_FACTOR * prior.us(prior.ranked[0]):
                return
            if family(schedule) not in opened:
                opened.add(family(schedule))
                yield schedule

    def _by_prior(self, scores: list[float]) -> Schedule | None:
        unseen = (at for at, schedule in enumerate(self.context.prior.schedules) if schedule not in self.seen)
        at = min(unseen, key=lambda place: (scores[place], place), default=None)
        return None if at is None else self.context.prior.schedules[at]

    def _by_tpe(self, scores: list[float]) -> Schedule | None:
        if self._tpe is None:
            self._tpe = Proposer(self.context)
            for trial in self._told:
                self._tpe.tell(trial)
        for _ in range(TPE_ATTEMPTS):
            if self._tpe.spent or self._idle_turns >= TPE_IDLE_TURNS:
                return None
            schedule = self._tpe.ask()
            if schedule not in self._place:
                self._tpe.refuse(schedule)
            elif schedule not in self.seen:
                self._idle_turns = 0
                return schedule
        self._idle_turns += 1
        return None

    def _by_neighbour(self, scores: list[float]) -> Schedule | None:
        if self._best is None:
            return None
        places = [self._place.get(schedule) for schedule in self.context.space.neighbours(self._best.schedule)]
        schedules = self.context.prior.schedules
        near = [at for at in places if at is not None and schedules[at] not in self.seen]
        at = min(near, key=lambda place: (scores[place], place), default=None)
        return None if at is None else schedules[at]
