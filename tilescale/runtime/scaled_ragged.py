"""The small dispatch or combine that is emulated in place of a large one: the same experts and ranks, fewer and shorter
tokens."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from math import gcd

from tilescale.schedules.ragged import THREADS, WARP
from tilescale.schedules.schedule import Schedule
from tilescale.spec.declaration import Spec
from tilescale.spec.ops._counts import count_attribute
from tilescale.spec.ops._moe import tokens_of
from tilescale.spec.tensor import Tensor

BLOCKS = 2
UNROLL = 4  # accesses of a lane in flight


def small_ragged(spec: Spec, schedule: Schedule) -> tuple[Spec, Schedule]:
    """Every block numbers its entries in two turns, the second with a tail; rows are one turn of a warp and a tail, with
    the alignment of the real ones; shards are uneven where the real ones are."""
    top_k, world, tokens = count_attribute(spec, "top_k"), spec.world, tokens_of(spec)
    each = BLOCKS * -(-(THREADS + WARP) // top_k) + 3
    unit = gcd(16, tokens.sizes[1] * tokens.itemsize)
    hidden = min(tokens.sizes[1], (UNROLL * WARP + WARP + 5) * unit // tokens.itemsize)
    if hidden * tokens.itemsize % unit or gcd(16, hidden * tokens.itemsize) != unit:
        hidden = tokens.sizes[1]
    rows = min(tokens.sizes[0], each * world - (tokens.sizes[0] % world > 0))
    room = world * rows * top_k

    def sized(tensor: Tensor, count: int) -> Tensor:
        return dataclasses.replace(tensor, shape=(count, hidden))

    combines = spec.op == "moe_combine"
    small = dataclasses.replace(spec, inputs=(sized(spec.inputs[0], room if combines else rows),),
                                output=sized(spec.output, rows if combines else room))
    return small, replace(schedule, num_comm_blocks=min(BLOCKS, schedule.num_comm_blocks))
