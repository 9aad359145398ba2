"""The text that nccl-tests (all_reduce_perf and the like) prints: a row a size, out of place and in place."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from perfdb.errors import RecordError
from perfdb.importing import Facts, Imported, digest
from perfdb.records import ScheduleKey, TopologyKey, TrialRecord, WorkloadKey

_RANK = re.compile(r"#\s+Rank\s+(\d+)\s.*?device\s+\d+\s+\[[^\]]*\]\s+(.+?)\s*$")
_STARTING = re.compile(r"#\s*Collective test starting:\s*(\w+?)(?:_perf)?\s*$")
_VERSION = re.compile(r"nccl-library=(\d+)|NCCL version (\d+\.\d+(?:\.\d+)?)")
_PROGRAM = re.compile(r"\b(\w+)_perf\b")
_DTYPES = {
    "float": "float32",
    "half": "float16",
    "double": "float64",
    "bfloat16": "bfloat16",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
}
# size, count, type, redop, root, then time, algbw, busbw, #wrong, twice.
_CELLS = 13


@dataclass(frozen=True)
class NcclTests:
    """The importer; see the module."""

    name: str = "nccl_tests"

    def fits(self, path: Path, head: bytes) -> bool:
        """See importing.Importer."""
        return b"nThread" in head and b"minBytes" in head

    def read(self, path: Path, facts: Facts) -> Imported:
        """See importing.Importer."""
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
            when = datetime.fromtimestamp(int(path.stat().st_mtime), UTC)
        except OSError as error:
            raise _bad(path, error.strerror) from error
        # A run over several hosts prints the ranks of each: every line of the table of devices is a rank.
        gpus = [found.group(2) for found in map(_RANK.match, text.splitlines()) if found]
        op = facts.op or _op(text)
        if op is None:
            raise RecordError(
                "an import knows its operation", f"{path} does not name it", "give --op all_reduce, all_gather, ..."
            )
        if not gpus:
            raise _bad(path, "no line '# Rank ...'")
        if len(set(gpus)) > 1 and "gpu" not in facts.environment:
            raise _bad(path, f"several GPU models: {', '.join(sorted(set(gpus)))}")
        rows, skipped = _rows(path, text)
        environment = facts.environment_key(gpu=gpus[0], gpu_count=len(gpus), nccl=_nccl(text))
        topology = TopologyKey(
            digest(["nccl-tests", environment.gpu, len(gpus)]),
            f"{len(gpus)}x{environment.gpu}",
            "real",
            len(gpus),
            gpus[0],
        )
        trials = []
        for count, dtype, redop, root, place, time_us, wrong in rows:
            document = {"op": op, "count": count, "dtype": dtype, "redop": redop, "root": root, "ranks": len(gpus)}
            workload = WorkloadKey(
                digest(document), op, str(count), dtype, len(gpus), f"{op} {count} {dtype} w{len(gpus)}"
            )
            knobs = {"library": "nccl", "place": place}
            schedule = ScheduleKey(digest(knobs), f"nccl {place.replace('_', ' ')}", _text(knobs))
            good = wrong == 0
            trials.append(
                TrialRecord(
                    workload,
                    topology,
                    environment,
                    schedule,
                    "measured",
                    "ok" if good else "wrong_result",
                    time_us if good else None,
                    message="" if good else f"nccl-tests counted {wrong} wrong elements",
                    recorded_at=when,
                )
            )
        return Imported(tuple(trials), notes=(f"{skipped} rows without a time left out",) if skipped else ())


def _bad(path: Path, actual: object) -> RecordError:
    return RecordError("the file is the output of a program of nccl-tests", f"{path}: {actual}", "nothing was stored")


def _text(knobs: dict[str, str]) -> str:
    import json

    return json.dumps(knobs, sort_keys=True, separators=(",", ":"))


def _op(text: str) -> str | None:
    for line in text.splitlines():
        found = _STARTING.match(line)
        if found:
            return found.group(1)
    found = _PROGRAM.search(text)
    return found.group(1) if found else None


def _nccl(text: str) -> str:
    found = _VERSION.search(text)
    if found is None:
        return ""
    if found.group(2):
        return found.group(2)
    code = int(found.group(1))
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}"


def _rows(path: Path, text: str) -> tuple[list[tuple[int, str, str, str, str, float, int]], int]:
    """(count, dtype, redop, root, place, time in us, wrong elements) of each half row."""
    rows, skipped = [], 0
    for line in text.splitlines():
        # mpirun may put `[1,0]<stdout>:` before each line.
        cells = re.sub(r"^\[\d+,\d+\]<\w+>:", "", line).split()
        if len(cells) != _CELLS or not cells[0].isdigit() or not cells[1].isdigit():
            continue
        dtype = _DTYPES.get(cells[2], cells[2])
        for place, at in (("out_of_place", 5), ("in_place", 9)):
            try:
                time_us = float(cells[at])
                wrong = 0 if cells[at + 3] == "N/A" else int(float(cells[at + 3]))
            except ValueError:
                skipped += 1
                continue
            if time_us <= 0 or int(cells[1]) == 0:
                skipped += 1
                continue
            rows.append((int(cells[1]), dtype, cells[3], cells[4], place, time_us, wrong))
    if not rows:
        raise _bad(path, "no row of the table")
    return rows, skipped


IMPORTER = NcclTests()
