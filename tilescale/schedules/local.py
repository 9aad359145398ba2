"""Lowering of a product that needs no communication: each rank multiplies what it holds, in one launch."""

from __future__ import annotations

from tilescale.errors import PlanError
from tilescale.schedules import tile
from tilescale.schedules.extras import extras_of
from tilescale.schedules.plan import (
    Buffer,
    Gemm,
    Goal,
    Launch,
    Pieces,
    Plan,
    Region,
    Role,
    SharedGemm,
    Signal,
    Step,
    Wait,
)
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.streaming import stream
from tilescale.spec.op import Spec

PARTS = "parts"


def blocks_of(spec: Spec, schedule: Schedule) -> int:
    """Blocks of the launch, in whole clusters: one for every tile where a contraction is shared in clusters, one an SM
    where it is shared by all, else no more than SMs."""
    size = tile.cluster(schedule)
    if schedule.stream_k:
        return stream(spec, schedule).units * size
    wanted = tile.tiles(spec, schedule) * size
    return wanted if schedule.split_k > 1 else min(wanted, spec.topology.sm_share // size * size)


def _streamed(spec: Spec, schedule: Schedule, step: Gemm) -> tuple[Step, ...]:
    """The product with its last tiles shared: before any block adds up what others leave, all have left theirs."""
    rank, shared = step.out.rank, stream(spec, schedule)
    parts = tuple(Region(PARTS, rank, offset, size) for offset, size in shared.ranges)
    product = (step.a, step.b, step.out, step.m, step.n, step.k)
    return (Pieces(*product, parts), Signal(rank, 0), Wait(0, shared.units * shared.cluster),
            SharedGemm(*product, step.extras, step.then, parts))


def lower_local(spec: Spec, schedule: Schedule) -> Plan:
    """The plan. Raises PlanError where shards are uneven."""
    world, (a, b) = spec.world, spec.inputs
    beside = extras_of(spec)
    shapes = {(a.local_shape(rank, world), b.local_shape(rank, world)) for rank in range(world)}
    if len(shapes) != 1:
        raise PlanError("shards are equal on every rank", sorted(shapes), "choose sizes that the ranks divide")
    (m, k), (_, n) = shapes.pop()
    row, out_row = k * a.itemsize, spec.output.local_shape(0, world)[1] * spec.output.itemsize
    buffers = (Buffer("a", "input", m * row), Buffer("b", "input", k * n * b.itemsize), *beside.buffers,
               Buffer("out", "output", m * out_row))

    def launch(rank: int) -> Launch:
        out = Region("out", rank, 0, m * out_row)
        step = Gemm(Region("a", rank, 0, m * row), Region("b", rank, 0, k * n * b.itemsize), out, m, n, k,
                    beside.regions(out), spec.then)
        if schedule.compute == "library":
            return Launch("work", 0, (Role("work", "library", 1, (step,)),), (), "library")
        family = "small_m" if tile.small_m(spec) else "gemm"
        name = "split" if schedule.split_k > 1 else "work"  # clusters that sum up have one tile each
        steps = _streamed(spec, schedule, step) if schedule.stream_k else (step,)
        role = Role(name, "blocks", blocks_of(spec, schedule), steps)
        return Launch("work", 0, (role,), (), family, tile.threads(spec, schedule), tile.shared_bytes(spec, schedule),
                      tile.cluster(schedule))

    if schedule.stream_k and schedule.compute == "generated":
        buffers = (*buffers, Buffer(PARTS, "workspace", stream(spec, schedule).size))
    starts = tuple(rank * m * row for rank in range(world + 1))
    gpu = spec.topology.gpu
    return Plan(
        op=spec.op, buffers=buffers, counters=1, ranks=tuple((launch(rank),) for rank in range(world)),
        goal=beside.goal(Goal("a", "out", starts, row, out_row, True)), sm_share=spec.topology.sm_share,
        smem_limit=gpu.smem_bytes)
