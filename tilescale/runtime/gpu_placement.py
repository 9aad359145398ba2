"""What ranks say of themselves before anything is measured, and whether that is what the topology asks for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields

from tilescale.deploy.peer_memory import IPC
from tilescale.errors import RunnerError, TopologyError
from tilescale.spec.detect import Device, devices, numbers_are_cudas
from tilescale.spec.topology import Topology

NOT_TRIED, WORKS = "not tried", "works"  # multicast, of a rank


@dataclass(frozen=True)
class RankFacts:
    """Of one rank. `sms`: those it may use, of `groups` groups; `blocks_per_sm`: of the kernel that proves residency;
    `absent`: its blocks that waited in vain for the blocks of all ranks; `visible`: CUDA_VISIBLE_DEVICES; `lacks`: by
    rank, what this one cannot do with the memory of that one's GPU (see RankDriver.reach); `peer_memory`: how memory is
    shared between ranks; `multicast`: "works" where an object was made and bound on all ranks, else why not."""

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
    lacks: tuple[str, ...] = ()
    peer_memory: str = IPC
    multicast: str = NOT_TRIED

    @classmethod
    def read(cls, text: str) -> RankFacts:
        """From a rank's JSON."""
        values = json.loads(text)
        values["lacks"] = tuple(values.get("lacks", ()))
        values = {"peer_memory": IPC, "multicast": NOT_TRIED, **values}
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
    check_reach(ranks)
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


def check_reach(ranks: Sequence[RankFacts]) -> None:
    """RunnerError naming every pair of ranks of which one cannot use the other's memory as kernels do."""
    missing = [f"rank {rank} ({facts.uuid}) to rank {peer} ({ranks[peer].uuid}): {lack}"
               for rank, facts in enumerate(ranks) for peer, lack in enumerate(facts.lacks) if lack]
    if missing:
        raise RunnerError("kernels of every rank read, write and signal in the memory of every other", "; ".join(missing),
                          "let all ranks see the same GPUs, and choose GPUs that NVLink or PCIe peer access joins "
                          "(nvidia-smi topo -p2p r)")


def check_pairs(topology: Topology, found: Sequence[Device]) -> None:
    """The same from what NVML says, before any process is started. `found`: the GPUs of the ranks, in order."""
    if topology.kind != "real" or topology.ranks < 2:
        return
    remedy = "choose other GPUs with CUDA_VISIBLE_DEVICES, or share one: Topology.shared_gpu"
    if not topology.link.peer_access:
        raise RunnerError("ranks reach each other's memory: they need peer access",
                          f"{topology.name} is described with peer_access = false", remedy)
    apart = [f"{one.uuid} to {other.uuid}" for one in found for other in found
             if other.index != one.index and other.index not in one.peers]
    if apart:
        raise RunnerError("ranks reach each other's memory: they need peer access", f"none from {'; '.join(apart)}", remedy)


def place(topology: Topology, gpus: Sequence[str] | None = None) -> dict[str, str]:
    """Variables by which the processes of a real topology's ranks see its GPUs alone, by UUID and in the order of ranks:
    `gpus`, or the first that are visible here. Empty where NVML is missing, and where CUDA_VISIBLE_DEVICES holds numbers
    that CUDA alone understands: ranks see then what this process sees, and say afterwards which GPUs those are.

    RunnerError where there are fewer GPUs than ranks, an unknown one, one twice, or a pair without peer access.
    """
    try:
        here = {} if gpus is None and numbers_are_cudas() else {device.uuid: device for device in devices()}
    except TopologyError:
        here = {}
    wanted = list(gpus) if gpus is not None else list(here)[: topology.ranks]
    if len(set(wanted)) < len(wanted) or (gpus is not None and len(wanted) != topology.ranks):
        raise RunnerError(f"{topology.name} has {topology.ranks} ranks with a GPU each", ", ".join(wanted),
                          "name as many different GPUs")
    unknown = [uuid for uuid in wanted if here and uuid not in here]
    if unknown:
        raise RunnerError("the GPUs of ranks are visible", ", ".join(unknown), f"visible are {', '.join(here)}")
    if here and len(wanted) < topology.ranks:
        raise RunnerError(f"{topology.name} asks for {topology.ranks} GPUs", f"{len(wanted)} visible: {', '.join(wanted)}",
                          f"allowed worlds here: 1 to {len(wanted)}; see CUDA_VISIBLE_DEVICES")
    check_pairs(topology, [here[uuid] for uuid in wanted if uuid in here])
    return {"CUDA_VISIBLE_DEVICES": ",".join(wanted)} if wanted else {}
