"""The same bits in every call, and sums that are rounded once, on ranks that share a GPU.

    python benchmarks/repeat_check.py [-o benchmarks/results/repeat_check.json] [--ranks 4 8] [--only WORDS] [--most N]

Of every operation that sums, of ag_gemm and of moe_gemm_combine, all declared `deterministic`, some kinds of schedules are
each called CALLS times on each of two sets of random numbers, in turn, while ranks are held for as long as chance says, so
that data arrives in another order in every call. Every byte of every output is compared with that of the first call; that
the comparison sees a difference is shown by the outputs of the other set. Where ranks add numbers up, these are chosen so
that float32 holds every sum exactly, in whatever order: then the output must be the exact sum, rounded once. `would_show`
says how many elements are others where each addend is rounded as it is added. Rows are written as they come, and a second
run of the same sources goes on. Exit 1 where a row is wrong, or cannot tell.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import common
from hardware_check import kind, pool, spread
from written import Row, Written

import tilescale as ts
from tilescale.runtime.gpu_check import EXACT_CALL, TIMED_CALLS, TorchArrays, Workload
from tilescale.runtime.gpu_contestant import ProgramContestant
from tilescale.runtime.gpu_job import Race
from tilescale.runtime.gpu_rank import GpuRank
from tilescale.runtime.gpu_routed import workload
from tilescale.runtime.gpu_runner import GpuRunner
from tilescale.runtime.rank import RankReport
from tilescale.runtime.reference import add_up
from tilescale.runtime.sampling import Bounds
from tilescale.schedules.ragged import ragged
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import Space
from tilescale.spec.op import Spec
from tilescale.spec.result import kind_of

CALLS = 100
SUMS = ("reduce_scatter", "all_reduce")  # kinds of moves
HELD_CYCLES = 100_000  # at most, before a call: some 50 us
SMALLEST, STEP, LARGEST = 2.0**-8, 2.0**-4, 4.0  # of numbers that are added; of those that are multiplied
FOUND = "repeated"  # a fact of a measurement: what the ranks have found, as JSON
KEYS = ("op", "ranks", "schedule")
LIMIT_S = 85.0


class ExactSums(Workload):
    """Random numbers whose sums over ranks float32 holds: the multiples of 2^-15 up to 64 that addends of at least SMALLEST
    make take 21 bits, products of multiples of STEP fewer."""

    def _numbers(self, local: Any, call: int, generator: Any, device: Any) -> Any:
        numbers = super()._numbers(local, call, generator, device)
        if call == EXACT_CALL:
            return numbers
        if self.multiplies:
            return (numbers / STEP).round().mul_(STEP).clamp_(-LARGEST, LARGEST)
        return numbers.masked_fill(numbers.abs() < SMALLEST, 0.0)

    def rounded_once(self, call: int) -> Any:
        return self.calls[call].expected.values.to(self.calls[call].out.dtype)

    def rounded_often(self, call: int) -> Any:
        """The same with addends and running sums in the type of the output."""
        arrays, total = TorchArrays(self._torch, self._device), None
        for term in self._result.terms:
            alone = dataclasses.replace(self._result, terms=(term,))
            part = add_up(alone, lambda factor: self._load(factor, call), arrays, magnitude=False, spread=False).value
            addend = part.to(self.calls[call].out.dtype)
            total = addend if total is None else total + addend
        return total


class RepeatRank(GpuRank):
    """A rank that calls what it is given again and again, instead of timing it."""

    def _workload(self, race: Race) -> Workload:
        key, device = race.spec.digest, self._device
        if key not in self._work:
            self._work.clear()
            make = ExactSums if adds_up(race.spec) else workload
            self._work[key] = make(device.torch, race.spec, self._context.rank, int(self._settings["seed"]), device.place)
            device.driver.synchronize(device.stream)
        return self._work[key]

    def _run(self, race: Race) -> RankReport:
        work, driver, stream = self._workload(race), self._device.driver, self._device.stream
        (timed,) = self._enter(race, work, {})
        assert isinstance(timed, ProgramContestant)
        self._verified(timed, {})
        started = time.perf_counter()
        found = repeated(self._device.torch, work, timed.enqueue, lambda: driver.synchronize(stream), self._hold(race))
        us = (time.perf_counter() - started) * 1e6 / (CALLS * len(TIMED_CALLS))
        timed.operation.check(stream)
        timed.close()
        each = self._meet(found)
        total = {name: sum(one[name] for one in each) for name in found}
        total["unseen"] = sum(not one["control_bytes"] or not one.get("would_show", 1) for one in each)  # ranks
        return RankReport("ok", (us,), json.dumps({"facts": {FOUND: json.dumps(total)}, "dropped": 0}))

    def _hold(self, race: Race) -> Callable[[], None]:
        """Enqueue what holds this rank back for a while; another while on every rank."""
        chance = random.Random(f"{race.digest} {self._context.rank}")
        return lambda: self.sleep(chance.randrange(HELD_CYCLES))

    def sleep(self, cycles: int) -> None:
        self._device.torch.cuda._sleep(cycles)


def repeated(torch: Any, work: Workload, enqueue: Callable[[int], None], finish: Callable[[], None],
             hold: Callable[[], None]) -> dict[str, int]:
    """What CALLS calls on each set of numbers give on this rank, in bytes and elements.

    `enqueue(call)`: that call, `finish()`: wait for what was enqueued, `hold()`: enqueue a wait.
    """
    outs = {call: [work.calls[call].out, *(out for _, out, _ in work.calls[call].beside)] for call in TIMED_CALLS}
    first: dict[int, list[Any]] = {}
    different = 0
    for _ in range(CALLS):
        work.poison()
        hold()
        for call in TIMED_CALLS:  # one right behind the other
            enqueue(call)
        finish()
        for call in TIMED_CALLS:
            seen = [out.clone() for out in outs[call]]
            different += sum(_differ(torch, *pair) for pair in zip(seen, first.setdefault(call, seen), strict=True))
    one, other = (first[call] for call in TIMED_CALLS)
    found = {"bytes": sum(out.numel() * out.element_size() for out in one), "different_bytes": different,
             "control_bytes": sum(_differ(torch, *pair) for pair in zip(one, other, strict=True))}
    if isinstance(work, ExactSums):
        once = work.rounded_once(TIMED_CALLS[0])
        found["elements"] = once.numel()
        found["not_rounded_once"] = int((one[0] != once).sum())
        if work.multiplies or work.spec.world > 2:  # a sum of two numbers is rounded once however it is made
            found["would_show"] = int((work.rounded_often(TIMED_CALLS[0]) != once).sum())
    return found


def _differ(torch: Any, one: Any, other: Any) -> int:
    return int((one.view(torch.uint8) != other.view(torch.uint8)).sum())


def adds_up(spec: Spec) -> bool:
    """Whether an output is a sum over all ranks."""
    return not ragged(spec) and kind_of(spec) in SUMS


def specs(topology: ts.Topology) -> list[Spec]:
    """One declaration of each operation."""
    made = {"topology": topology, "deterministic": True}
    a, b = ts.Tensor((512, 2048), "bfloat16", ts.FullCol), ts.Tensor((2048, 1024), "bfloat16", ts.FullRow)
    tokens, top_k = 32 * topology.ranks, 2
    rows = ts.Tensor((topology.ranks * tokens * top_k, 512), "bfloat16", ts.FullRow)
    experts = ts.Tensor((2 * topology.ranks, 512, 512), "bfloat16", ts.FullRow)
    return [
        ts.redistribute(ts.Tensor((256, 8192), "bfloat16", ts.Partial), ts.FullRow, **made),
        ts.redistribute(ts.Tensor((64, 8192), "bfloat16", ts.Partial), ts.Replicate, **made),
        ts.matmul(a, b, out=ts.FullRow, **made),
        ts.matmul(a, b, out=ts.Replicate, **made),
        ts.matmul(ts.Tensor((512, 1024), "bfloat16", ts.FullRow), ts.Tensor((1024, 2048), "bfloat16", ts.FullCol),
                  out=ts.FullCol, **made),
        ts.moe_gemm_combine(rows, experts, tokens, top_k, **made),
    ]


def chosen(spec: Spec, most: int) -> list[Schedule]:
    """At most so many kinds of generated schedules, evenly from all of them; 0: all. The middle one of each."""
    kinds: dict[tuple[str, ...], list[Schedule]] = {}
    for each in Space(spec).without_multicast:
        if each.compute == "generated":
            kinds.setdefault(kind(each), []).append(each)
    return [found[len(found) // 2] for _, found in spread(sorted(kinds.items()), most)]


def right(row: Row) -> bool:
    """Whether every call gave the same bits and sums are rounded once, and both would have been seen otherwise."""
    return not row.get("error") and not row["different_bytes"] and not row.get("not_rounded_once") and not row["unseen"]


def counts(rows: Sequence[Row]) -> dict[str, Any]:
    return {"rows_right": sum(map(right, rows)), "rows_in_all": len(rows),
            "ops": {f"{op} ranks={ranks}": sum((row["op"], row["ranks"]) == (op, ranks) for row in rows)
                    for op, ranks in dict.fromkeys((row["op"], row["ranks"]) for row in rows)}}


def measured(runner: GpuRunner, spec: Spec, schedule: Schedule) -> Row:
    row: Row = {"op": spec.op, "ranks": spec.world, "workload": spec.label, "schedule": schedule.label, "calls": CALLS}
    (found,) = runner.measure(spec, [schedule])
    if not found.ok:
        return {**row, "error": f"{found.status}: {found.message}"[:300]}
    return {**row, "source": found.source, **json.loads(dict(found.environment)[FOUND])}


def run(given: argparse.Namespace, path: Path) -> list[Row]:
    """The rows of these sources, new and kept."""
    began = time.monotonic()
    head = {**common.header("repeat_check"), "calls": CALLS}
    table = Written(path, head, KEYS, keep_older=False, finished=right, summary=counts)
    work = [(topology, [spec for spec in specs(topology) if any(text in spec.op for text in given.only)])
            for topology in map(ts.Topology.shared_gpu, given.ranks)]
    with pool(2) as ahead:
        found = {spec: ahead.submit(chosen, spec, given.most) for _, wanted in work for spec in wanted}
        for topology, wanted in work:
            with GpuRunner(topology, bounds=Bounds(1, 1, 1, warmup=0), worker="repeat_check:RepeatRank") as runner:
                runner.start()
                todo = [(spec, [s for s in found[spec].result() if (spec.op, spec.world, s.label) not in table.done])
                        for spec in wanted]
                for spec, schedules in todo:
                    runner.prefetch(spec, schedules)
                for spec, schedule in ((spec, schedule) for spec, schedules in todo for schedule in schedules):
                    if time.monotonic() - began > given.limit:
                        print(f"stopped: {given.limit:g} s are over", flush=True)
                        return table.mine
                    row = measured(runner, spec, schedule)
                    table.add(row)
                    print(json.dumps(row), flush=True)
    return table.mine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="rows of the same sources that are there are kept")
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--only", nargs="+", default=[""], help="operations whose name holds one of these texts")
    parser.add_argument("--most", type=int, default=6, help="kinds of schedules of an operation; 0: all")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="no row is begun after so many seconds")
    given = parser.parse_args()
    here = str(Path(__file__).resolve().parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))  # ranks import this file
    with tempfile.TemporaryDirectory() as folder:
        rows = run(given, given.output or Path(folder) / "repeat_check.json")
    wrong = [row for row in rows if not right(row)]
    for row in wrong:
        print(f"WRONG {json.dumps(row)}", file=sys.stderr)
    print(json.dumps(counts(rows)))
    return 1 if wrong or not rows else 0


if __name__ == "__main__":
    common.run(main)
