"""Lowering of a product that needs no communication: each rank multiplies what it holds, in one launch."""

from __future__ import annotations

from tilescale.errors import PlanError
from tilescale.schedules import tile
from tilescale.schedules.extras import extras_of
from tilescale.schedules.plan import Buffer, Gemm, Goal, Launch, Plan, Region, Role
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec


def blocks_of(spec: Spec, schedule: Schedule) -> int:
    """Blocks of the launch, in whole clusters: one for every tile where a contraction is shared, else no more than SMs."""
    size = tile.cluster(schedule)
    wanted = tile.tiles(spec, schedule) * size
    return wanted if schedule.split_k > 1 else min(wanted, spec.topology.sm_share // size * size)


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
        role = Role(name, "blocks", blocks_of(spec, schedule), (step,))
        return Launch("work", 0, (role,), (), family, tile.threads(spec, schedule), tile.shared_bytes(spec, schedule),
                      tile.cluster(schedule))

    starts = tuple(rank * m * row for rank in range(world + 1))
    gpu = spec.topology.gpu
    return Plan(
        op=spec.op, buffers=buffers, counters=1, ranks=tuple((launch(rank),) for rank in range(world)),
        goal=beside.goal(Goal("a", "out", starts, row, out_row, True)), sm_share=spec.topology.sm_share,
        smem_limit=gpu.smem_bytes)
