"""One point of the schedule space: a value for every knob."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

from tilescale import canon
from tilescale.errors import ScheduleError, nearest

_LATER = {"cluster_m": 1, "split_k": 1, "copy_scope": "block", "protocol": "simple", "stream_k": 0,
          "consumers": "cooperative", "sum_blocks": 0}


@dataclass(frozen=True, order=True)
class Schedule:
    """How an operation is carried out. Knobs that do not apply hold their neutral value (see `knob.py`).

    transport: "peer_copy" (stores and loads of copy blocks), "copy_engine", "tma" (bulk copies through shared memory).
    direction: "push" (the owner puts) or "pull" (the reader gets). algorithm: how shards travel.
    overlap: "none", "chunked" (on streams) or "fused" (one kernel). compute: "generated" or "library".
    chunk_rows: rows of a shard that travel and are signalled together. depth: chunks in flight.
    chunk_order: "peer_major" (all chunks of a peer, then the next peer) or "chunk_major".
    num_comm_blocks: blocks that copy. block_m, block_n, block_k, num_stages: the GEMM tile and its pipeline.
    raster_group: rows of tiles walked together before the next column. cluster_m: rows of tiles that blocks of a cluster
    take together, sharing their loads of B. split_k: blocks of a cluster that share the contraction of a tile.
    copy_scope: who puts or gets neighbouring bytes together: the threads of a "block", a "warpgroup" or a "warp".
    consumers: whether the warpgroups that multiply share every tile ("cooperative"), or take turns at them ("pingpong").
    protocol: "simple" (data, then a signal behind a fence), "ll" (packets: data and the mark of the call in one store) or
    "credit" (data into slots that the receiver hands back).
    sum_blocks: blocks that add up, and hand out, beside those that multiply; 0: all blocks do it behind the products.
    stream_k: last waves of tiles that all blocks share evenly along the contraction (stream-K); 0: none.
    """

    transport: str = "peer_copy"
    direction: str = "push"
    algorithm: str = "direct"
    overlap: str = "none"
    compute: str = "library"
    chunk_rows: int = 0
    depth: int = 1
    chunk_order: str = "peer_major"
    num_comm_blocks: int = 0
    block_m: int = 0
    block_n: int = 0
    block_k: int = 0
    num_stages: int = 0
    raster_group: int = 0
    cluster_m: int = 1
    split_k: int = 1
    copy_scope: str = "block"
    protocol: str = "simple"
    stream_k: int = 0
    consumers: str = "cooperative"
    sum_blocks: int = 0

    @cached_property
    def digest(self) -> str:
        """Identity. Knobs that came later have no part in it at their defaults, so that what was recorded before keeps
        its digest."""
        values = self.as_dict()
        for name, default in _LATER.items():
            if values[name] == default:
                del values[name]
        return canon.digest(values)

    @property
    def label(self) -> str:
        """Short text for tables: the knobs that are not neutral."""
        return " ".join(str(v) for v in (
            self.transport, self.direction, self.algorithm if self.algorithm != "direct" else "", self.overlap,
            self.compute,
            f"c{self.chunk_rows}" if self.chunk_rows else "", f"d{self.depth}" if self.depth > 1 else "",
            self.chunk_order if self.chunk_order != "peer_major" else "",
            f"b{self.num_comm_blocks}" if self.num_comm_blocks else "",
            f"{self.block_m}x{self.block_n}x{self.block_k}s{self.num_stages}g{self.raster_group}" if self.block_m else "",
            f"cluster{self.cluster_m}" if self.cluster_m > 1 else "", f"split{self.split_k}" if self.split_k > 1 else "",
            f"by_{self.copy_scope}" if self.copy_scope != "block" else "",
            self.protocol if self.protocol != "simple" else "",
            f"stream{self.stream_k}" if self.stream_k else "",
            self.consumers if self.consumers != "cooperative" else "",
            f"sums{self.sum_blocks}" if self.sum_blocks else "",
        ) if v)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Schedule:
        """Schedule from knob values, missing ones at their defaults; raises ScheduleError for names no knob has."""
        names = [f.name for f in fields(cls)]
        for name in values:
            if name not in names:
                raise ScheduleError("a schedule is made of knobs", repr(name), nearest(name, names))
        return cls(**values)
