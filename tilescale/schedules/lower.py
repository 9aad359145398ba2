"""Lowering: from a spec and a schedule to the plan for all ranks."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from tilescale.schedules import legal, tile
from tilescale.schedules.algorithms import ALGORITHMS
from tilescale.schedules.blocks import BlockShape, block_plans, blocks_of
from tilescale.schedules.contraction import ContractionPlan, contraction
from tilescale.schedules.exchange import ExchangePlan, ExchangeShape, exchange_fused, exchange_none
from tilescale.schedules.exchange import counters as exchange_counters
from tilescale.schedules.exchanges import exchange_geometry, exchanges
from tilescale.schedules.gather import RankPlan, Shape, lower_chunked, lower_fused, lower_none
from tilescale.schedules.geometry import geometry, spanned
from tilescale.schedules.grouped import grouped, grouped_structure
from tilescale.schedules.grouped_combine import products_structure
from tilescale.schedules.local import lower_local
from tilescale.schedules.packet_sums import gather_buffers, gather_packets, packet_launch, sum_packets
from tilescale.schedules.plan import Launch, Plan
from tilescale.schedules.ragged import ragged, ragged_structure
from tilescale.schedules.reduce import SumPlan, SumShape, counters, sum_chunked, sum_fused, sum_none
from tilescale.schedules.ring import RingPlan, ring_sums
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.slots import SlottedBlocks, slotted_blocks, slotted_plans
from tilescale.schedules.sums import SUM_THREADS, WINDOW_BYTES, RingGeometry, geometry_of, norm_bytes, sums
from tilescale.schedules.transports import TRANSPORTS
from tilescale.spec.contraction import contracts, in_blocks
from tilescale.spec.op import Spec
from tilescale.spec.ops._moe import combines

COPY_THREADS = SUM_THREADS
COPY_OUT_BLOCKS = 8
_OVERLAPS = {"none": lower_none, "chunked": lower_chunked, "fused": lower_fused}
_EXCHANGE_OVERLAPS = {"none": exchange_none, "fused": exchange_fused}
_SUM_OVERLAPS = {"none": sum_none, "chunked": sum_chunked, "fused": sum_fused}


def work_blocks(spec: Spec, schedule: Schedule, share: int) -> int:
    """Blocks that multiply or copy out: what the copying ones leave of the rank's `share` SMs."""
    beside = 0 if schedule.overlap == "none" else schedule.num_comm_blocks or schedule.depth
    left = share - beside
    if spec.operation.compute == "gemm":
        return left // tile.cluster(schedule) * tile.cluster(schedule)
    return min(schedule.num_comm_blocks or COPY_OUT_BLOCKS, left)


def lower(spec: Spec, schedule: Schedule) -> Plan:
    """The plan of `schedule`, a point of the space of `spec`. Raises SpecError for a spec without kernels,
    ScheduleError for a schedule that makes no sense (see legal.py; one outside of its space may be lowered).

    Tile shapes only size the launches, so plans of schedules that differ in nothing else share one structure.
    """
    legal.check(spec, schedule)
    generated = spec.operation.compute == "gemm" and schedule.compute == "generated"
    if spec.local:
        return lower_local(spec, schedule)
    threads = tile.threads(spec, schedule) if generated else COPY_THREADS
    shared = tile.shared_bytes(spec, schedule) if generated else 0
    cluster = tile.cluster(schedule) if generated else 1
    structure = _structure(spec, _without_tiles(spec, schedule), spec.topology.sm_share)
    fused_shared = max(shared, TRANSPORTS[schedule.transport].shared_bytes + WINDOW_BYTES)

    def sized(launch: Launch) -> Launch:
        if launch.family == "gemm":
            return replace(launch, threads=threads, shared_bytes=shared, cluster=cluster)
        if launch.family == "grouped":
            return replace(launch, threads=threads, shared_bytes=shared)
        if launch.family == "grouped_fused":  # the blocks that send count in shared memory
            return replace(launch, threads=threads, shared_bytes=max(shared, launch.shared_bytes))
        if launch.family == "fused":
            return replace(launch, threads=threads, shared_bytes=fused_shared, cluster=cluster)
        return launch

    return replace(structure, ranks=tuple(tuple(sized(launch) for launch in rank) for rank in structure.ranks))


def _without_tiles(spec: Spec, schedule: Schedule) -> Schedule:
    """Without what only sizes kernels: the rows of a tile do more where it spans shards."""
    block_m = schedule.block_m if spanned(spec, schedule) > 1 else 0
    return replace(schedule, block_m=block_m, block_n=0, block_k=0, num_stages=0, raster_group=0, copy_scope="block",
                   stream_k=0, consumers="cooperative")


def _sum_structure(spec: Spec, schedule: Schedule, share: int) -> Plan:
    geo, transport = geometry_of(spec, schedule), TRANSPORTS[schedule.transport]
    engine = transport.agent == "copy_engine"
    copies = not geo.sum.computes or (geo.push and not geo.scatter)  # by blocks of their own, where blocks copy
    small = schedule.depth if engine or schedule.overlap == "chunked" else 0  # streams of one-block kernels
    beside = 0 if schedule.overlap == "none" else (schedule.num_comm_blocks or small) if copies else small
    if schedule.sum_blocks:
        beside, adders = beside + schedule.sum_blocks, schedule.sum_blocks
    elif geo.sum.computes:
        adders = share - (beside if schedule.overlap == "chunked" else small if schedule.overlap == "fused" else 0)
    else:
        adders = min(schedule.num_comm_blocks or COPY_OUT_BLOCKS, share - beside)
    shape = SumShape(
        order=schedule.chunk_order, overlap=schedule.overlap, engine=engine, library=schedule.compute == "library",
        depth=schedule.depth, comm_blocks=schedule.num_comm_blocks, work_blocks=share - beside, sum_blocks=adders,
        copy_threads=COPY_THREADS, copy_shared=transport.shared_bytes + WINDOW_BYTES + norm_bytes(spec),
        beside=schedule.sum_blocks > 0)
    ranks = []
    for rank in range(spec.world):
        if isinstance(geo, RingGeometry):
            plan: SumPlan = ring_sums(RingPlan(geo, shape, rank))
        else:
            plan = SumPlan(geo, shape, rank)
            (sum_packets if geo.packets else _SUM_OVERLAPS[schedule.overlap])(plan)
        ranks.append(tuple(plan.launches))
    return Plan(op=spec.op, buffers=geo.buffers(), counters=spec.world if geo.packets else counters(geo),
                ranks=tuple(ranks), goal=geo.goal(), sm_share=share, smem_limit=spec.topology.gpu.smem_bytes)


def _exchange_structure(spec: Spec, schedule: Schedule, share: int) -> Plan:
    geo, transport = exchange_geometry(spec, schedule.direction, schedule.chunk_rows), TRANSPORTS[schedule.transport]
    shape = ExchangeShape(
        order=schedule.chunk_order, engine=transport.agent == "copy_engine", depth=schedule.depth,
        comm_blocks=schedule.num_comm_blocks, work_blocks=work_blocks(spec, schedule, share), copy_threads=COPY_THREADS,
        copy_shared=transport.shared_bytes + WINDOW_BYTES)
    ranks = []
    for rank in range(spec.world):
        plan = ExchangePlan(geo, shape, rank)
        _EXCHANGE_OVERLAPS[schedule.overlap](plan)
        ranks.append(tuple(plan.launches))
    return Plan(op=spec.op, buffers=geo.buffers(), counters=exchange_counters(geo), ranks=tuple(ranks), goal=geo.goal(),
                sm_share=share, smem_limit=spec.topology.gpu.smem_bytes)


def _block_structure(spec: Spec, schedule: Schedule, share: int) -> Plan:
    slots, transport = schedule.protocol == "credit", TRANSPORTS[schedule.transport]
    shape = BlockShape(
        algorithm=ALGORITHMS[schedule.algorithm], fused=schedule.overlap == "fused", depth=schedule.depth,
        comm_blocks=schedule.num_comm_blocks, work_blocks=work_blocks(spec, schedule, share), copy_threads=COPY_THREADS,
        copy_shared=transport.shared_bytes + WINDOW_BYTES)
    geo = slotted_blocks(spec) if slots else blocks_of(spec)
    ranks = slotted_plans(geo, shape) if isinstance(geo, SlottedBlocks) else block_plans(geo, shape)
    return Plan(op=spec.op, buffers=geo.buffers(), counters=geo.counters, ranks=tuple(ranks), goal=geo.goal(),
                sm_share=share, smem_limit=spec.topology.gpu.smem_bytes)


def _packet_structure(spec: Spec, schedule: Schedule, share: int) -> Plan:
    """A gather by packets."""
    geo = geometry(spec, schedule)
    ranks = tuple((packet_launch(gather_packets(geo, rank), schedule.num_comm_blocks, COPY_THREADS),)
                  for rank in range(spec.world))
    return Plan(op=spec.op, buffers=gather_buffers(geo), counters=spec.world, ranks=ranks, goal=geo.goal(), sm_share=share,
                smem_limit=spec.topology.gpu.smem_bytes)


@lru_cache(maxsize=256)
def _structure(spec: Spec, schedule: Schedule, share: int) -> Plan:
    """The plan but for the sizes of kernels that multiply."""
    if sums(spec):
        return _sum_structure(spec, schedule, share)
    if grouped(spec):
        return (products_structure if combines(spec) else grouped_structure)(spec, schedule, share)
    if ragged(spec):
        return ragged_structure(spec, schedule, share)
    if exchanges(spec):
        return _exchange_structure(spec, schedule, share)
    if in_blocks(spec):
        return _block_structure(spec, schedule, share)
    if schedule.protocol == "ll":
        return _packet_structure(spec, schedule, share)
    geo = contraction(spec, schedule) if contracts(spec) else geometry(spec, schedule)
    transport = TRANSPORTS[schedule.transport]
    shape = Shape(
        algorithm=ALGORITHMS[schedule.algorithm], order=schedule.chunk_order, overlap=schedule.overlap,
        engine=transport.agent == "copy_engine", library=schedule.compute == "library", depth=schedule.depth,
        comm_blocks=schedule.num_comm_blocks, work_blocks=work_blocks(spec, schedule, share), copy_threads=COPY_THREADS,
        copy_shared=transport.shared_bytes + WINDOW_BYTES, work_threads=0, work_shared=0, multicast=transport.multicast)
    ranks = []
    for rank in range(spec.world):
        plan = (ContractionPlan if contracts(spec) else RankPlan)(geo, shape, rank)
        _OVERLAPS[schedule.overlap](plan)
        ranks.append(tuple(plan.launches))
    gpu = spec.topology.gpu
    return Plan(
        op=spec.op, buffers=geo.buffers(), counters=2 * geo.world * geo.max_chunks + 1, ranks=tuple(ranks),
        goal=geo.goal(), sm_share=share, smem_limit=gpu.smem_bytes)
