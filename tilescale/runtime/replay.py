"""Recorded spaces: what was measured or predicted for every schedule of a spec, replayed as if measured.

File: gzip of JSON lines. The first line is a header {"format", "spec", "spec_digest", "source", "environment",
"created", "version", "knobs", "rows", "digest"}; then one line a schedule, [knob values in the order of "knobs",
status, samples of each rank in microseconds, message]. "rows" and "digest" (of all lines after the header) tell a file
that was cut short or altered.
"""

from __future__ import annotations

import gzip
import importlib.metadata
import json
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import platformdirs

from tilescale import canon
from tilescale.errors import RunnerError, TilescaleError
from tilescale.runtime.measure import SOURCES, Measurement
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec

FORMAT = 1
SUFFIX = ".jsonl.gz"
SHIPPED = Path(__file__).parent / "spaces"
RECORDABLE = tuple(source for source in SOURCES if source not in ("replayed", "emulated"))

_HEADER_KEYS = {"format", "spec", "spec_digest", "source", "environment", "created", "version", "knobs"}
_REMEDY = "record the space again, or remove the file"
_TIME_DIGITS = 3  # of a microsecond: nanoseconds are below any timer here


@dataclass(frozen=True)
class RecordedSpace:
    """The measurements of one spec, one a schedule, all with the space's `source` and `environment`.

    `created`: ISO 8601, UTC. `version`: of the tilescale that recorded it. Raises RunnerError for a source that cannot
    be recorded, and for two rows of one schedule.
    """

    spec: Spec
    source: str
    environment: tuple[tuple[str, str], ...]
    created: str
    version: str
    rows: tuple[Measurement, ...]

    def __post_init__(self) -> None:
        if self.source not in RECORDABLE:
            raise RunnerError("a recorded space comes from one of " + ", ".join(RECORDABLE), self.source)
        if len(self.by_digest) != len(self.rows):
            raise RunnerError("a recorded space has one row a schedule", f"{len(self.rows)} rows", "merge them first")

    @classmethod
    def of(cls, spec: Spec, source: str, rows: Iterable[Measurement]) -> Self:
        """A space of measurements just taken; times are rounded to nanoseconds, the environment is the first row's."""
        kept = tuple(rows)
        environment = kept[0].environment if kept else ()
        recorded = tuple(
            Measurement(row.schedule, row.status, source, _rounded(row.samples_us), row.message, environment)
            for row in kept
        )
        created = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(spec, source, environment, created, _version(), recorded)

    @cached_property
    def by_digest(self) -> Mapping[str, Measurement]:
        """Rows by the digest of their schedule."""
        return {row.schedule.digest: row for row in self.rows}

    @property
    def best(self) -> Measurement | None:
        """The fastest row, the first of equals; None where none is ok."""
        return min((row for row in self.rows if row.ok), key=lambda row: row.value_us, default=None)

    @property
    def file_name(self) -> str:
        """What `find_recorded` looks for: the op, the spec's digest and the source."""
        return f"{self.spec.op}-{self.spec.digest}-{self.source}{SUFFIX}"

    def save(self, folder: str | Path) -> Path:
        """Write the space below `folder` under its `file_name`, aside and renamed; equal spaces give equal bytes."""
        knobs = [f.name for f in fields(Schedule)]
        lines = [_line([[getattr(m.schedule, k) for k in knobs], m.status, m.samples_us, m.message]) for m in self.rows]
        body = "".join(lines).encode()
        header = {
            "format": FORMAT,
            "spec": canon.encode(self.spec),
            "spec_digest": self.spec.digest,
            "source": self.source,
            "environment": dict(self.environment),
            "created": self.created,
            "version": self.version,
            "knobs": knobs,
            "rows": len(lines),
            "digest": canon.digest_bytes(body),
        }
        path = Path(folder) / self.file_name
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f"{path.name}.{os.getpid()}")
        aside.write_bytes(gzip.compress(_line(header).encode() + body, mtime=0))
        os.replace(aside, path)
        return path

    @staticmethod
    def load(path: str | Path) -> RecordedSpace:
        """The space in a file. Raises RunnerError naming the file, the rule and the remedy."""
        return _load(Path(path))


class ReplayRunner:
    """Answers with the rows of a recorded space, labelled "replayed" ("predicted" where its times come from a model).

    A schedule that was not recorded is "illegal". `measured` counts what was asked for. Raises RunnerError for another
    spec than the recorded one.
    """

    def __init__(self, space: RecordedSpace) -> None:
        self.space = space
        self.measured = 0
        self._source = "predicted" if space.source == "predicted" else "replayed"
        self._closed = False

    @property
    def source(self) -> str:
        return self._source

    def measure(self, spec: Spec, schedules: Sequence[Schedule]) -> list[Measurement]:
        """See runner.Runner."""
        if self._closed:
            raise RunnerError("a closed runner measures nothing", remedy="make a new one")
        if spec.digest != self.space.spec.digest:
            actual = f"{spec.label} ({spec.digest}), recorded {self.space.spec.label} ({self.space.spec.digest})"
            raise RunnerError("a recorded space answers for its own spec", actual, "use find_recorded(spec)")
        self.measured += len(schedules)
        return [self._replay(schedule) for schedule in schedules]

    def _replay(self, schedule: Schedule) -> Measurement:
        row = self.space.by_digest.get(schedule.digest)
        if row is None:
            why = f"not in the recorded space of {len(self.space.rows)} schedules ({self.space.source})"
            return Measurement(schedule, "illegal", self._source, message=why, environment=self.space.environment)
        return Measurement(schedule, row.status, self._source, row.samples_us, row.message, row.environment)

    def close(self) -> None:
        self._closed = True


def user_folder() -> Path:
    """Where a user's own recorded spaces are kept."""
    return Path(platformdirs.user_data_dir("tilescale")) / "spaces"


def find_recorded(spec: Spec, folders: Sequence[str | Path] | None = None) -> RecordedSpace | None:
    """The recorded space of `spec`, or None: measured rather than predicted, the user's own rather than the shipped.

    `folders` replaces the user's folder and the one of the package. Raises RunnerError for a file that is damaged.
    """
    places = [Path(folder) for folder in folders] if folders is not None else [user_folder(), SHIPPED]
    for source in RECORDABLE:
        for place in places:
            path = place / f"{spec.op}-{spec.digest}-{source}{SUFFIX}"
            if path.is_file():
                return RecordedSpace.load(path)
    return None


def _version() -> str:
    try:
        return importlib.metadata.version("tilescale")
    except importlib.metadata.PackageNotFoundError:  # run from a source tree
        return "unknown"


def _line(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True, allow_nan=False) + "\n"


def _rounded(samples: Iterable[Iterable[float]]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(round(float(time), _TIME_DIGITS) for time in rank) for rank in samples)


def _load(path: Path) -> RecordedSpace:
    header, body = _read(path)
    if header.get("format") != FORMAT:
        raise RunnerError(f"{path} is a recorded space of format {FORMAT}", header.get("format"), _REMEDY)
    if missing := sorted(_HEADER_KEYS - header.keys()):
        raise RunnerError(f"the header of {path} has all its keys", f"missing {', '.join(missing)}", _REMEDY)
    lines = body.splitlines()
    found = (len(lines), canon.digest_bytes(body))
    if found != (header.get("rows"), header.get("digest")):
        actual = f"{found[0]} rows with digest {found[1]}"
        wanted = f"{header.get('rows')} rows with digest {header.get('digest')}"
        raise RunnerError(f"{path} is whole: its header says {wanted}", actual, _REMEDY)
    return _decode(path, header, lines)


def _read(path: Path) -> tuple[Mapping[str, Any], bytes]:
    try:
        first, _, body = gzip.decompress(path.read_bytes()).partition(b"\n")
        header = json.loads(first)
        if not isinstance(header, dict):
            raise ValueError("its first line is no JSON object")
    except FileNotFoundError:
        raise RunnerError(f"the recorded space {path} exists", "no such file", "name an existing one") from None
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise RunnerError(f"{path} is a recorded space (gzip of JSON lines)", error, _REMEDY) from None
    return header, body


def _decode(path: Path, header: Mapping[str, Any], lines: Sequence[bytes]) -> RecordedSpace:
    known = {f.name for f in fields(Schedule)}
    if unknown := [knob for knob in header["knobs"] if knob not in known]:
        raise RunnerError(f"the knobs of {path} are those of this version", unknown, _REMEDY)
    source = str(header["source"])
    environment = tuple(sorted((str(k), str(v)) for k, v in header["environment"].items()))
    try:
        spec = canon.decode(Spec, header["spec"])
        rows = tuple(_row(line, header["knobs"], source, environment) for line in lines)
        space = RecordedSpace(spec, source, environment, header["created"], header["version"], rows)
    except (TilescaleError, TypeError, ValueError) as error:
        raise RunnerError(f"{path} holds a spec and measurements", error, _REMEDY) from None
    if spec.digest != header["spec_digest"]:
        actual = f"{spec.digest}, recorded as {header['spec_digest']}"
        raise RunnerError(f"the spec in {path} has its digest", actual, _REMEDY)
    return space


def _row(line: bytes, knobs: Sequence[str], source: str, environment: tuple[tuple[str, str], ...]) -> Measurement:
    values, status, samples, message = json.loads(line)
    schedule = Schedule(**dict(zip(knobs, values, strict=True)))
    return Measurement(
        schedule, status, source, tuple(tuple(map(float, rank)) for rank in samples), message, environment
    )
