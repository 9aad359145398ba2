"""Kernel texts: constants that the compiler must know, and the entry point."""

from __future__ import annotations

import math
from collections.abc import Iterable

from tilescale.codegen.maps import stored_buffer
from tilescale.codegen.program import Kernel
from tilescale.codegen.together import together
from tilescale.schedules import tile
from tilescale.schedules.contracting import BOTH
from tilescale.schedules.extras import extras_of_products
from tilescale.schedules.footprint import SUMMED
from tilescale.schedules.gather import SIGNAL_THREADS
from tilescale.schedules.grouped import PAD, GroupedGeometry, grouped, routed_geometry
from tilescale.schedules.plan import PACKET_BYTES, Buffer, Copy, Gemm, Grouped, Launch, Pieces, Plan, Role, Step, Sum
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.sums import WINDOW_ROWS, summed, sums
from tilescale.schedules.transports import TRANSPORTS
from tilescale.spec.contraction import contracts, gathered_operand, in_blocks
from tilescale.spec.op import Spec
from tilescale.spec.ops._experts import sent_scale_bytes

ELEMENTS = {"bfloat16": "ts::Bf16", "float16": "ts::Fp16", "float32": "ts::Fp32",
            "float8_e4m3fn": "ts::E4m3", "float8_e5m2": "ts::E5m2"}
SCALES = {"tensor": "TensorScales", "rowcol": "RowColumnScales", "block": "BlockScales"}
PRODUCTS = ("gemm", "fused", "small_m", "grouped", "grouped_fused")  # families of kernels that multiply
SCOPES = {"warpgroup": 128, "warp": 32}  # threads that copy together, where these are not all of the block
ROUTED = ("moe", "grouped_fused")  # families that move rows whose number the device alone knows
CARRIED_SOURCES = 2  # of a sum that goes on: the sum so far, and a part


def link_fs_per_byte(spec: Spec) -> int:
    """How long a byte takes a link in the scale model, femtoseconds; 0 elsewhere, where links take their own time."""
    link = spec.topology.link
    return round(1e6 / link.gbps) if spec.topology.kind == "scale_model" and link is not None else 0


def _sum_unit(spec: Spec, launch: Launch) -> int:
    """The widest access to a source of a sum: that of the copies, so that blocks share both alike, but at least an element
    (where elements become smaller, nothing relies on equal shares). An epilogue that takes whole rows has whole units."""
    sums = [step for step in launch.steps if isinstance(step, Sum)]
    if sums and any(epilogue.whole_rows for epilogue in spec.epilogues):
        return math.gcd(_copy_unit(sums), summed(spec).part_row_bytes)
    unit = _copy_unit(launch.steps)
    return unit if sums and all(unit >= SUMMED[step.element] for step in sums) else _copy_unit(sums)


def _copy_unit(steps: Iterable[Step]) -> int:
    """The widest access that all copies, and all sources of sums, are aligned to."""
    unit = 16
    for step in steps:
        if isinstance(step, Copy):
            unit = math.gcd(unit, step.src.offset, step.dst.offset, step.src.row,
                            *(pitch for region in (step.src, step.dst) for _, pitch in region.loops))
        elif isinstance(step, Sum):
            size = step.srcs[-1].size
            unit = math.gcd(unit, size, *(region.offset * size // region.size for region in (*step.srcs, step.dst)))
    return unit


def solo(spec: Spec, launch: Launch) -> bool:
    """Whether a kernel has one step, of an operation without communication, or one group of steps, which its row in the
    table stands for. It looks nothing up, and it waits itself for the kernel before."""
    steps = tuple(launch.steps)
    if tile.mma_sync(spec):  # kernels start early from sm_90 on
        return False
    return spec.local and launch.family in PRODUCTS and (len(steps) == 1 or streams(launch))


def streams(launch: Launch) -> bool:
    """Whether blocks share tiles along the contraction: they count calls, since they wait for each other."""
    return any(isinstance(step, Pieces) for step in launch.steps)


def kernel_text(spec: Spec, schedule: Schedule, launch: Launch, stored: Buffer | None = None) -> Kernel:
    """The text of a launch: one struct of constants, one a line, and the entry point. `stored`: where the products of its
    plan are stored by tensor stores."""
    constants = _copying(spec, schedule, launch)
    if any(isinstance(step, Copy) and step.src.loops for step in launch.steps):
        constants["copy_strided"] = True
    if TRANSPORTS[schedule.transport].multicast and not spec.local:
        constants["multimem"] = True
    if schedule.copy_scope != "block" and any(isinstance(step, Copy) for step in launch.steps):
        constants["copy_group"] = SCOPES[schedule.copy_scope]
    if launch.family == "sum" and schedule.algorithm == "ring":
        constants |= {"sum_sources": CARRIED_SOURCES, "sum_carries": True}
    if launch.family in PRODUCTS:
        constants |= _multiplying(spec, schedule, launch, stored)
    if launch.family in ROUTED:
        constants |= _routing(spec, schedule)
    elif launch.family == "grouped":
        constants |= _groups(spec, schedule)
    if launch.family == "packets":
        constants |= _exchanging(spec, schedule)
    lines = [f"  static constexpr {'bool' if isinstance(v, bool) else 'int'} {name} = {str(v).lower()};"
             for name, v in constants.items()]
    lines += [f"  using {name} = {ELEMENTS.get(dtype, 'ts::Fp32')};" for name, dtype in _types(spec, launch).items()]
    if (launch.family in PRODUCTS and spec.attribute("scales")) or (launch.family in ROUTED and _sends_scales(spec)):
        lines.append(f"  using Scales = ts::{SCALES[str(spec.attribute('scales'))]}<{str(sums(spec)).lower()}>;")
    if any(step.then for step in launch.steps if isinstance(step, Gemm | Sum | Grouped)):
        lines.append(f"  using Epilogue = {epilogue_type(spec)};")
    entry = f"tilescale_{launch.family}"
    text = "\n".join(["#include <tilescale/kernels.cuh>", "", "struct Config {", *lines, "};", "",
                      f"TILESCALE_KERNEL({entry}, Config)", ""])
    return Kernel(entry, text, spec.topology.gpu.arch)


def _sends_scales(spec: Spec) -> bool:
    """Whether scales of tokens travel with them."""
    return grouped(spec) and sent_scale_bytes(spec) > 0


def _types(spec: Spec, launch: Launch) -> dict[str, str]:
    """Element types that a kernel names: of what it multiplies, of parts of sums, and of what it stores last."""
    found: dict[str, str] = {}
    if launch.family in PRODUCTS:
        found |= {"Element": spec.inputs[0].dtype, "Out": tile.product_dtype(spec)}
    if grouped(spec):
        found |= {"Part": tile.product_dtype(spec), "Out": spec.output.dtype}
    elif launch.family in ROUTED:
        found |= {"Part": spec.output.dtype, "Out": spec.output.dtype}
    elif launch.family == "sum" or (launch.family == "packets" and sums(spec)):
        found |= {"Part": summed(spec).element, "Out": spec.output.dtype}
    return found


def epilogue_type(spec: Spec) -> str:
    """The epilogues of a spec as the device library has them. Their operands' slots are their places in Spec.extras,
    without what rows are routed by."""
    own = extras_of_products(spec).own if grouped(spec) else len(spec.operation.extras(spec))
    slot, out, found = own, ELEMENTS[spec.output.dtype], []
    for epilogue in spec.epilogues:
        extras = epilogue.extras(spec)
        arguments = [*(str(slot + at) for at in range(len(extras))), out] if extras else []
        found.append(f"ts::{epilogue.struct}" + (f"<{', '.join(arguments)}>" if arguments else ""))
        slot += len(extras)
    return f"ts::Then<{', '.join(found)}>"


def texts_of(spec: Spec, schedule: Schedule, plan: Plan) -> tuple[Kernel, ...]:
    """The kernels of a schedule's program, each once, without its tables."""
    stored = stored_buffer(plan)
    launches = [launch for rank in plan.ranks for launch in rank if launch.agent == "blocks"]
    if link_fs_per_byte(spec) and any(launch.agent == "copy_engine" for rank in plan.ranks for launch in rank):
        launches.append(Launch("pace", 0, (Role("pace", "blocks", 1, ()),), (), "signal", SIGNAL_THREADS))
    return tuple(dict.fromkeys(kernel_text(spec, schedule, launch, stored) for launch in launches))


def _copying(spec: Spec, schedule: Schedule, launch: Launch) -> dict[str, int | bool]:
    """Constants that every kernel has, and those of copies."""
    copies = launch.family in ("copy", "fused", "signal", "sum", *ROUTED)
    multiplies = launch.family in PRODUCTS
    config = dict(TRANSPORTS["peer_copy"].config)
    if launch.family != "signal" and TRANSPORTS[schedule.transport].agent == "blocks":
        config = dict(TRANSPORTS[schedule.transport].config)
    remote = any(isinstance(step, Gemm) and step.out.rank != step.a.rank for step in launch.steps)
    return {
        "threads": launch.threads, "has_copy": copies, "has_gemm": multiplies,
        "has_small_m": launch.family == "small_m", "has_sum": launch.family == "sum", "solo": solo(spec, launch),
        "copy_tma": copies and "copy_tile_bytes" in config,
        "copy_unit": _copy_unit(launch.steps) if copies else 16,
        "copy_unroll": config.get("copy_unroll", 1) if copies else 1,
        "copy_tile_bytes": config.get("copy_tile_bytes", 0) if copies else 0,
        "copy_stages": config.get("copy_stages", 0) if copies else 0,
        "sum_sources": spec.world if launch.family == "sum" else 0,
        "sum_unit": _sum_unit(spec, launch),
        "window_rows": WINDOW_ROWS if copies and launch.family not in ("signal", *ROUTED) else 0,
        "link_clock": (copies or remote) and link_fs_per_byte(spec) > 0,
    }


def _exchanging(spec: Spec, schedule: Schedule) -> dict[str, int | bool]:
    """Constants of packets: what is sent to whom, and what becomes of it."""
    owners = sums(spec) and schedule.algorithm != "one_shot"
    return {"packets": True, "gathers": not sums(spec), "deals": owners, "hands_out": schedule.algorithm == "two_shot",
            "sum_sources": spec.world, "sum_unit": PACKET_BYTES, "link_clock": link_fs_per_byte(spec) > 0}


def _routing(spec: Spec, schedule: Schedule) -> dict[str, int | bool]:
    """Constants of dispatch and combine; rows are moved by the widest access that divides them."""
    geo = routed_geometry(spec, schedule, schedule.num_comm_blocks)
    unit = math.gcd(16, geo.row_bytes)
    constants: dict[str, int | bool] = {
        "has_moe": True, "moe_combines": geo.combines, "moe_experts": geo.experts, "moe_top_k": geo.top_k,
        "moe_world": geo.world, "copy_unit": unit, "sum_unit": max(unit, geo.itemsize)}
    return constants | (_groups(spec, schedule) if grouped(spec) else {})


def _groups(spec: Spec, schedule: Schedule) -> dict[str, int | bool]:
    """Constants of products of experts."""
    geo = routed_geometry(spec, schedule, schedule.num_comm_blocks)
    groups, pad = schedule.depth, PAD if isinstance(geo, GroupedGeometry) else 1
    return {"has_groups": True, "moe_experts": geo.experts, "moe_top_k": geo.top_k, "moe_world": geo.world,
            "moe_groups": groups, "moe_pad": pad}


def _multiplying(spec: Spec, schedule: Schedule, launch: Launch, stored: Buffer | None) -> dict[str, int | bool]:
    """Constants of a product."""
    staging = tile.staging(spec, schedule)
    constants: dict[str, int | bool] = {
        name: getattr(schedule, name)
        for name in ("block_m", "block_n", "block_k", "num_stages", "raster_group", "cluster_m", "split_k")}
    if tile.mma_sync(spec):
        warps_m, warps_n = tile.warp_grid(schedule)
        return constants | {
            "mma_sync": True, "warps_m": warps_m, "warps_n": warps_n, "b_row_major": spec.inputs[1].order == "row",
            "store_staged": staging.staged, "store_tensor": False, "store_columns": staging.columns,
            "store_buffers": staging.buffers}
    if in_blocks(spec):
        constants |= {"contracts": True, "sent": BOTH, "a_turned": False}
        constants |= {"slotted": True} if schedule.protocol == "credit" else {}
    if contracts(spec):
        constants |= {"contracts": True, "sent": gathered_operand(spec), "a_turned": spec.inputs[0].order == "col"}
    if schedule.consumers == tile.PINGPONG:
        constants["pingpong"] = True
    if tile.b_passes(spec, schedule):
        constants["b_passes"] = True
    if streams(launch):
        constants["stream_k"] = schedule.stream_k
    if together(spec, schedule, launch):
        constants |= {"together": True, "owners": tile.owners(spec, schedule)}
    return constants | {
        "clusters": launch.cluster > 1, "splits": schedule.split_k > 1, "b_row_major": spec.inputs[1].order == "row",
        "in_flight": tile.in_flight(spec, schedule), "store_staged": staging.staged,
        "store_tensor": staging.staged and stored is not None,
        "store_versions": stored.versions if stored is not None else 1,
        "store_columns": staging.columns, "store_buffers": staging.buffers}
