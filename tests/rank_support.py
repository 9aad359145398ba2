"""Workers of ranks for the tests of groups."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from tilescale.runtime.rank import RankContext, RankReport


class Worker:
    """Does what the job's "do" says, on the rank that "rank" says."""

    def __init__(self, context: RankContext) -> None:
        self.context = context

    def prepare(self, job: Mapping[str, Any], blob: bytes) -> str:
        if job["do"] == "fail to prepare" and self.context.rank == job["rank"]:
            raise RuntimeError("no memory")
        return str(job["digest"])

    def run(self, job: Mapping[str, Any], blob: bytes) -> RankReport:
        context, mine = self.context, self.context.rank == job.get("rank")
        if job["do"] == "modules":
            return RankReport("ok", (1.0,), ",".join(sorted(sys.modules)))
        if job["do"] == "print":
            print("a library that prints", flush=True)
        if job["do"] == "exchange":
            found = context.exchange("first", {"rank": context.rank}, bytes([context.rank]) * context.rank + blob)
            again = context.exchange("second", len(found.values))
            return RankReport("ok", (1.0,), f"{found.values} {found.blobs} {again.values}")
        if job["do"] == "leave" and mine:
            return RankReport("ok", (1.0,))
        if job["do"] == "meet elsewhere" and mine:
            context.barrier("elsewhere")
        if job["do"] == "unknown status" and mine:
            return RankReport("splendid")
        context.barrier()
        condemn = job["do"] == "condemn" and mine
        return RankReport("ok", (float(context.rank + 1),), str(context.settings), condemn)
