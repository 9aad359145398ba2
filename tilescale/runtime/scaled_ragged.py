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
from tilescale.spec.ops._moe import combines, multiplies, tokens_of
from tilescale.spec.tensor import Tensor

BLOCKS = 2
TAIL = 24  # elements of two bytes, which keep rows aligned to 16
HALVED_TAIL = 48  # of bytes; of columns of which half are stored: both are whole blocks of gate and of up
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

    if multiplies(spec):
        return _small_products(spec, schedule, rows)
    back = combines(spec)
    small = dataclasses.replace(spec, inputs=(sized(spec.inputs[0], room if back else rows),),
                                output=sized(spec.output, rows if back else room))
    return small, replace(schedule, num_comm_blocks=min(BLOCKS, schedule.num_comm_blocks))


def _small_products(spec: Spec, schedule: Schedule, rows: int) -> tuple[Spec, Schedule]:
    """The same where experts multiply: contractions of two blocks and a tail, two columns of tiles, the second with a
    tail."""
    tokens, matrices = spec.inputs
    halves = any(epilogue.halves for epilogue in spec.epilogues)
    tail = TAIL if tokens.itemsize > 1 else HALVED_TAIL
    k, n = 2 * schedule.block_k + tail, schedule.block_n + (HALVED_TAIL if halves else TAIL)
    room = spec.world * rows * count_attribute(spec, "top_k")
    taken, made = (room, rows) if combines(spec) else (rows, room)
    small = dataclasses.replace(
        spec, inputs=(dataclasses.replace(tokens, shape=(taken, k)),
                      dataclasses.replace(matrices, shape=(matrices.shape[0], k, n))),
        output=dataclasses.replace(spec.output, shape=(made, n // 2 if halves else n)))
    return small, replace(schedule, num_comm_blocks=min(max(BLOCKS, schedule.depth), schedule.num_comm_blocks))
