"""What ranks say of themselves before anything is measured, and whether that is what the topology asks for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields

from tilescale.errors import RunnerError
from tilescale.spec.topology import Topology


@dataclass(frozen=True)
class RankFacts:
    """Of one rank. `sms`: those it may use, of `groups` groups; `blocks_per_sm`: of the kernel that proves residency;
    `absent`: its blocks that waited in vain for the blocks of all ranks; `visible`: CUDA_VISIBLE_DEVICES."""

    uuid: str
    gpu: str
    driver: str
    cuda: int
    torch: str
    sms: int
    groups: int
    blocks_per_sm: int
    absent: int
    visible: str = ""

    @classmethod
    def read(cls, text: str) -> RankFacts:
        """From a rank's JSON."""
        values = json.loads(text)
        return cls(**{field.name: values[field.name] for field in fields(cls)})


def check_placement(topology: Topology, ranks: Sequence[RankFacts]) -> None:
    """RunnerError, with the GPU of every rank, unless ranks have the GPUs and SMs that the topology gives them."""
    where = ", ".join(f"rank {rank}: {facts.uuid}" for rank, facts in enumerate(ranks))
    distinct = len({facts.uuid for facts in ranks})
    if topology.kind == "real" and distinct < len(ranks):
        raise RunnerError("ranks of a real topology have a GPU each", where,
                          "set the device by local rank, or use Topology.shared_gpu to share one on purpose")
    if topology.kind != "real" and distinct != 1:
        raise RunnerError(f"ranks of a {topology.kind} topology share one GPU", where, "set CUDA_VISIBLE_DEVICES to one")
    shares = sorted({facts.sms for facts in ranks})
    if shares != [topology.sm_share]:
        raise RunnerError(f"each rank may use {topology.sm_share} SMs", f"{shares} on {ranks[0].gpu}",
                          "use a topology of this GPU: Topology.detect() describes it")
    crowded = [rank for rank, facts in enumerate(ranks) if facts.absent or facts.blocks_per_sm != 1]
    if crowded:
        absent = ", ".join(f"rank {rank}: {ranks[rank].absent} absent, {ranks[rank].blocks_per_sm} an SM"
                           for rank in crowded)
        raise RunnerError(f"{topology.sm_share} blocks of every rank, one an SM, are resident together", absent,
                          "end other work on this GPU; ranks that share it need the MPS daemon")
