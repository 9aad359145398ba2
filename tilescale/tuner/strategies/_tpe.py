"""Proposals of Optuna's tree-structured Parzen estimator over the knobs.

Optuna lives in memory and is fed from the search. Its proposals may be infeasible or known, which its caller sees; it
is shown a few hundred trials at most, because asking grows slower with each.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tilescale.schedules.knob import BY_NAME, KNOBS, Knob, Partial, Value
from tilescale.schedules.schedule import Schedule
from tilescale.tuner.strategy import Context
from tilescale.tuner.trial import Trial

SHOWN = 300
STARTUP = 8
FAILED_US = 1e12


class Proposer:
    """Asks and tells an in-memory study of the knobs of `context.spec`."""

    def __init__(self, context: Context) -> None:
        import optuna

        self._spec = context.spec
        self._restrict = context.space.restrict
        with _quiet():
            sampler = optuna.samplers.TPESampler(
                seed=context.seed, n_startup_trials=STARTUP, multivariate=True, group=True
            )
            self._study = optuna.create_study(sampler=sampler)
        self._shown = 0
        self._asked = 0

    @property
    def spent(self) -> bool:
        """Whether it has seen and said enough."""
        return self._shown >= SHOWN or self._asked >= 4 * SHOWN

    def ask(self) -> Schedule:
        """A point of the crossed space, feasible or not."""
        import optuna

        self._asked += 1
        with _quiet():
            trial = self._study.ask()
            chosen: Partial = {}
            for knob in KNOBS:
                values = self._domain(knob, chosen)
                chosen[knob.name] = values[0] if len(values) == 1 else _suggest(trial, knob, values)
            # What is measured is told as a trial of its own, whoever proposed it.
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
        return Schedule(**chosen)  # type: ignore[arg-type]

    def tell(self, trial: Trial) -> None:
        """Show a trial, as long as not enough were shown."""
        self._show(trial.schedule, FAILED_US if trial.value_us is None else trial.value_us)

    def refuse(self, schedule: Schedule) -> None:
        """Show that a proposal is infeasible, so that its like is not proposed for ever."""
        self._show(schedule, FAILED_US)

    def _show(self, schedule: Schedule, value_us: float) -> None:
        import optuna

        if self._shown >= SHOWN:
            return
        self._shown += 1
        params: dict[str, Any] = {}
        distributions: dict[str, Any] = {}
        chosen: Partial = {}
        for knob in KNOBS:
            values = self._domain(knob, chosen)
            value: Value = getattr(schedule, knob.name)
            chosen[knob.name] = value
            if len(values) > 1 and value in values:
                distributions[knob.name] = _distribution(values)
                params[knob.name] = value if isinstance(value, str) else values.index(value)
        shown = optuna.trial.create_trial(params=params, distributions=distributions, value=value_us)
        with _quiet():
            self._study.add_trial(shown)

    def _domain(self, knob: Knob, chosen: Partial) -> tuple[Value, ...]:
        values = knob.values(self._spec, chosen)
        allowed = self._restrict.get(knob.name)
        if allowed is None or values == (knob.neutral,):
            return values
        return tuple(value for value in values if value in allowed) or (knob.neutral,)


def _distribution(values: tuple[Value, ...]) -> Any:
    """Names are categories; numbers are positions in their ordered domain."""
    import optuna

    if isinstance(values[0], str):
        return optuna.distributions.CategoricalDistribution(values)
    return optuna.distributions.IntDistribution(0, len(values) - 1)


def _suggest(trial: Any, knob: Knob, values: tuple[Value, ...]) -> Value:
    if isinstance(BY_NAME[knob.name].domain[0], str):
        chosen: str = trial.suggest_categorical(knob.name, values)
        return chosen
    place: int = trial.suggest_int(knob.name, 0, len(values) - 1)
    return values[place]


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna says on stderr what this file knows: that grouped sampling is experimental, and every trial told."""
    import optuna

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(level)
