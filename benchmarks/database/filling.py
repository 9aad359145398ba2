"""A database as a team fills it in three months: nightly sessions of a hundred workloads on four machines."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import perfdb

DAYS = 90
SAMPLES = 32
START = datetime(2026, 1, 1, tzinfo=UTC)
GPUS = (("H200", "sm_90a", 700), ("H200", "sm_90a", 500), ("H100", "sm_90a", 700), ("B200", "sm_100a", 1000))
OPS = ("ag_gemm", "gemm_rs", "all_gather", "gemm_ar")


@dataclass(frozen=True)
class Plan:
    """How many trials; the numbers of workloads, nights and schedules stay as they are."""

    trials: int = 1_000_000
    workloads: int = 100
    seed: int = 11

    @property
    def each(self) -> int:
        """Trials of one workload on one machine in one night."""
        return -(-self.trials // (self.workloads * len(GPUS) * DAYS))


def workload(number: int) -> perfdb.WorkloadKey:
    """The workloads differ in op and shape; two ranks."""
    op = OPS[number % len(OPS)]
    shape = f"{1024 * (1 + number)}x{2048 * (1 + number % 7)}x4096"
    return perfdb.WorkloadKey(f"w{number:06d}", op, shape, "bfloat16", 2, f"{op} {shape} w2", 10**12, 10**9)


TOPOLOGY = perfdb.TopologyKey("t2", "2xGPU", "real", 2, "GPU")


def environment(machine: int, day: int) -> perfdb.EnvironmentKey:
    """Machines differ in GPU and power cap; on day 60 a driver came."""
    gpu, arch, cap = GPUS[machine]
    return perfdb.EnvironmentKey(
        gpu=gpu, arch=arch, power_cap_w=cap, driver="580.65" if day < 60 else "590.10", gpu_count=2
    )


def schedule(number: int) -> perfdb.ScheduleKey:
    """One of some thousand points of a space."""
    document = f'{{"depth":{number % 8},"num_comm_blocks":{number % 33},"transport":"peer_copy"}}'
    return perfdb.ScheduleKey(f"s{number:06d}", f"peer_copy push fused d{number % 8} b{number % 33}", document)


SCHEDULES = 4000


def nights(plan: Plan) -> Iterator[list[perfdb.TrialRecord]]:
    """The trials of each night, oldest first; 3 % fail. Sessions are numbered by day and machine: see `fill`."""
    chance = random.Random(plan.seed)
    schedules = [schedule(number) for number in range(SCHEDULES)]
    works = [workload(number) for number in range(plan.workloads)]
    samples = [tuple(50.0 + chance.randrange(64) / 16 for _ in range(SAMPLES)) for _ in range(64)]
    for day in range(DAYS):
        rows = []
        for machine in range(len(GPUS)):
            place = environment(machine, day)
            for number, work in enumerate(works):
                level = 50.0 + number + 10 * machine
                for turn in range(plan.each):
                    # A third of a night repeats the finalists, the rest explores.
                    pick = chance.randrange(8 if turn % 3 == 0 else SCHEDULES)
                    failed = chance.random() < 0.03
                    seconds = (machine * plan.workloads + number) * plan.each + turn
                    rows.append(
                        perfdb.TrialRecord(
                            work,
                            TOPOLOGY,
                            place,
                            schedules[pick],
                            "measured",
                            "timeout" if failed else "ok",
                            None if failed else level * (1 + pick / SCHEDULES) * (1 + 0.003 * chance.gauss(0, 1)),
                            samples_us=(samples[turn % 64], samples[(turn + 7) % 64]) if not failed else (),
                            message="rank 1 waited for step 3" if failed else "",
                            binary_digest=f"b{pick % 32}",
                            table_digest="t",
                            session_id=day + 1,
                            recorded_at=START + timedelta(days=day, seconds=seconds),
                        )
                    )
        yield rows


def fill(db: perfdb.Database, plan: Plan, progress: Callable[[int, int], object] = lambda day, count: None) -> int:
    """Store the plan's trials, one commit a few thousand; return how many there are.

    `progress` is told every tenth night and the trials so far.
    """
    for day in range(DAYS):
        db.start_session(seed=day, command="nightly", revision=f"r{day}")
    count = 0
    for day, rows in enumerate(nights(plan)):
        for begin in range(0, len(rows), 4000):
            count += len(db.record_many(rows[begin : begin + 4000]))
        if day % 10 == 9:
            progress(day, count)
    return count
