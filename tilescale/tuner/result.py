"""What a tuning run returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilescale.errors import RunnerError
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec
from tilescale.tuner.records import shape_text
from tilescale.tuner.trial import Trial

if TYPE_CHECKING:
    import pandas as pd

    from tilescale.costmodel.analytic import Prediction

# Says in words what the emulator found about the best schedule of a result.
Emulate = Callable[["Result"], str]
# The worst way in which one of several searches ended is that of all.
_WORST = ("interrupted", "complete", "exhausted")


@dataclass(frozen=True)
class Result:
    """The outcome of tuning one spec.

    `best`: the schedule chosen; `best_us`: its time; `ties`: schedules that could not be told apart from the fastest,
    `best` excepted; `reason`: why it was chosen. `baselines`: microseconds by name. `source` labels every time here.
    `status`: "complete" (the budget was spent), "exhausted" (the whole space was tried) or "interrupted".
    `session`: its id in the database; `measured`: how often the runner was asked. `notes`: what a reader must know.
    `environment`: sorted pairs of facts about the machine and toolchain that the times belong to. `rows`: the trials as
    values; that of `best` has its samples.
    """

    name: str
    spec: Spec
    best: Schedule
    best_us: float
    baselines: Mapping[str, float]
    ties: tuple[Schedule, ...]
    reason: str
    source: str
    status: str
    session: int
    seed: int
    measured: int
    rows: tuple[Trial, ...] = field(repr=False)
    notes: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()

    @cached_property
    def trials(self) -> pd.DataFrame:
        """A row a candidate, in the order of the search: knobs are columns; `value_us` is NaN in failed rows."""
        import pandas as pd

        rows = [_row(trial) for trial in self.rows]
        return pd.DataFrame(rows, columns=list(rows[0])) if rows else pd.DataFrame()

    @cached_property
    def prediction(self) -> Prediction:
        """What the analytic model expects of `best`."""
        from tilescale.costmodel.analytic import predict

        return predict(self.spec, self.best)

    def top(self, count: int = 10) -> tuple[Trial, ...]:
        """The fastest good trials, the fastest first."""
        good = [trial for trial in self.rows if trial.ok]
        return tuple(sorted(good, key=lambda trial: (trial.time_us, trial.number))[:count])

    @property
    def failures(self) -> dict[str, int]:
        """Failed candidates by status."""
        counts: dict[str, int] = {}
        for trial in self.rows:
            if not trial.ok:
                counts[trial.status] = counts.get(trial.status, 0) + 1
        return dict(sorted(counts.items()))

    def export(self, folder: str | Path, emulate: Emulate | None = None) -> Path:
        """Write a bundle of this one operation; `emulate` as in Results.export."""
        return Results({self.name: self}).export(folder, emulate)


def _row(trial: Trial) -> dict[str, Any]:
    return {
        "number": trial.number,
        "origin": trial.origin,
        "source": trial.source,
        "status": trial.status,
        "value_us": float("nan") if trial.value_us is None else trial.value_us,
        "predicted_us": trial.predicted_us,
        "schedule": trial.schedule.digest,
        "label": trial.schedule.label,
        "message": trial.message,
        "trial_id": trial.trial_id,
        "binary_digest": trial.binary_digest,
        "table_digest": trial.table_digest,
        **trial.schedule.as_dict(),
    }


class Results(Mapping[str, Result]):
    """Results by name, tuned in one session. `unfinished`: names that an interruption left without a result."""

    def __init__(self, results: Mapping[str, Result], unfinished: tuple[str, ...] = ()) -> None:
        self._results = dict(results)
        self.unfinished = unfinished

    def __getitem__(self, name: str) -> Result:
        return self._results[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._results)

    def __len__(self) -> int:
        return len(self._results)

    @property
    def status(self) -> str:
        """ "interrupted" if one was, "exhausted" if all were, else "complete"."""
        if self.unfinished:
            return "interrupted"
        return min((result.status for result in self.values()), key=_WORST.index, default="complete")

    @property
    def source(self) -> str:
        """The one source of all times. Raises RunnerError where there are several."""
        sources = sorted({result.source for result in self.values()})
        if len(sources) != 1:
            raise RunnerError("results of one source are looked at together", sources or "none", "take them one by one")
        return sources[0]

    @property
    def session(self) -> int:
        return next(iter(self.values())).session

    @property
    def table(self) -> pd.DataFrame:
        """A row a result: what is best, its time and its source, beside the baselines."""
        import pandas as pd

        return pd.DataFrame(
            [
                {
                    "name": name,
                    "op": r.spec.op,
                    "shape": shape_text(r.spec),
                    "dtype": r.spec.inputs[0].dtype,
                    "world": r.spec.world,
                    "topology": r.spec.topology.name,
                    "source": r.source,
                    "status": r.status,
                    "best_us": r.best_us,
                    "best": r.best.label,
                    "schedule": r.best.digest,
                    "ties": len(r.ties),
                    "trials": len(r.rows),
                    "measured": r.measured,
                    **{f"{baseline}_us": us for baseline, us in r.baselines.items()},
                }
                for name, r in self.items()
            ]
        )

    def export(self, folder: str | Path, emulate: Emulate | None = None) -> Path:
        """Write one bundle that holds every result. `emulate(result)`: the emulator's verdict in words, kept in it."""
        from tilescale.tuner.export import export

        # What all results have in common: each of several recordings has a timer of its own.
        shared = set.intersection(*(set(result.environment) for result in self.values())) if self else set()
        return Path(export(self, folder, emulate=emulate, environment=dict(sorted(shared))))
