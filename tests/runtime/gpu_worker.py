"""A rank of the GPU runner that has no GPU: says the facts it is told (FAKE_GPU, JSON) and gives given times."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from tilescale.deploy.peer_memory import chosen
from tilescale.runtime import gpu_job
from tilescale.runtime.gpu_placement import NOT_TRIED
from tilescale.runtime.mps import PIPES
from tilescale.runtime.rank import RankContext, RankReport

WORKER = "runtime.gpu_worker:Worker"


class Worker:
    """FAKE_GPU: "uuids" and "sms" and "absent" by rank; "fault" strikes rank 1 at the contestant "at"."""

    def __init__(self, context: RankContext) -> None:
        self.context = context
        self.told: dict[str, Any] = json.loads(os.environ.get("FAKE_GPU", "{}"))
        self.digest, self.race = "facts", None

    def prepare(self, job: Mapping[str, Any], blob: bytes) -> str:
        if job["do"] == "facts":
            return "facts"
        self.race, binaries = gpu_job.decode(job, blob)
        for contestant in self.race.contestants:
            for kernel in contestant.program.kernels if contestant.program else ():
                assert binaries[kernel.digest].startswith(b"\x7fELF"), "every kernel comes as a cubin"
        return self.race.digest

    def run(self, job: Mapping[str, Any], blob: bytes) -> RankReport:
        rank, world = self.context.rank, self.context.world
        if job["do"] == "facts":
            assert blob.startswith(b"\x7fELF"), "the meeting comes as a cubin"
            facts = {"uuid": self.told.get("uuids", ["gpu-test"] * world)[rank], "gpu": "H200", "driver": "580.1",
                     "cuda": 13000, "torch": "2.11", "sms": self.told.get("sms", self.context.settings["share_sms"]),
                     "groups": world, "blocks_per_sm": 1, "absent": self.told.get("absent", [0] * world)[rank],
                     "visible": os.environ.get(PIPES, ""), "peer_memory": chosen(),
                     "multicast": self.told.get("multicast", [NOT_TRIED] * world)[rank]}
            if not self.context.settings["multicast"]:
                facts["multicast"] = NOT_TRIED
            return RankReport("ok", message=json.dumps(facts))
        assert self.race is not None
        if self.told.get("at") in [each.name for each in self.race.contestants] and rank == 1:
            if self.told["fault"] == "exit":
                os._exit(9)
            return RankReport(self.told["fault"], message=self.told.get("message", "drained: it waited"), condemn=True)
        self.context.barrier("verified")
        failed = {each.name: "not here" for each in self.race.contestants if each.name == "torch.symm_mem"}
        rounds = [{each.name: [100.0 + rank + number] * self.race.bounds.minimum
                   for each in self.race.contestants if each.name not in failed} for number in range(self.race.rounds)]
        report = {"facts": {"sm_mhz": "1980-1980"}, "dropped": 0, "rounds": rounds, "failed": failed}
        only = next(iter(rounds[0].values())) if len(self.race.contestants) == 1 and not failed else []
        return RankReport("ok", tuple(only), json.dumps(report))
