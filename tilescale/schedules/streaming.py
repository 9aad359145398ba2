"""Stream-K: the tiles that all blocks of a launch share along the contraction, and whose sums are left for whom.

The tiles of the last waves lie one behind the other, `steps` blocks of the contraction each, and are dealt evenly: a block
(or a cluster of rows of tiles) takes one stretch. A stretch that begins inside a tile begins with a piece that ends this
tile; its sums are left in memory for the block that began the tile, which adds them up in the order of the contraction.
codegen/include/tilescale/gemm_stream.cuh walks the same pieces.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilescale.schedules import tile
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec

SUM_BYTES = 4  # float32


@dataclass(frozen=True)
class Stream:
    """`units` blocks or clusters take tiles: the first `whole` as they are, `shared` behind them in stretches of their
    `steps` blocks of the contraction. `cluster`: blocks of a unit; `part_bytes`: the sums of a block's tile."""

    units: int
    whole: int
    shared: int
    steps: int
    cluster: int
    part_bytes: int

    def start(self, unit: int) -> int:
        """Where the stretch of a unit begins, in steps of all shared tiles."""
        return self.shared * self.steps * unit // self.units

    def leaves(self, unit: int) -> bool:
        """Whether the stretch of a unit begins with the end of another one's tile."""
        return self.start(unit) % self.steps > 0 and self.start(unit + 1) > self.start(unit)

    @property
    def size(self) -> int:
        """Bytes of the sums that may be left: those of every block have a place."""
        return self.units * self.cluster * self.part_bytes

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """(offset, size) of the bytes that are written, neighbours in one."""
        found: list[tuple[int, int]] = []
        stride = self.cluster * self.part_bytes
        for unit in range(self.units):
            if self.leaves(unit):
                joined = found and sum(found[-1]) == unit * stride
                found[-1:] = [(found[-1][0], found[-1][1] + stride)] if joined else [*found[-1:], (unit * stride, stride)]
        return tuple(found)


def units_of(spec: Spec, s: Schedule) -> int:
    """Blocks or clusters that are resident together."""
    return max(1, spec.topology.sm_share // tile.cluster(s))


def stream(spec: Spec, s: Schedule) -> Stream:
    """How the last `stream_k` waves of a product without communication are shared."""
    tiles, units, size = tile.tiles(spec, s), units_of(spec, s), tile.cluster(s)
    waves = -(-tiles // units)
    whole = max(0, waves - s.stream_k) * units
    k = spec.inputs[0].local_shape(0, spec.world)[1]
    return Stream(units, whole, tiles - whole, -(-k // s.block_k), size, s.block_m * s.block_n * SUM_BYTES)
