"""What a rank of the fake runner does: nothing, for the time it is told, with the faults it is told."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

from tilescale.runtime.rank import RankContext, RankReport

WORKER = "tilescale.runtime.fake_rank:FakeRank"


def fake_samples(time_us: float, noise: float, seed: int, digest: str, rank: int, count: int) -> tuple[float, ...]:
    """`count` samples of one rank: `time_us` with relative Gaussian `noise`; equal for equal arguments, anywhere."""
    source = random.Random(f"{seed}/{digest}/{rank}")
    return tuple(time_us * max(0.05, 1.0 + noise * source.gauss(0.0, 1.0)) for _ in range(count))


class FakeRank:
    """Runs jobs {"digest", "time_us", "noise", "seed", "samples", "fault"}; a fault is {"kind", "rank", "run",
    "seconds"} and strikes at that run of that rank. Every run starts behind a barrier, as real ones do."""

    def __init__(self, context: RankContext) -> None:
        self._context = context

    def prepare(self, job: Mapping[str, Any], blob: bytes) -> str:
        fault = job["fault"]
        disagrees = fault is not None and fault["kind"] == "disagree" and fault["rank"] == self._context.rank
        return "something else" if disagrees else str(job["digest"])

    def run(self, job: Mapping[str, Any], blob: bytes) -> RankReport:
        fault = job["fault"]
        for number in range(job["samples"]):
            if fault is not None and (fault["rank"], fault["run"]) == (self._context.rank, number):
                report = self._strike(fault["kind"], fault["seconds"])
                if report is not None:
                    return report
            self._context.barrier()
        rank = self._context.rank
        return RankReport(
            "ok", fake_samples(job["time_us"], job["noise"], job["seed"], job["digest"], rank, job["samples"])
        )

    def _strike(self, kind: str, seconds: float) -> RankReport | None:
        if kind == "hang":
            time.sleep(1e6)
        elif kind == "slow":
            time.sleep(seconds)
        elif kind == "exit":
            print("fake: leaving", file=sys.stderr, flush=True)
            os._exit(13)
        elif kind == "segv":
            os.kill(os.getpid(), signal.SIGSEGV)
        elif kind == "garble":
            self._context.link.write(b"this is no message")
        elif kind == "exception":
            raise ValueError("fake: a Python exception")
        elif kind == "launch_error":
            return RankReport("launch_error", message="fake: too much shared memory")
        elif kind == "wrong_result":
            return RankReport("wrong_result", message="fake: element 0 is 1, not 2")
        return None
