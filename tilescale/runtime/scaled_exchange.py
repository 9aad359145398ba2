"""The small exchange that is emulated in place of a large one."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from math import prod

from tilescale.schedules.constraints import num_chunks
from tilescale.schedules.exchanges import exchange_of
from tilescale.schedules.schedule import Schedule
from tilescale.spec.declaration import Spec

KEPT = 16  # bytes of the widest access
LAST_BYTES = 4096
LAST_TURNED = 48  # elements, where they are copied one by one
CHUNK_UNITS = 6000  # accesses: two blocks load several rounds each
SMALL, SMALL_CUT = 2, 7  # indices; 7 is no divisor of the threads that copy, so that their places carry between loops


def _part(size: int) -> int:
    """The largest power of two, up to KEPT, that divides a size."""
    return next(power for power in (16, 8, 4, 2, 1) if size % power == 0)


def _chunks(spec: Spec, schedule: Schedule) -> int:
    """Enough chunks of a piece to have the depth in flight, at least two where there were several."""
    return min(num_chunks(spec, schedule), max(2, -(-schedule.depth // max(1, exchange_of(spec).peers))))


def _last(size: int, most: int) -> int:
    """The last dimension: shorter, with the same alignment."""
    part = _part(size)
    return size if size <= most else part * (most // part - (most // part + 1) % 2)


def _uneven(size: int, real: int, lack: int) -> int:
    """A size of a shard, at least `size`, of which the last ranks can lack as much as of the `real` one, aligned alike."""
    least = max(size, lack + 1)
    return min(real, least + (real - least) % KEPT)


def small_exchange(spec: Spec, schedule: Schedule) -> tuple[Spec, Schedule]:
    """The spec with a few chunks along its longest dimension but the last, the others small, and the schedule on gangs of
    two blocks. Rows, pitches and offsets have the alignment of the real ones, so the kernels are the same: where the last
    dimension alone does not see to that, all sizes keep the powers of two that they hold, up to KEPT."""
    tensor, world = spec.inputs[0], spec.world
    order = [int(dim) for dim in str(spec.attribute("transpose") or "").split(",") if dim] or list(range(tensor.ndim))
    cut = {dim for dim in (tensor.shard_dim, None if spec.output.shard_dim is None else order[spec.output.shard_dim])
           if dim is not None}
    sizes = [-(-size // world) if dim in cut else size for dim, size in enumerate(tensor.sizes)]
    lacks = {dim: lack for dim in cut if (lack := sizes[dim] * world - tensor.sizes[dim])}  # of the last ranks together
    by_rows, free = order[-1] == tensor.ndim - 1, tensor.ndim > 1 and not any(
        size * tensor.itemsize % KEPT for size in (sizes[-1], lacks.get(tensor.ndim - 1, 0)))
    if tensor.ndim == 1:
        rest, unit, longest = 1, _part(sizes[0]) * tensor.itemsize, 0
        small = list(sizes)
    else:
        small = [*([0] * (tensor.ndim - 1)), _last(sizes[-1], LAST_BYTES // tensor.itemsize if by_rows else LAST_TURNED)]
        longest = max(range(tensor.ndim - 1), key=lambda dim: (sizes[dim], -dim))
        for dim in range(tensor.ndim - 1):
            least = (SMALL_CUT if dim in cut else SMALL) if free else 3 * _part(sizes[dim])
            small[dim] = min(sizes[dim], least)
        rest = prod(small[dim] for dim in range(tensor.ndim - 1) if dim != longest)
        unit = small[-1] * tensor.itemsize
    chunks = max(2, _chunks(spec, schedule))
    access = min(KEPT, _part(unit)) if by_rows else tensor.itemsize
    rows = max(KEPT, -(-CHUNK_UNITS * access // (unit * rest * KEPT)) * KEPT)  # of a chunk, along the longest dimension
    small[longest] = min(sizes[longest], rows * (chunks - 1) + (KEPT // 2 if free else _part(sizes[longest])))
    for dim, lack in lacks.items():
        small[dim] = _uneven(small[dim], sizes[dim], lack)
    shape = tuple(size * world - lacks.get(dim, 0) if dim in cut else size for dim, size in enumerate(small))
    small_spec = dataclasses.replace(
        spec, inputs=(dataclasses.replace(tensor, shape=shape),),
        output=dataclasses.replace(spec.output, shape=tuple(shape[dim] for dim in order)))
    gang = min(2, schedule.num_comm_blocks // schedule.depth) if schedule.num_comm_blocks else 0
    found = exchange_of(small_spec)
    cut_at = rows * (rest if found.contiguous else 1) if num_chunks(spec, schedule) > 1 else 2 * found.rows
    chunk_rows = 0 if schedule.overlap == "none" else cut_at
    return small_spec, replace(schedule, num_comm_blocks=gang * schedule.depth, chunk_rows=chunk_rows)
