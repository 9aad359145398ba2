"""The table of the family: op by transport by algorithm by overlap: feasible, proved, emulated, measured, shapes tried.

    python benchmarks/family_table.py [--db perf.db] [--worlds 2,3,4,8] [--op shift] [--seconds 65] [-o docs/ops/table.md]

What is counted, so that the table takes some ten minutes on two cores: *feasible* is the number of schedules in the whole
spaces of the sample's workloads (a small one of each kind on every world, a large one on one); *proved* is one schedule of
each direction and number of chunks in flight, of every row, at all of these; *emulated* is, at the small size, one schedule
of each direction on the smallest world and one on each other. An operation gets so many `--seconds`: what of its sample did
not come to its turn is counted as left out. *Measured* counts rows of the committed results and trials of a database, by
source. Shapes are those of all of them. A file beside the page holds the same as JSON; it is written whenever an operation
is finished, and a second run of the same sources on the same worlds goes on with those that are missing.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import common
from family_sample import WORKLOADS, specs

from tilescale.runtime.emulate import emulate
from tilescale.schedules.algorithms import ALGORITHMS
from tilescale.schedules.lower import lower
from tilescale.schedules.proof_cache import ProofCache
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import Space
from tilescale.schedules.verify import verify
from tilescale.spec.op import Spec
from tilescale.spec.operation import OPERATIONS

DEFAULT = Path(__file__).parents[1] / "docs" / "ops" / "table.md"
RESULTS = Path(__file__).parent / "results"
WORLDS = (2, 3, 4, 8)
LARGE = 4  # ranks of large workloads, where the table has that world
SECONDS, JOBS = 65.0, 2
NAMES = ("op", "transport", "algorithm", "overlap")
Key = tuple[str, str, str, str]
Job = Callable[[], None]


@dataclass
class Row:
    """One line. `verified` and `emulated`: how many were tried, `proved` and `right`: of these, `left_out`: how many were
    not; `shapes` by number of elements."""

    feasible: int = 0
    proved: int = 0
    verified: int = 0
    right: int = 0
    emulated: int = 0
    left_out: int = 0
    measured: dict[str, int] = field(default_factory=dict)
    shapes: dict[int, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def tried(self, shape: str) -> None:
        self.shapes[prod(int(size) for size in shape.replace("<=", "").split("x") if size.isdigit())] = shape

    @property
    def extremes(self) -> tuple[str, str]:
        return (self.shapes[min(self.shapes)], self.shapes[max(self.shapes)]) if self.shapes else ("", "")


Rows = dict[Key, Row]


def key_of(op: str, transport: str, algorithm: str, overlap: str, compute: str) -> Key:
    return (op, transport, algorithm, overlap) if OPERATIONS[op].moves else (op, "-", "-", compute)


def _key(op: str, schedule: Schedule) -> Key:
    return key_of(op, schedule.transport, schedule.algorithm, schedule.overlap, schedule.compute)


# -- counting ----------------------------------------------------------------------------------------------------------
class Count:
    """Spaces, proofs and emulations of one operation."""

    def __init__(self, op: str, worlds: tuple[int, ...]) -> None:
        self.op, self.worlds, self.rows = op, worlds, Rows()
        self._cache, self._emulated = ProofCache(), 0

    def sample(self, spec: Spec) -> dict[tuple[Any, ...], Schedule]:
        """Count a space; the first schedule of each row, direction and number of chunks in flight."""
        found: dict[tuple[Any, ...], Schedule] = {}
        shape = spec.mnk if spec.operation.compute == "gemm" else spec.inputs[0].shape
        for schedule in Space(spec):
            key = _key(self.op, schedule)
            row = self.rows.setdefault(key, Row())
            row.feasible += 1
            row.tried("x".join(map(str, shape)))
            found.setdefault((key, schedule.direction, schedule.depth > 1), schedule)
        return found

    def jobs(self) -> Iterator[tuple[Row, Job]]:
        """What is done with the sample: the cheapest first, and what shows most of a row."""
        small = [(spec, self.sample(spec)) for spec in specs(self.op, self.worlds, large=False)]
        one = (LARGE,) if LARGE in self.worlds else (max(self.worlds),)
        large = [(spec, self.sample(spec)) for spec in specs(self.op, one, large=True)]
        made = [spec.world for spec, _ in small]  # block matrices have no mesh on some
        least, most = min(made), max(made)
        by_world = sorted(small, key=lambda each: (each[0].world != least, each[0].world != most, each[0].world))
        yield from self._proofs(small)
        yield from self._emulations(by_world[:1], every_direction=True)
        yield from self._proofs(large)
        yield from self._emulations([each for each in by_world[1:] if each[0].world == least], every_direction=True)
        yield from self._emulations([each for each in by_world if each[0].world != least], every_direction=False)

    def _proofs(self, sampled: Sequence[tuple[Spec, dict[tuple[Any, ...], Schedule]]]) -> Iterator[tuple[Row, Job]]:
        for spec, found in sampled:
            for (key, _, _), schedule in found.items():
                row = self.rows[key]
                yield row, lambda row=row, spec=spec, schedule=schedule: self.prove(row, spec, schedule)  # type: ignore[misc]

    def _emulations(self, sampled: Sequence[tuple[Spec, dict[tuple[Any, ...], Schedule]]], every_direction: bool
                    ) -> Iterator[tuple[Row, Job]]:
        for number, (spec, found) in enumerate(sampled):
            by_key: dict[Key, dict[str, Schedule]] = {}
            for (key, direction, _), schedule in found.items():
                by_key.setdefault(key, {}).setdefault(direction, schedule)
            for key, directions in by_key.items():
                taken = list(directions.values())
                for schedule in taken if every_direction else [taken[number % len(taken)]]:
                    row = self.rows[key]
                    yield row, lambda row=row, spec=spec, schedule=schedule: self.run(row, spec, schedule)  # type: ignore[misc]

    def prove(self, row: Row, spec: Spec, schedule: Schedule) -> None:
        proof = verify(lower(spec, schedule), cache=self._cache)
        row.verified += 1
        row.proved += proof.ok
        if not proof.ok:
            row.failures.append(f"{spec.label} {schedule.label}: {proof}")

    def run(self, row: Row, spec: Spec, schedule: Schedule) -> None:
        self._emulated += 1
        found = emulate(spec, schedule, seed=self._emulated)
        row.emulated += 1
        row.right += found.ok
        if not found.ok:
            row.failures.append(found.report)


def count(op: str, worlds: tuple[int, ...], seconds: float) -> tuple[str, list[dict[str, Any]]]:
    """The operation, and its rows as they are written."""
    end, counted = time.monotonic() + seconds, Count(op, worlds)
    for row, job in counted.jobs():
        if time.monotonic() < end:
            job()
        else:
            row.left_out += 1
    return op, [{"key": list(key), **asdict(row)} for key, row in sorted(counted.rows.items())]


# -- measured ----------------------------------------------------------------------------------------------------------
SQL = """
select workload.op, workload.shape, schedule.document, trial.source, count(*)
from trial join workload on workload.id = trial.workload_id join schedule on schedule.id = trial.schedule_id
where trial.status = 'ok' group by workload.op, workload.shape, schedule.id, trial.source
order by workload.op, workload.shape, schedule.id, trial.source
"""


def in_database(url: str) -> Iterator[tuple[Key, str, str, int]]:
    """Row, shape, source and number of the trials of a database that ended well."""
    from perfdb import open_database

    with open_database(url, create=False) as database:
        found = database.rows(SQL)
    for op, shape, document, source, trials in found:
        if op in OPERATIONS:
            yield _key(op, Schedule.from_dict(json.loads(document))), shape, source, trials


def in_results(folder: Path) -> Iterator[tuple[Key, str, str, int]]:
    """The same of the rows of result files: what was timed beside a peer, and what was right in the check on a GPU."""
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text())
        rows = result.get("rows")
        for row in rows if isinstance(rows, list) else ():
            source = row.get("source", f"measured_{row['topology']}" if "topology" in row else "measured")
            right = "ratio" in row or (row.get("small"), row.get("whole")) == ("ok", "ok")
            if right and "schedule" in row and "layer" in row:
                yield _of_label("gemm", row["schedule"]), "x".join(str(row[name]) for name in "mnk"), source, 1
            elif right and "schedule" in row and "workload" in row:
                yield from _named(row["workload"], row["schedule"], source)
        for found in result.get("parts", {}).get("tune", {}).get("workloads", {}).values():
            if found.get("raced_us"):
                yield from _named(found["label"], found["raced"], result["source"])


def _named(workload: str, schedule: str, source: str) -> Iterator[tuple[Key, str, str, int]]:
    """By the label of a declaration: op, with epilogues, and shape."""
    name, shape = workload.split()[:2]
    op = name.split("+")[0]
    if op in OPERATIONS:
        yield _of_label(op, schedule), shape, source, 1


def _of_label(op: str, label: str) -> Key:
    """By the label of a schedule: transport, direction, algorithm where it is not the first, overlap, compute."""
    transport, _, *rest = label.split()
    algorithm = rest.pop(0) if rest[0] in ALGORITHMS else "direct"
    return key_of(op, transport, algorithm, rest[0], rest[1])


# -- writing -----------------------------------------------------------------------------------------------------------
def rows_of(done: dict[str, list[dict[str, Any]]], measured: Sequence[tuple[Key, str, str, int]]) -> Rows:
    rows: Rows = {}
    for written in done.values():
        for each in written:
            values = {name: value for name, value in each.items() if name not in ("key", "measured")}
            shapes = {int(size): shape for size, shape in values.pop("shapes").items()}
            rows[tuple(each["key"])] = Row(**values, shapes=shapes)  # type: ignore[index]
    for key, shape, source, number in measured:
        row = rows.get(key)
        if row is not None:  # of an operation that was asked for
            row.measured[source] = row.measured.get(source, 0) + number
            row.tried(shape)
    return rows


def markdown(rows: Rows, result: dict[str, Any]) -> str:
    head = [*NAMES, "feasible", "proved", "emulated right", "left out", "measured", "smallest", "largest"]
    worlds = ", ".join(map(str, result["worlds"]))
    lines = [
        "# The family of operations", "", f"Made by `{result['command']}`; version {result['version']}.", "",
        f"Sample: small workloads on worlds {worlds} of the scale model, large ones on one. Feasible: schedules of the",
        "whole spaces. Proved: one of each direction and depth. Emulated: at the small size, one of each direction on the",
        "smallest world, one on each other. Left out: of both, what had no time. Measured: rows of the committed results",
        "and trials of a database, by source. A local product has its kind of product where others have an overlap.",
        "Operations without a row have no kernels, or were not asked for.", "",
        "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for key, row in sorted(rows.items()):
        sources = ", ".join(f"{source} {trials}" for source, trials in sorted(row.measured.items())) or "-"
        cells = [*key, str(row.feasible), f"{row.proved} of {row.verified}", f"{row.right} of {row.emulated}",
                 str(row.left_out), sources, *row.extremes]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


class Page:
    """The page and the file beside it, which also holds the operations that are done."""

    def __init__(self, path: Path, worlds: tuple[int, ...], measured: Sequence[tuple[Key, str, str, int]]) -> None:
        self._path, self._json, self._measured = path, path.with_suffix(".json"), measured
        self._head = common.header("family_table") | {"worlds": list(worlds)}
        before = json.loads(self._json.read_text()) if self._json.exists() else {}
        same = all(before.get(name) == self._head[name] for name in ("version", "worlds"))
        self.done: dict[str, list[dict[str, Any]]] = dict(before.get("done", {})) if same else {}

    def add(self, op: str, found: list[dict[str, Any]]) -> None:
        self.done[op] = json.loads(json.dumps(found))  # as it will be read
        self.write()

    def write(self) -> Rows:
        rows = rows_of(self.done, self._measured)
        shown = [dict(zip(NAMES, key, strict=True)) | {
            "feasible": row.feasible, "verified": row.verified, "proved": row.proved, "emulated": row.emulated,
            "emulated_right": row.right, "left_out": row.left_out, "measured": row.measured, "smallest": row.extremes[0],
            "largest": row.extremes[1], "failures": row.failures} for key, row in sorted(rows.items())]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(markdown(rows, self._head))
        text = json.dumps({**self._head, "rows": shown, "done": self.done}, sort_keys=True, indent=1)
        self._json.write_text(text + "\n")
        return rows


def counted(ops: Sequence[str], worlds: tuple[int, ...], seconds: float, jobs: int
            ) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Every operation when it is finished."""
    if jobs == 1 or len(ops) < 2:
        yield from (count(op, worlds, seconds) for op in ops)
        return
    with ProcessPoolExecutor(jobs) as pool:
        for future in as_completed([pool.submit(count, op, worlds, seconds) for op in ops]):
            yield future.result()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=DEFAULT)
    parser.add_argument("--db", help="a database of measurements: a file or a URL")
    parser.add_argument("--worlds", default=",".join(map(str, WORLDS)))
    parser.add_argument("--op", action="append", choices=sorted(WORKLOADS), help="these alone; may be repeated")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="no proof or emulation of an op begins later")
    parser.add_argument("--jobs", type=int, default=JOBS, help="operations side by side")
    given = parser.parse_args()
    worlds = tuple(int(word) for word in given.worlds.split(","))
    page = Page(given.output, worlds, [*in_results(RESULTS), *(in_database(given.db) if given.db else ())])
    todo = [op for op in given.op or sorted(WORKLOADS) if op not in page.done]
    for op, found in counted(todo, worlds, given.seconds, given.jobs):
        page.add(op, found)
        print(f"{op}: {len(found)} rows, {sum(row['left_out'] for row in found)} left out", file=sys.stderr, flush=True)
    rows = page.write()
    failed = [failure for row in rows.values() for failure in row.failures]
    print("\n".join(failed) or f"{len(rows)} rows, all of the sample that was tried is proved and right")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
