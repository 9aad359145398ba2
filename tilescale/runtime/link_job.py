"""What a calibration of links asks of its ranks, and what it makes of the answers. Plain values; no device."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilescale.codegen.program import Kernel
from tilescale.codegen.text import kernel_text
from tilescale.schedules.lower import lower
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import redistribute
from tilescale.spec.tensor import Tensor
from tilescale.spec.topology import Link, Topology
from tilescale.spec.views import FullRow, Replicate

TRANSPORTS = ("peer_copy", "tma", "copy_engine")
DIRECTIONS = ("put", "get")  # the owner of the bytes copies them to the peer, or the peer fetches them
PING = "ping"
LARGE_BYTES, SMALL_BYTES = 64 << 20, 4096
BLOCKS = (1, 2, 4, 8, 16, 32)
TURNS = 32  # small copies in one launch, each behind the fence that a signal needs
TRIPS = 2000


@dataclass(frozen=True)
class Case:
    """A copy of `size_bytes` by `blocks` blocks (0: a copy engine). Small ones (at most SMALL_BYTES) are timed with the
    fence behind them, as a latency; large ones back to back, as a rate."""

    transport: str
    direction: str
    blocks: int
    size_bytes: int

    @property
    def small(self) -> bool:
        return self.size_bytes <= SMALL_BYTES

    @property
    def label(self) -> str:
        blocks = f" {self.blocks} blocks" if self.blocks else ""
        return f"{self.direction} {self.transport}{blocks} {self.size_bytes} B"


@dataclass(frozen=True)
class CopyKernel:
    """How schedules copy with a transport: their kernel, its threads and shared bytes."""

    transport: str
    kernel: Kernel
    threads: int
    shared_bytes: int


@dataclass(frozen=True)
class Row:
    """Bytes from rank `source` to rank `target`; both -1 where every rank copies to every other at once. `samples_us` by
    rank that copied. For PING a sample is a round trip, and `case` holds the one flag."""

    source: int
    target: int
    case: Case
    samples_us: tuple[tuple[float, ...], ...]

    @property
    def us(self) -> float:
        """The median sample, each the slowest rank's."""
        return float(statistics.median(max(sample) for sample in zip(*self.samples_us, strict=True)))

    @property
    def gbps(self) -> float:
        """GB/s of one GPU in one direction."""
        return self.case.size_bytes / self.us / 1e3


def cases(sms: int, large_bytes: int = LARGE_BYTES, blocks: Sequence[int] = BLOCKS) -> list[Case]:
    """Every transport, direction and block count, as far as a rank's SMs go."""
    found = []
    for direction in DIRECTIONS:
        for transport in TRANSPORTS:
            counts = [0] if transport == "copy_engine" else [count for count in blocks if count <= sms]
            found.append(Case(transport, direction, counts[0], SMALL_BYTES))
            found += [Case(transport, direction, count, large_bytes) for count in counts]
    return found


def copy_kernels(topology: Topology) -> tuple[CopyKernel, ...]:
    """The kernels of an all-gather that only copies, of each transport that has one."""
    if topology.kind == "scale_model":  # its kernels wait for modelled links
        topology = Topology.shared_gpu(topology.ranks)
    spec = redistribute(Tensor((4096 * topology.ranks, 64), "bfloat16", FullRow), Replicate, topology)
    made = []
    for transport in TRANSPORTS[:2]:
        schedule = Schedule(transport=transport, overlap="none", compute="generated", num_comm_blocks=4)
        launch = next(each for each in lower(spec, schedule).ranks[0] if each.family == "copy")
        made.append(CopyKernel(transport, kernel_text(spec, schedule, launch), launch.threads, launch.shared_bytes))
    return tuple(made)


def measured_link(link: Link, rows: Sequence[Row]) -> Link:
    """The described link with what was measured: `gbps`, the slowest pair's best rate of a put; `latency_us`, the slowest
    pair's way of a flag, half a round trip. What no row measures stays."""
    best: dict[tuple[int, int], float] = {}
    ways = [row.us / 2 for row in rows if row.case.transport == PING]
    for row in rows:
        pair = (row.source, row.target)
        if row.case.transport != PING and not row.case.small and row.case.direction == "put" and row.source >= 0:
            best[pair] = max(best.get(pair, 0.0), row.gbps)
    return replace(link, gbps=round(min(best.values()), 1) if best else link.gbps,
                   latency_us=round(max(ways), 3) if ways else link.latency_us)
