"""Analytic predictions, kept: a search, its model and an evaluation ask for the same ones, and the next process too.

`prior` keeps them in memory, `ahead` makes many at once, `save` writes them to disk: a JSON file a spec in the user's
cache, below a folder named after the source text of what predicts, so that a changed model never answers from an old
file. An unreadable file counts as absent, and a cache that cannot be written is done without.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

from tilescale import canon
from tilescale.caches import bounded
from tilescale.costmodel.analytic import Prediction, predict
from tilescale.costmodel.workers import predict_all
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec

SPECS = 16  # kept in memory
LEAST = 64  # fewer new predictions are not worth a file: they take a fraction of a second
_ROOMS = ("costmodel", "schedules", "spec")  # what a prediction depends on


class _Kept:
    """Predictions of one spec by the digest of the schedule; `new` of them are not in its file."""

    def __init__(self, spec: Spec) -> None:
        self.path = _path(spec)
        self.known: dict[str, Prediction] = _read(self.path)
        self.new = 0

    def save(self) -> None:
        if self.path is None or self.new < LEAST:
            return
        merged = {**_read(self.path), **self.known}  # another process may have written meanwhile
        with contextlib.suppress(OSError, ValueError):
            _write(self.path, merged)
            self.new = 0


_specs: OrderedDict[Spec, _Kept] = OrderedDict()


def prior(spec: Spec, schedule: Schedule) -> Prediction:
    """The analytic prediction with default parameters; see analytic.predict."""
    kept = _kept(spec)
    found = kept.known.get(schedule.digest)
    if found is None:
        found = kept.known[schedule.digest] = predict(spec, schedule)
        kept.new += 1
    return found


def ahead(spec: Spec, schedules: Sequence[Schedule], progress: Callable[[int], None] = lambda done: None) -> None:
    """Predict what is not known yet of many schedules, by processes side by side; `progress(done)` counts them."""
    kept = _kept(spec)
    missing = {schedule.digest: schedule for schedule in schedules if schedule.digest not in kept.known}
    found = predict_all(spec, tuple(missing.values()), progress)
    kept.known.update(found)
    kept.new += len(found)


def save(spec: Spec) -> None:
    """Write the predictions of a spec that are new, where they are many, aside and renamed."""
    _kept(spec).save()


def forget() -> None:
    """Drop what is in memory; files stay."""
    _specs.clear()


def _kept(spec: Spec) -> _Kept:
    kept = _specs.get(spec)
    if kept is None:
        kept = _specs[spec] = _Kept(spec)
        if len(_specs) > SPECS:
            _specs.popitem(last=False)
    return kept


@lru_cache(maxsize=1)
def source_digest() -> str:
    """Of the text of all that a prediction depends on."""
    package = Path(__file__).parents[1]
    texts = [path.read_text(encoding="utf-8") for room in _ROOMS for path in sorted((package / room).rglob("*.py"))]
    return canon.digest(texts)


def _path(spec: Spec) -> Path | None:
    try:
        import platformdirs

        # The whole document: the digest of a spec leaves out the speeds of its machine, which predictions are made of.
        document = canon.digest(canon.encode(spec))
        return Path(platformdirs.user_cache_dir("tilescale")) / "priors" / source_digest() / f"{document}.json"
    except (ImportError, OSError):
        return None


def _read(path: Path | None) -> dict[str, Prediction]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8")) if path is not None else {}
        return {
            digest: Prediction(us, low, high, tuple((str(kind), float(part)) for kind, part in parts))
            for digest, (us, low, high, parts) in rows.items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _write(path: Path, known: dict[str, Prediction]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({digest: (p.us, p.low_us, p.high_us, p.parts) for digest, p in sorted(known.items())},
                      separators=(",", ":"), allow_nan=False)
    handle, aside = tempfile.mkstemp(dir=path.parent, suffix=".new")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(aside, path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise
    bounded(path.parents[1])
