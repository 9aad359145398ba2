"""How fast and how safe the database is at a million trials: `make bench-perfdb`. The last line is one JSON object.

SQLite's figures have plain keys, PostgreSQL's end in `_pg`; its server is started here, with durable commits.

exact_p99_ms: `perfdb.exact` of random keys. top10_p99_ms: `perfdb.top` of a random op, shape and GPU.
regressions_s: `perfdb.regressions` over 30 days, the slowest of three. full_scans: tables of 50 rows and more that a
shipped query reads through (`perfdb.auditing`). rows_per_s_8: trials with samples a second by 8 writer processes,
`BATCH` a commit, each commit on the disk. errors_32: exceptions in 32 writer
processes that commit each trial. lost_rows: trials that `record` had returned for and that are not there after kill -9
at 100 random moments, plus whatever `perfdb check` finds.

What happens is said as it does; `-o FILE` keeps the figures after each engine, with what else was seen and the load of
the machine. The whole run ends after `--limit-s` at the latest.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import common
import filling

import perfdb
from perfdb import auditing
from perfdb.checking import check_database
from perfdb.comparing import compare
from perfdb.exploring import nearest_workloads, predictions, recommendations, training
from perfdb.regressions import regressions
from tests.perfdb import postgres_server

ASKED = 5000
BATCH = 100
LIMIT_S = 1800
UNTIL = filling.START + timedelta(days=filling.DAYS)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def p99_ms(ask: Callable[[int], object], count: int = ASKED) -> tuple[float, float]:
    """The median and the 99th percentile of `count` questions, after a tenth of them to warm up."""
    for number in range(count // 10):
        ask(number)
    times = []
    for number in range(count):
        started = time.perf_counter()
        ask(number)
        times.append(time.perf_counter() - started)
    times.sort()
    return 1e3 * times[len(times) // 2], 1e3 * times[int(0.99 * len(times))]


def look_ups(db: perfdb.Database, plan: filling.Plan) -> tuple[dict[str, float], dict[str, float]]:
    """The figures, and the medians beside them."""
    chance = random.Random(5)
    keys = []
    for _ in range(ASKED):
        machine, day = chance.randrange(len(filling.GPUS)), chance.randrange(filling.DAYS)
        pick = chance.randrange(8 if chance.random() < 0.5 else filling.SCHEDULES)
        place, work = filling.environment(machine, day), filling.workload(chance.randrange(plan.workloads))
        keys.append((work, filling.TOPOLOGY, place, filling.schedule(pick)))
    hits = sum(perfdb.exact(db, *key) is not None for key in keys)
    usual, exact = p99_ms(lambda n: perfdb.exact(db, *keys[n]))
    say(f"  exact: median {usual:.3f} ms, p99 {exact:.3f} ms, {hits} of {ASKED} keys stored")
    median, top = p99_ms(lambda n: perfdb.top(db, op=keys[n][0].op, shape=keys[n][0].shape, gpu=keys[n][2].gpu))
    say(f"  top 10: median {median:.3f} ms, p99 {top:.3f} ms")
    slowest, frames = 0.0, 0
    for _ in range(3):
        started = time.perf_counter()
        frames = regressions(db, until=UNTIL).attrs["series"]
        slowest = max(slowest, time.perf_counter() - started)
    say(f"  regressions of 30 days over {frames} series: {slowest:.2f} s")
    medians = {"exact_median_ms": round(usual, 4), "top10_median_ms": round(median, 4)}
    figures = {"exact_p99_ms": round(exact, 4), "top10_p99_ms": round(top, 4), "regressions_s": round(slowest, 3)}
    return figures, medians


def full_scans(db: perfdb.Database) -> int:
    """Ask everything that is shipped and read the plans."""
    work, place, schedule = filling.workload(3), filling.environment(0, 70), filling.schedule(2)
    with auditing.statements(db) as sent:
        perfdb.exact(db, work, filling.TOPOLOGY, place, schedule)
        perfdb.exact(db, work, filling.TOPOLOGY, replace(place, driver="1"), schedule, include_stale=True)
        perfdb.explain_miss(db, work, filling.TOPOLOGY, replace(place, driver="1"), schedule)
        perfdb.known(db, work, filling.TOPOLOGY, place)
        perfdb.best(db, op=work.op, shape=work.shape, gpu="H200")
        perfdb.history(db, op=work.op, shape=work.shape, gpu="H200")
        perfdb.history(db, since=UNTIL - timedelta(days=2))
        perfdb.history(db, schedule=schedule, workload=work)
        perfdb.failures(db, op=work.op, shape=work.shape)
        perfdb.trials(db, workload=work, environment=place)
        perfdb.trials(db, session_id=1_000_000)
        perfdb.samples(db, 77)
        nearest_workloads(db, op=work.op, shape=work.shape)
        training(db, op="none")
        predictions(db, op=work.op)
        recommendations(db, op=work.op)
        compare(db, {"driver": "580"}, {"driver": "590"}, op=work.op, shape=work.shape)
        compare(db, {"commit": "r1"}, {"commit": "r2"}, op=work.op, shape=work.shape)
        regressions(db, until=UNTIL)
        regressions(db, until=UNTIL, days=3, policy=f"schedule:{schedule.digest}")
    found = auditing.full_scans(db, sent)
    for line, sql in found:
        say(f"  full scan: {line} in {' '.join(sql.split())[:150]}")
    say(f"  {len({one.sql for one in sent})} statements, {len(found)} full scans")
    return len(found)


def writers(url: str, count: int, work: Callable[[perfdb.Database, int], int]) -> tuple[float, int, int]:
    """(seconds, rows, errors) of `count` processes that start together; opening the database is not counted."""
    ready, go = os.pipe(), os.pipe()
    out = os.pipe()
    children = []
    for number in range(count):
        child = os.fork()
        if child == 0:
            rows, failed = 0, 1
            try:
                with perfdb.open_database(url) as db:
                    os.write(ready[1], b".")
                    os.read(go[0], 1)
                    rows = work(db, number)
                    failed = 0
            finally:
                if failed and not rows:
                    os.write(ready[1], b".")  # one that never got ready must not keep the others waiting
                os.write(out[1], f"{rows} {failed}\n".encode())
                os._exit(failed)
        children.append(child)
    for _ in range(count):
        os.read(ready[0], 1)
    started = time.perf_counter()
    os.write(go[1], b"." * count)
    for child in children:
        os.waitpid(child, 0)
    seconds = time.perf_counter() - started
    said = os.read(out[0], 1 << 16).decode().split("\n")[:-1]
    for end in (*ready, *go, *out):
        os.close(end)
    pairs = [tuple(map(int, line.split())) for line in said]
    return seconds, sum(rows for rows, _ in pairs), count - sum(failed == 0 for _, failed in pairs)


def trial(writer: int, number: int, session: int | None = None) -> perfdb.TrialRecord:
    """A trial that no other writer stores."""
    samples = tuple(50.0 + (number * step) % 64 / 16 for step in range(filling.SAMPLES))
    return perfdb.TrialRecord(
        filling.workload(writer),
        filling.TOPOLOGY,
        filling.environment(writer % 4, 70),
        filling.schedule(number % filling.SCHEDULES),
        "measured",
        "ok",
        50.0 + number % 100,
        samples_us=(samples, samples),
        session_id=session,
    )


def rate(url: str, count: int, rows: int, batch: int) -> tuple[float, int]:
    """(rows a second, errors) of `count` writers, `rows` each, `batch` a commit."""

    def work(db: perfdb.Database, number: int) -> int:
        for begin in range(0, rows, batch):
            db.record_many([trial(number, begin + at) for at in range(batch)])
        return rows

    seconds, stored, errors = writers(url, count, work)
    say(f"  {count} writers, {batch} a commit: {stored / seconds:.0f} rows/s, {errors} errors")
    return stored / seconds, errors


def killed(url: str, times: int = 100) -> int:
    """Rows lost by kill -9 at random moments, and problems that `perfdb check` finds afterwards."""
    chance = random.Random(7)
    promised: set[int] = set()
    for number in range(times):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            with perfdb.open_database(url) as db:
                at = 0
                while True:
                    os.write(write, f"{db.record(trial(number % 50, at))}\n".encode())
                    at += 1
        os.close(write)
        output = b""
        # A tenth of them is struck while it opens the database, the others while they write.
        if number % 10:
            if not select.select([read], [], [], 60)[0]:
                raise RuntimeError("the writer stands still")
            output = os.read(read, 65536)
        time.sleep(chance.uniform(0, 0.05))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while data := os.read(read, 65536):
            output += data
        os.close(read)
        promised |= {int(line) for line in output.split(b"\n")[:-1]}
    with perfdb.open_database(url) as db:
        there = {int(row[0]) for row in db.rows("SELECT id FROM trial")}
        whole = {int(row[0]) for row in db.rows("SELECT trial_id FROM samples GROUP BY trial_id HAVING count(*) = 2")}
    report = check_database(url)
    lost = len(promised - (there & whole))
    say(f"  kill -9, {times} times: {len(promised)} rows promised, {lost} lost, {report.lines[0]}")
    return lost + len(report.problems)


def measure(
    url: str, empty: Callable[[str], str], plan: filling.Plan
) -> tuple[dict[str, float], dict[str, float | str]]:
    """All figures of one engine, and what else was seen. `empty(name)` gives the URL of a new database."""
    with perfdb.open_database(url) as db:
        small = _insert_us(db)
        started = time.perf_counter()
        count = filling.fill(db, plan, lambda day, rows: say(f"  night {day + 1} of {filling.DAYS}: {rows} trials"))
        seconds = time.perf_counter() - started
        say(f"  {count} trials with samples stored in {seconds:.0f} s, {count / seconds:.0f} rows/s by one writer")
        if db.path is None:
            with db.write() as connection:
                connection.exec_driver_sql("ANALYZE")
        result, medians = look_ups(db, plan)
        result["full_scans"] = full_scans(db)
        large = _insert_us(db)
        (version,) = db.rows("SELECT sqlite_version()" if db.path else "SELECT current_setting('server_version')")
    say(f"  an insert: {small:.0f} us into an empty database, {large:.0f} us at {count} trials")
    result["rows_per_s_8"] = round(rate(url, 8, 4000, BATCH)[0])
    single = rate(url, 8, 400, 1)[0]
    result["errors_32"] = rate(empty("writers"), 32, 60, 1)[1]
    result["lost_rows"] = killed(empty("killed"))
    seen: dict[str, float | str] = {
        **medians,
        "trials": count,
        "fill_rows_per_s": round(count / seconds),
        "insert_us_empty": round(small),
        "insert_us_full": round(large),
        "rows_per_s_8_one_a_commit": round(single),
        "engine_version": str(version[0]),
    }
    return result, seen


def _insert_us(db: perfdb.Database) -> float:
    """The median time to record one trial, of 300."""
    times = []
    for number in range(300):
        record = trial(60, number)
        started = time.perf_counter()
        db.record(record)
        times.append(time.perf_counter() - started)
    return 1e6 * sorted(times)[len(times) // 2]


def keep(output: Path | None, line: dict[str, float], seen: dict[str, object]) -> None:
    if output is not None:
        loads = [round(load, 1) for load in os.getloadavg()]
        found = {**common.header("perfdb"), "cpus": os.cpu_count(), "loads": loads, "figures": line, "seen": seen}
        output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def late(*_: object) -> None:
    raise TimeoutError("the benchmark took longer than --limit-s")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1_000_000)
    parser.add_argument("--engine", choices=("sqlite", "postgresql", "both"), default="both")
    parser.add_argument("--limit-s", type=int, default=LIMIT_S)
    parser.add_argument("-o", "--output", type=Path)
    chosen = parser.parse_args(arguments)
    signal.signal(signal.SIGALRM, late)
    signal.alarm(chosen.limit_s)
    started = time.perf_counter()
    plan = filling.Plan(chosen.trials)
    with ExitStack() as stack:
        line: dict[str, float] = {}
        seen: dict[str, object] = {}
        if chosen.engine != "postgresql":
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-perfdb-")))
            say("SQLite")
            found, seen["sqlite"] = measure(str(folder / "perf.db"), lambda name: str(folder / f"{name}.db"), plan)
            line |= found
            keep(chosen.output, line, seen)
        if chosen.engine != "sqlite":
            server = stack.enter_context(postgres_server.server(durable=True))
            say("PostgreSQL")
            url = postgres_server.make_database(server, "perf")
            found, seen["postgresql"] = measure(url, lambda name: postgres_server.make_database(server, name), plan)
            line |= {f"{name}_pg": value for name, value in found.items()}
            keep(chosen.output, line, seen)
    say(f"{time.perf_counter() - started:.0f} s in all")
    print(json.dumps(line))


if __name__ == "__main__":
    main()
