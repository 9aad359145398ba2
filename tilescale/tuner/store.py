"""The performance database as a search sees it: what is known already, and every new trial committed at once."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilescale.arguments import shown
from tilescale.errors import RunnerError, TilescaleError
from tilescale.runtime.measure import Measurement, Samples
from tilescale.schedules.schedule import Schedule
from tilescale.tuner import records
from tilescale.tuner.trial import Trial

if TYPE_CHECKING:
    import perfdb


@contextmanager
def catchable() -> Iterator[None]:
    """What the database raises inside the block is a TilescaleError too, and stays of its own class."""
    import perfdb

    try:
        yield
    except perfdb.DatabaseError as error:
        if isinstance(error, TilescaleError):
            raise
        raise _both(type(error), error.rule, error.actual, error.remedy) from error


_OF_BOTH: dict[type[Exception], Any] = {}


def _both(kind: type[Exception], rule: str, actual: object, remedy: str) -> Exception:
    """An error of the database that is a TilescaleError as well: the database does not import this package."""
    made = _OF_BOTH.get(kind)
    if made is None:
        again = {"__reduce__": lambda self: (_both, (kind, self.rule, self.actual, self.remedy))}
        made = _OF_BOTH[kind] = type(kind.__name__, (TilescaleError, kind), again)
    error: Exception = made(rule, actual, remedy)
    return error


@contextmanager
def opened(where: str | Path | perfdb.Database | None, create: bool = True) -> Iterator[perfdb.Database]:
    """The database at a path or URL; one that lives as long as the block for None; an open one as it is.

    Without `create`, perfdb.MissingDatabase where there is none. Errors of the database, also inside the block, are
    TilescaleErrors as well. Raises RunnerError for what names no database.
    """
    import perfdb

    if not isinstance(where, str | Path | perfdb.Database | None) or where == "":
        raise RunnerError("a database is a path, a URL or an open one", shown(where), 'for example db="perf.db"')
    with catchable(), ExitStack() as stack:
        if isinstance(where, perfdb.Database):
            yield where
            return
        if where is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tilescale-"))
            where = Path(folder) / "perf.db"
        yield stack.enter_context(perfdb.open_database(where, create=create))


def stored_samples(db: perfdb.Database, trial_id: int) -> Samples:
    """The samples of a stored trial, one tuple a rank."""
    import perfdb

    frame = perfdb.samples(db, trial_id)
    return tuple(tuple(float(us) for us in group["us"]) for _, group in frame.groupby("rank", sort=True))


class Store:
    """Trials of one key in one session. `known`: rows stored earlier, by schedule digest; empty without `resume`."""

    def __init__(self, db: perfdb.Database, key: records.Key, session: int, resume: bool) -> None:
        import perfdb

        self.db, self.key, self.session = db, key, session
        self.known: dict[str, perfdb.TrialRow] = {}
        if resume:
            self.known = perfdb.known(db, key.workload, key.topology, key.environment, source=key.source)

    def recall(self, schedule: Schedule, number: int, predicted_us: float, origin: str = "resumed") -> Trial | None:
        """The stored trial of a schedule, or None."""
        row = self.known.get(schedule.digest)
        if row is None:
            return None
        return Trial(
            number,
            schedule,
            row.status,
            row.source,
            origin,
            row.trial_id,
            row.value_us,
            predicted_us,
            row.message,
            (),
            row.binary_digest,
            row.table_digest,
        )

    def keep(self, measurement: Measurement, number: int, predicted_us: float) -> Trial:
        """Commit a measurement; it is on the disk when this returns. Raises RunnerError for another source."""
        if measurement.source != self.key.source:
            remedy = f"label them {self.key.source}"
            raise RunnerError("a runner's measurements carry its source", measurement.source, remedy)
        trial_id = self.db.record(records.trial_record(self.key, measurement, self.session))
        if self.key.source != "predicted":
            prediction = records.prediction_record(self.key, measurement.schedule, predicted_us, self.session)
            self.db.record_prediction(prediction)
        return Trial(
            number,
            measurement.schedule,
            measurement.status,
            measurement.source,
            "evaluated",
            trial_id,
            measurement.value_us if measurement.ok else None,
            predicted_us,
            measurement.message,
            measurement.samples_us,
            measurement.binary_digest,
            measurement.table_digest,
        )

    def samples(self, trial: Trial) -> Samples:
        """The samples of a trial, one tuple a rank, from the trial itself or from the database."""
        return trial.samples_us or stored_samples(self.db, trial.trial_id)

    def stale_note(self, schedule: Schedule) -> str:
        """Why nothing that is stored for this work answers, where something is stored for another key; else ""."""
        import perfdb

        if self.known:
            return ""
        key = self.key
        miss = perfdb.explain_miss(
            self.db, key.workload, key.topology, key.environment, records.schedule_key(schedule), source=key.source
        )
        if not miss.nearest or {"op", "shape"} & set(miss.fields):
            return ""
        return f"stored trials do not answer for this run ({miss.reason}); they are kept and not used"

    def remembered(
        self, schedules: Iterable[Schedule], number: int, predicted_us: Callable[[Schedule], float]
    ) -> Trial | None:
        """The fastest stored trial among those of `schedules`, or None."""
        best: tuple[float, Schedule] | None = None
        for schedule in schedules if self.known else ():
            row = self.known.get(schedule.digest)
            if row is not None and row.value_us is not None and (best is None or row.value_us < best[0]):
                best = row.value_us, schedule
        return None if best is None else self.recall(best[1], number, predicted_us(best[1]), "remembered")
