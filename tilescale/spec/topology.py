"""Machines as levels (thread, warp, sm, gpu, node), named, loaded from TOML, detected, or modelled on one GPU."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tilescale import canon
from tilescale.errors import TopologyError
from tilescale.spec.mesh import mesh_axes
from tilescale.spec.tensor import square_mesh

LEVELS = ("thread", "warp", "sm", "gpu", "node")
KINDS = ("real", "shared_gpu", "scale_model")
SOURCES = {"real": "measured", "shared_gpu": "measured_shared_gpu", "scale_model": "measured_scale_model"}
# A green context takes SMs in groups of 8 on the architectures that have them; the remainder stays idle.
SM_SHARE_STEP = 8
# Reads plus writes of payload copies between virtual ranks share the memory of one GPU; 350 GB/s is where eight copy
# blocks a rank stop (FACTS: 350, 310 and 220 GB/s put bandwidth for 2, 4 and 8 ranks on an H200).
SHARED_PUT_GBPS = 350.0
SHARED_PUT_FRACTION = 0.45


@dataclass(frozen=True)
class Link:
    """What joins the units inside a level. Rates are GB/s per direction and unit: ``gbps`` reached, ``nominal_gbps``
    on paper. ``multicast``: a switch can store to and reduce from all peers (multimem)."""

    kind: str
    gbps: float
    nominal_gbps: float
    latency_us: float
    peer_access: bool
    multicast: bool

    def __post_init__(self) -> None:
        _positive("link", gbps=self.gbps, nominal_gbps=self.nominal_gbps)
        if not self.latency_us >= 0:
            raise TopologyError("link.latency_us is not negative", self.latency_us, "give microseconds")
        if self.multicast and not self.peer_access:
            raise TopologyError("multicast needs peer access", f"link {self.kind}", "set multicast = false")


@dataclass(frozen=True)
class Level:
    """One level: ``units`` of the level below make one of this one (32 threads a warp, 132 SMs a GPU, 8 GPUs a node);
    ``memory_bytes`` is the memory of one unit of this level; ``link`` joins the units below, where that matters."""

    name: str
    units: int
    memory_bytes: int = 0
    link: Link | None = None

    def __post_init__(self) -> None:
        if self.name not in LEVELS:
            raise TopologyError("a level is one of " + ", ".join(LEVELS), self.name, "rename it")
        if self.units < 1 or self.memory_bytes < 0:
            raise TopologyError(
                f"level {self.name} has units >= 1 and memory_bytes >= 0", f"{self.units}, {self.memory_bytes}"
            )


@dataclass(frozen=True)
class Gpu:
    """One GPU. ``smem_bytes``: shared memory one block may use; ``hbm_gbps`` and ``tflops`` (dtype, rate): reached."""

    model: str
    arch: str
    sms: int
    smem_bytes: int
    regs_per_sm: int
    hbm_gbps: float
    l2_bytes: int
    tflops: tuple[tuple[str, float], ...]
    copy_engines: int

    def __post_init__(self) -> None:
        if not self.arch.startswith("sm_") or not self.arch[3:].rstrip("af").isdigit():
            raise TopologyError("gpu.arch is an architecture", repr(self.arch), 'for example "sm_90a"')
        _positive("gpu", sms=self.sms, smem_bytes=self.smem_bytes, regs_per_sm=self.regs_per_sm)
        _positive("gpu", hbm_gbps=self.hbm_gbps, l2_bytes=self.l2_bytes, **dict(self.tflops))
        if self.copy_engines < 0:
            raise TopologyError("gpu.copy_engines is not negative", self.copy_engines)
        object.__setattr__(self, "tflops", tuple(sorted(self.tflops)))

    def rate_tflops(self, dtype: str) -> float:
        """TFLOP/s reached for a dtype; float32's where the dtype is not listed (no tensor core path is assumed)."""
        rates = dict(self.tflops)
        if dtype not in rates and "float32" not in rates:
            raise TopologyError(f"{self.model} states a rate for {dtype}", sorted(rates), "add it to gpu.tflops")
        return rates.get(dtype, rates.get("float32", 0.0))


@dataclass(frozen=True)
class Topology:
    """The ranks of one declaration and what they run on.

    ``kind``: "real" links, ranks that share one GPU ("shared_gpu"), or share it with every remote byte charged to a
    link clock ("scale_model"). ``mesh``: (axis name, size) of a device mesh; empty for one unnamed axis.
    Raises TopologyError.
    """

    name: str
    kind: str
    ranks: int
    gpu: Gpu
    levels: tuple[Level, ...]
    mesh: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise TopologyError("the kind of a topology is one of " + ", ".join(KINDS), repr(self.kind))
        names = [level.name for level in self.levels]
        if names != [name for name in LEVELS if name in names] or not {"gpu", "node"} <= set(names):
            raise TopologyError(
                "levels come in the order " + ", ".join(LEVELS) + ", each once, gpu and node among them", names
            )
        node, gpu = self.level("node"), self.level("gpu")
        if node.link is None:
            raise TopologyError("the node level has the link between GPUs", "none", "add [levels.link] to it")
        if self.ranks < 1 or node.units != self.ranks:
            raise TopologyError("ranks is at least 1 and the units of the node level", f"{self.ranks}, {node.units}")
        if gpu.units != self.gpu.sms:
            raise TopologyError("the gpu level has gpu.sms units", f"{gpu.units}, sms = {self.gpu.sms}")
        if self.mesh and math.prod(size for _, size in self.mesh) != self.ranks:
            raise TopologyError("the sizes of the mesh multiply to the ranks", f"{self.mesh}, ranks = {self.ranks}")
        if len({axis for axis, _ in self.mesh}) != len(self.mesh):
            raise TopologyError("mesh axes have different names", [axis for axis, _ in self.mesh])

    @property
    def world(self) -> int:
        return self.ranks

    @property
    def link(self) -> Link:
        """The link between GPUs (for virtual ranks, what stands for it)."""
        link = self.level("node").link
        if link is None:
            raise TopologyError("the node level has the link between GPUs", self.name)
        return link

    @property
    def sm_share(self) -> int:
        """SMs one rank may use: all of them on a GPU of its own, else an equal share in whole groups of 8."""
        if self.kind == "real":
            return self.gpu.sms
        return self.gpu.sms // self.ranks // SM_SHARE_STEP * SM_SHARE_STEP

    @property
    def source(self) -> str:
        """The label of measurements taken on it."""
        return SOURCES[self.kind]

    @property
    def digest(self) -> str:
        """Identity of the structure: not the name, nor rates that a calibration may correct. A scale model's link rate
        is part of it, because there the rate is imposed, not observed."""
        gpu = self.gpu
        levels = []
        for level in self.levels:
            link = level.link
            facts = None if link is None else (link.kind, link.nominal_gbps, link.peer_access, link.multicast)
            levels.append((level.name, level.units, level.memory_bytes, facts))
        imposed = self.link.gbps if self.kind == "scale_model" else None
        unit = (gpu.model, gpu.arch, gpu.sms, gpu.smem_bytes, gpu.regs_per_sm, gpu.l2_bytes, gpu.copy_engines)
        mesh = [size for _, size in self.mesh] if len(self.mesh) > 1 else []
        return canon.digest([self.kind, self.ranks, unit, levels, imposed, mesh])

    def level(self, name: str) -> Level:
        for level in self.levels:
            if level.name == name:
                return level
        raise TopologyError("the level is part of the topology", name, ", ".join(level.name for level in self.levels))

    @property
    def mesh_sizes(self) -> tuple[int, int]:
        """(rows, cols) for Block views: the 2-D mesh, or the most square one where none was given."""
        if len(self.mesh) == 2:
            return self.mesh[0][1], self.mesh[1][1]
        return square_mesh(self.ranks)

    def with_ranks(self, ranks: int) -> Topology:
        """The same machine with another number of ranks, at most as many as there are; drops the mesh. Which GPUs those are
        is said where they run. Virtual ranks have even shares of one GPU, so their number is part of what they are."""
        check_ranks(ranks, self.ranks, self.name)
        if self.kind != "real" and ranks != self.ranks:
            raise TopologyError(f"a {self.kind} topology is made for its ranks", f"{self.name}, ranks={ranks}",
                                f"make it with ranks={ranks}")
        return _resized(dataclasses.replace(self, mesh=()), ranks, self.link)

    def with_mesh(self, mesh: object) -> Topology:
        """With the axes of a mesh: a torch DeviceMesh as it is, or {name: size}."""
        return dataclasses.replace(self, mesh=mesh_axes(mesh))

    @classmethod
    def named(cls, name: str, ranks: int | None = None) -> Topology:
        """A shipped topology, or a part of it: ``named("8xH200-NVSwitch", ranks=4)``."""
        from tilescale.spec import catalog

        topology = catalog.load_named(name).topology()
        return topology if ranks is None else topology.with_ranks(ranks)

    @classmethod
    def load(cls, path: str | Path) -> Topology:
        """From a TOML file; its format is that of the shipped ones in tilescale/spec/topologies."""
        from tilescale.spec import catalog

        return catalog.load_file(Path(path)).topology()

    @classmethod
    def detect(cls, ranks: Sequence[int] | None = None) -> Topology:
        """The GPUs that this process may use, asked through NVML; TopologyError where there is none. `ranks`: those of them
        that take part, counted from 0 as CUDA_VISIBLE_DEVICES has them; what joins these is then described."""
        from tilescale.spec import detect

        return detect.detect(ranks)

    @classmethod
    def shared_gpu(cls, ranks: int) -> Topology:
        """``ranks`` ranks that share the GPU at hand, or without one the H200 of the recorded spaces."""
        from tilescale.spec import catalog, detect

        base = catalog.for_model(detect.model_at_hand() or catalog.RECORDED_MODEL).topology()
        check_shared(ranks, base.gpu, "shared_gpu")
        gbps = min(SHARED_PUT_GBPS, SHARED_PUT_FRACTION * base.gpu.hbm_gbps / ranks)
        memory = base.level("gpu").link
        nominal = memory.nominal_gbps if memory else base.gpu.hbm_gbps
        link = Link("shared_memory", gbps, nominal, 0.75, peer_access=True, multicast=False)
        name = f"{ranks}x shared {base.gpu.model}"
        return _resized(dataclasses.replace(base, name=name, kind="shared_gpu"), ranks, link)

    @classmethod
    def scale_model(cls, name: str, ranks: int) -> Topology:
        """``ranks`` ranks of the named machine modelled on one GPU: a rank has 1/ranks of the SMs and of its link rate,
        so computing and communicating keep their proportion. Multicast needs a switch and is left out."""
        base = cls.named(name)
        check_ranks(ranks, base.ranks, name, least=2)
        check_shared(ranks, base.gpu, "scale_model")
        real = base.link
        link = dataclasses.replace(
            real, gbps=real.gbps / ranks, nominal_gbps=real.nominal_gbps / ranks, multicast=False
        )
        label = f"{ranks} of {name} (scale model)"
        return _resized(dataclasses.replace(base, name=label, kind="scale_model"), ranks, link)


def check_ranks(ranks: object, most: int, name: str, least: int = 1) -> None:
    """TopologyError naming the allowed worlds where ``ranks`` is none of them."""
    if isinstance(ranks, bool) or not isinstance(ranks, int) or not least <= ranks <= most:
        allowed = ", ".join(str(n) for n in range(least, most + 1))
        raise TopologyError(f"{name} has {most} GPUs", f"ranks={ranks}", f"allowed worlds: {allowed}")


def check_shared(ranks: object, gpu: Gpu, kind: str) -> None:
    """TopologyError where a GPU cannot be shared by that many ranks: each needs a whole group of SMs."""
    most = gpu.sms // SM_SHARE_STEP
    if isinstance(ranks, bool) or not isinstance(ranks, int) or not 2 <= ranks <= most:
        raise TopologyError(
            f"{kind} gives each rank at least {SM_SHARE_STEP} of the {gpu.sms} SMs of one {gpu.model}",
            f"ranks={ranks}",
            f"allowed worlds: 2 to {most}",
        )


def _resized(base: Topology, ranks: int, link: Link) -> Topology:
    levels = tuple(
        dataclasses.replace(level, units=ranks, link=link) if level.name == "node" else level for level in base.levels
    )
    return dataclasses.replace(base, ranks=ranks, levels=levels)


def _positive(owner: str, **values: float) -> None:
    for name, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise TopologyError(f"{owner}.{name} is a positive number", value, "correct it in the topology file")
