"""Named constraints: what makes a point of the crossed space infeasible. The first that fails is the one counted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from tilescale.schedules import tile
from tilescale.schedules.blocks import blocks_of
from tilescale.schedules.exchanges import exchange_geometry, exchange_of, exchanges
from tilescale.schedules.footprint import SUMMED
from tilescale.schedules.geometry import gathers_everywhere
from tilescale.schedules.grouped import grouped, routed_geometry
from tilescale.schedules.knob import BY_NAME
from tilescale.schedules.legal import TURN_ROWS
from tilescale.schedules.packing import in_packets, packed_bytes
from tilescale.schedules.ragged import RaggedGeometry, ragged
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.slots import shifts_fit, slotted_blocks
from tilescale.schedules.streaming import stream, units_of
from tilescale.schedules.sums import WINDOW_BYTES, geometry_of, norm_bytes, summed, sums
from tilescale.schedules.transports import TRANSPORTS
from tilescale.spec.contraction import contraction_inner, contracts, gathered_operand, in_blocks, in_whole_shards
from tilescale.spec.op import Spec
from tilescale.spec.scales import BLOCK

MAX_CHUNKS, MAX_GATHERED_CHUNKS = 64, 256
MAX_ACCUMULATORS = 192
MAX_IN_PACKETS = 1 << 20  # bytes: beyond, twice the bytes take longer than a fence and a signal save
MULTIPLIED = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
WHOLE_SUMS = ("direct", "scatter", "one_shot", "two_shot")  # algorithms that add up all parts in one step
GROUP_ROWS = (1024, 2048)
WARP_SUMS = 128
TURN_RESULTS = 64 * 128
# Of a thread that multiplies, which follow what tiles are shared, whose turn it is, or whose scales and numbers are read.
STREAM_REGISTERS = 16
STREAM_FULL, STREAM_STEPS, STREAM_BLOCKS = 0.95, 4, 8  # share of a wave; blocks of a contraction; blocks of a tile


@dataclass(frozen=True)
class Constraint:
    """`holds(spec, schedule)`; `rule` says in words what holds."""

    name: str
    rule: str
    holds: Callable[[Spec, Schedule], bool]


def _ragged(spec: Spec, s: Schedule) -> RaggedGeometry:
    return routed_geometry(spec, s, s.num_comm_blocks)


def _generated(spec: Spec, s: Schedule) -> bool:
    return spec.operation.compute == "gemm" and s.compute == "generated"


@lru_cache(maxsize=64)
def _local_rows(spec: Spec) -> tuple[int, ...]:
    """Rows of every rank's shard; in a sum, those that it adds up; of a contraction that is gathered, its indices."""
    if sums(spec):
        return tuple(b - a for a, b in pairwise(summed(spec).bounds))
    if in_blocks(spec):
        return tuple(spec.inputs[0].local_shape(rank, spec.world)[1] for rank in range(spec.world))
    if contracts(spec):
        operand = gathered_operand(spec)
        return tuple(spec.inputs[operand].local_shape(rank, spec.world)[1 - operand] for rank in range(spec.world))
    return tuple(spec.inputs[0].local_shape(rank, spec.world)[0] for rank in range(spec.world))


@lru_cache(maxsize=64)
def _row_bytes(spec: Spec) -> int:
    """Bytes of a row of the first operand; of a piece in a sum that multiplies nothing; of what is gathered, at an index of
    the contraction."""
    if sums(spec):
        return summed(spec).row_bytes
    if in_blocks(spec):
        return math.gcd(*(math.prod(t.local_shape(0, spec.world)) * t.itemsize for t in spec.inputs))
    if contracts(spec):
        sent = gathered_operand(spec)
        return spec.inputs[sent].local_shape(0, spec.world)[sent] * spec.inputs[sent].itemsize
    operand = spec.inputs[0]
    elements = 1
    for size in operand.local_shape(0, spec.world)[1:]:
        elements *= size
    return elements * operand.itemsize


@lru_cache(maxsize=64)
def _even_columns(spec: Spec) -> bool:
    if in_blocks(spec):
        return all(len({t.local_shape(rank, spec.world) for rank in range(spec.world)}) == 1 for t in spec.inputs)
    other = spec.inputs[1 - gathered_operand(spec)] if len(spec.inputs) > 1 and contracts(spec) else spec.inputs[-1]
    return len(spec.inputs) < 2 or len({other.local_shape(rank, spec.world) for rank in range(spec.world)}) == 1


@lru_cache(maxsize=64)
def _copied_row_bytes(spec: Spec) -> int:
    """What row offsets and sizes of copies between ranks are multiples of."""
    if sums(spec):
        found = summed(spec)
        return math.gcd(found.part_row_bytes, found.out_row_bytes if found.everywhere else 0)
    return exchange_of(spec).alignment if exchanges(spec) else _row_bytes(spec)


def _needed_bytes(spec: Spec, s: Schedule) -> int:
    """Bytes a rank holds."""
    if sums(spec):
        return sum(buffer.memory * buffer.versions for buffer in geometry_of(spec, s).buffers())
    if ragged(spec):
        return sum(buffer.size * buffer.versions for buffer in _ragged(spec, s).buffers())
    if exchanges(spec):
        buffers = exchange_geometry(spec, s.direction, s.chunk_rows).buffers()
        return sum(buffer.size * buffer.versions for buffer in buffers)
    if s.protocol == "credit":
        return sum(buffer.size * buffer.versions for buffer in slotted_blocks(spec).buffers())
    if spec.local and s.stream_k:
        return _gathered_bytes(spec) + stream(spec, s).size
    return _gathered_bytes(spec)


@lru_cache(maxsize=64)
def _gathered_bytes(spec: Spec) -> int:
    """Upper bound over directions: operands, output, and a gathered operand of two versions with its staging."""
    if in_blocks(spec):
        return sum(buffer.size * buffer.versions for buffer in blocks_of(spec).buffers())
    gathered = spec.inputs[gathered_operand(spec)]
    shard = _local_rows(spec)[0] * _row_bytes(spec)
    passed = [operand.tensor for operand in spec.operands] + [tensor for _, tensor in spec.outputs]
    local = [t.itemsize * math.prod(t.local_shape(0, spec.world)) for t in passed]
    if spec.local:
        return sum(local)
    return sum(local) + 2 * gathered.nbytes + 2 * shard


@lru_cache(maxsize=64)
def _memory_bytes(spec: Spec) -> int:
    """Of a rank: the GPU's, shared by the ranks of a shared topology."""
    topology = spec.topology
    whole = topology.level("gpu").memory_bytes
    return whole if topology.kind == "real" else whole // topology.ranks


def num_chunks(spec: Spec, s: Schedule) -> int:
    """Chunks of a shard, or of the rows that a rank adds up."""
    if sums(spec):
        return geometry_of(spec, s).max_chunks
    rows = exchange_of(spec).rows if exchanges(spec) else _local_rows(spec)[0]
    return -(-rows // s.chunk_rows) if s.chunk_rows else 1


def _chunk_within_shard(spec: Spec, s: Schedule) -> bool:
    if s.overlap == "none" or ragged(spec):
        return True
    domain = [int(v) for v in BY_NAME["chunk_rows"].domain]
    smaller = [v for v in domain if v < s.chunk_rows]
    return not smaller or smaller[-1] < _own_rows(spec, s)


def _own_rows(spec: Spec, s: Schedule) -> int:
    """Most rows that chunk_rows cuts, in rows of the first tensor."""
    if exchanges(spec):
        return exchange_of(spec).rows
    if not sums(spec):
        return _local_rows(spec)[0]
    found = summed(spec)
    rows = found.rows if s.algorithm == "one_shot" else _local_rows(spec)[0]
    return -(-rows // found.chunk_unit)


def _whole_tiles(spec: Spec, s: Schedule) -> bool:
    unit = s.block_k if contracts(spec) else s.block_m
    return not _generated(spec, s) or s.chunk_rows % unit == 0 or s.chunk_rows >= _own_rows(spec, s)


def _peers(spec: Spec) -> int:
    """Most peers that a rank sends to."""
    return exchange_of(spec).peers if exchanges(spec) else spec.world - 1


def _depth_within_transfers(spec: Spec, s: Schedule) -> bool:
    if grouped(spec):
        return _ragged(spec, s).local % s.depth == 0
    shared_out = s.overlap == "fused" and not _ring_of_sums(spec, s)
    return s.depth <= num_chunks(spec, s) * (_peers(spec) if shared_out else 1)


def _order_matters(spec: Spec, s: Schedule) -> bool:
    least = s.depth if _ring_of_sums(spec, s) else 1  # gangs of such a ring have their own chunks
    fewest = 0 if s.algorithm == "scatter" else least  # which walks all owners at once in one order
    return s.chunk_order == "peer_major" or (num_chunks(spec, s) > fewest and _peers(spec) > 1)


def _ring_of_sums(spec: Spec, s: Schedule) -> bool:
    return s.algorithm == "ring" and sums(spec)


def _comm_blocks_fit(spec: Spec, s: Schedule) -> bool:
    share = spec.topology.sm_share
    return s.num_comm_blocks <= (share if s.overlap == "none" else share // 2)


def _operand_alignment(spec: Spec, s: Schedule) -> bool:
    """Tensor maps want row pitches in 16 bytes."""
    if not _generated(spec, s):
        return True
    if contracts(spec) or in_blocks(spec):
        return all(pitch % 16 == 0 for pitch in _factor_pitches(spec))
    b = spec.inputs[1]
    k, n = b.local_shape(0, spec.world)[-2:]
    return _row_bytes(spec) % 16 == 0 and (k if b.order == "col" else n) * b.itemsize % 16 == 0


def _factor_pitches(spec: Spec) -> Iterator[int]:
    """Bytes between rows of both factors, and between shards along them."""
    for operand, tensor in enumerate(spec.inputs):
        outer = tensor.local_shape(0, spec.world)[operand]
        k = _local_rows(spec)[0] if contraction_inner(operand, tensor) else 1
        yield (outer if k == 1 else k) * tensor.itemsize


def _index_range(spec: Spec, s: Schedule) -> bool:
    if not _generated(spec, s):
        return True
    m, n, k = spec.mnk
    return max(m, n, k) < 2**31 and (-(-m // s.block_m)) * (-(-n // s.block_n)) < 2**31


def _rows_suit_tile(spec: Spec, s: Schedule) -> bool:
    if not _generated(spec, s):
        return True
    if tile.small_m(spec):
        return s.block_m == tile.padded_rows(_local_rows(spec)[0]) and s.block_n in (64, 128)
    return s.block_m >= tile.ROWS


def _finishes_bytes(spec: Spec) -> bool:
    """Whether those who multiply bytes of experts, and follow which expert's, apply epilogues too."""
    return grouped(spec) and tile.promotes(spec) and bool(spec.then)


def _stage_rows(spec: Spec, s: Schedule) -> bool:
    if not _generated(spec, s):
        return True
    at_once = s.block_k == tile.PROMOTED or tile.small_m(spec) or not tile.promotes(spec)
    return at_once and s.block_k * spec.inputs[0].itemsize % tile.ROW_BYTES == 0


def _columns_needed(spec: Spec, s: Schedule) -> bool:
    """Of widths that make as many tiles, the narrowest alone is taken."""
    if not spec.local or not _generated(spec, s) or tile.small_m(spec):
        return True
    columns = spec.inputs[1].local_shape(0, spec.world)[1]
    narrower = [int(v) for v in BY_NAME["block_n"].allowed(spec) if int(v) < s.block_n]
    return not narrower or -(-columns // narrower[-1]) > -(-columns // s.block_n)


def _raster_matters(spec: Spec, s: Schedule) -> bool:
    """Groups span GROUP_ROWS rows, which a wave of tiles is about as wide as; of sizes that hold all rows of tiles, the
    smallest alone is taken."""
    if not spec.local or not _generated(spec, s) or tile.small_m(spec):
        return True
    height, domain = s.block_m * s.cluster_m, [int(v) for v in BY_NAME["raster_group"].domain]
    rows = -(-_local_rows(spec)[0] // height)
    holding = [v for v in domain if v >= rows]
    if holding and holding[0] * height <= GROUP_ROWS[1]:
        return s.raster_group == holding[0]
    spanning = [v for v in domain if GROUP_ROWS[0] <= v * height <= GROUP_ROWS[1]]
    return s.raster_group in (spanning or domain[:1])


def _deep_enough(spec: Spec, s: Schedule) -> bool:
    """Fewer stages than fit leave room for results on their way out: one fewer, at most two."""
    if not spec.local or not _generated(spec, s):
        return True
    domain = [int(v) for v in BY_NAME["num_stages"].domain]
    fitting = [v for v in domain if tile.shared_bytes(spec, replace(s, num_stages=v)) <= spec.topology.gpu.smem_bytes]
    return s.num_stages in fitting[-2:]


def _split_fills(spec: Spec, s: Schedule) -> bool:
    if s.split_k == 1:
        return True
    steps = -(-spec.inputs[0].local_shape(0, spec.world)[1] // s.block_k)
    return (
        s.cluster_m == 1 and steps >= s.split_k
        and tile.tiles(spec, s) * s.split_k <= tile.clustered(spec.topology.sm_share, s.split_k)
        and (tile.landing_bytes(spec, s) <= s.num_stages * tile.stage_bytes(spec, s)))


def _warps(spec: Spec, s: Schedule) -> bool:
    """Whether warps multiply by mma.sync."""
    return _generated(spec, s) and tile.mma_sync(spec)


def _stream_evens(spec: Spec, s: Schedule) -> bool:
    """Whether sharing tiles evens out a last wave that is not full, at parts worth what they cost."""
    if s.stream_k == 0:
        return True
    found = stream(spec, s)
    rest = (found.whole + found.shared) % found.units
    waves = -(-(found.whole + found.shared) // found.units)
    return (
        0 < rest <= STREAM_FULL * found.units and waves >= s.stream_k
        and found.units <= STREAM_BLOCKS * found.shared and found.shared * found.steps >= STREAM_STEPS * found.units)


def _turns(spec: Spec, s: Schedule) -> bool:
    """Whether the stores of one warpgroup lie beneath the products of the other."""
    return s.consumers == "cooperative" or (
        s.block_m in TURN_ROWS and s.block_m * s.block_n >= TURN_RESULTS
        and tile.tiles(spec, s) >= 2 * units_of(spec, s))


def _multicast_moves(spec: Spec, s: Schedule) -> bool:
    """A switch hands on what everyone receives, and adds up what all ranks have."""
    return not _multicast(s) or (
        (sums(spec) or gathers_everywhere(spec)) and s.algorithm != "ring"
        and s.direction == ("pull" if sums(spec) else "push"))


def _multicast(s: Schedule) -> bool:
    return TRANSPORTS[s.transport].multicast


def _rounds_once(spec: Spec, s: Schedule) -> bool:
    if not _multicast(s) or not sums(spec):
        return True
    found = summed(spec)
    return found.element in SUMMED and found.element in ("float32", found.out)


CONSTRAINTS: tuple[Constraint, ...] = (
    Constraint("multicast", "the switch between the GPUs stores to and reads from all of them at once (multimem)",
               lambda spec, s: not _multicast(s) or spec.topology.link.multicast),
    Constraint("multicast_moves", "multimem pushes what all ranks receive, and pulls sums over all of them",
               _multicast_moves),
    Constraint("multicast_without_epilogues", "sums of a switch have no epilogues",
               lambda spec, s: not (_multicast(s) and sums(spec) and (spec.then or spec.extras))),
    Constraint("multicast_order", "a deterministic sum has an order, which the one of a switch is not known to have",
               lambda spec, s: not (_multicast(s) and sums(spec) and spec.deterministic)),
    Constraint("multicast_rounds_once", "a switch adds at fp32's precision and rounds once, to what it adds: fp32, or the "
                                        "type of the output", _rounds_once),
    Constraint("even_columns", "every rank holds as many columns, or rows, of B", lambda spec, s: _even_columns(spec)),
    Constraint("even_contraction", "every rank holds as much of a contraction that is gathered, and something to multiply",
               lambda spec, s: not (contracts(spec) or in_blocks(spec)) or (
                   len(set(_local_rows(spec))) == 1 and min(spec.mnk) > 0)),
    Constraint("gpu_memory", "operands, output and workspace of a rank fit its share of the GPU's memory",
               lambda spec, s: _needed_bytes(spec, s) <= _memory_bytes(spec)),
    Constraint("rows_contiguous", "the gathered operand is row-major, so that a chunk of rows is contiguous",
               lambda spec, s: contracts(spec) or spec.inputs[0].order == "row"),
    Constraint("segments_contiguous", "an operand whose contraction is its inner dimension is gathered in whole shards",
               lambda spec, s: not in_whole_shards(spec) or s.overlap == "none" or s.chunk_rows >= _own_rows(spec, s)),
    Constraint("contraction_in_one_product", "parts of a contraction are summed in registers: a library call takes all of "
               "it, behind copies of rows", lambda spec, s: not contracts(spec) or s.compute == "generated" or (
                   s.overlap == "none" and not in_whole_shards(spec))),
    Constraint("blocks_in_one_kernel", "blocks of matrices are pushed by a kernel, and multiplied in it or behind it",
               lambda spec, s: not in_blocks(spec) or (
                   s.direction == "push" and s.overlap != "chunked" and s.compute == "generated"
                   and TRANSPORTS[s.transport].agent == "blocks")),
    Constraint("shifts_in_slots", "what ranks pass on comes in another order than it is multiplied: slots hold all of it",
               lambda spec, s: s.protocol != "credit" or shifts_fit(spec, s)),
    Constraint("contraction_beside_blocks", "a contraction chunked on streams is copied by blocks; copy engines feed the "
               "fused kernel", lambda spec, s: not (contracts(spec) and s.overlap == "chunked" and
                                                    s.transport == "copy_engine")),
    Constraint("output_dtype", "generated products are stored as bfloat16, float16 or float32",
               lambda spec, s: not _generated(spec, s) or spec.output.dtype in ("bfloat16", "float16", "float32")),
    Constraint("fp8_k_major", "wgmma reads float8 operands along K: declare B with order='col', as a Linear has it",
               lambda spec, s: not _generated(spec, s) or spec.inputs[1].itemsize > 1 or spec.inputs[1].order == "col"),
    Constraint("peer_access", "peers can address each other's memory",
               lambda spec, s: spec.topology.link is None or spec.topology.link.peer_access),
    Constraint("transport_arch", "the transport compiles for the GPU",
               lambda spec, s: TRANSPORTS[s.transport].compiles_for(spec.topology.gpu.arch)),
    Constraint("transport_alignment", "rows are multiples of what the transport moves",
               lambda spec, s: _copied_row_bytes(spec) % TRANSPORTS[s.transport].alignment == 0),
    Constraint("sums_read_directly", "a sum that pulls reads its peers directly, as peer_copy and multimem do",
               lambda spec, s: not sums(spec) or s.direction == "push" or s.transport == "peer_copy" or _multicast(s)),
    Constraint("scatter_stores", "products are scattered by the stores of a generated product that nothing else follows",
               lambda spec, s: s.algorithm != "scatter" or (
                   s.direction == "push" and s.transport == "peer_copy" and s.overlap != "chunked"
                   and s.compute == "generated")),
    Constraint("ring_passes_on", "a ring has ranks that pass on, so more than two", lambda spec, s: (
        s.algorithm != "ring" or spec.world > 2)),
    Constraint("ring_pushes", "in a ring every rank sends to the next one", lambda spec, s: (
        s.algorithm != "ring" or s.direction == "push")),
    Constraint("ring_stores_sums", "sums on their way are stored at the next rank by blocks that add, as peer_copy does",
               lambda spec, s: not _ring_of_sums(spec, s) or s.transport == "peer_copy"),
    Constraint("ring_behind_product", "products go round a ring when they are complete: nothing overlaps", lambda spec, s: (
        not (_ring_of_sums(spec, s) and spec.operation.compute == "gemm" and s.overlap != "none"))),
    Constraint("streams_carry_products", "chunks of a sum on streams are products; without one, they overlap in one kernel",
               lambda spec, s: not (sums(spec) and spec.operation.compute != "gemm" and s.overlap == "chunked")),
    Constraint("chunk_count", f"a rank adds up, or sends a peer, at most {MAX_CHUNKS} chunks, and a gathered shard has at "
               f"most {MAX_GATHERED_CHUNKS}: declare a flat tensor with rows", lambda spec, s: num_chunks(spec, s) <= (
                   MAX_CHUNKS if sums(spec) or exchanges(spec) else MAX_GATHERED_CHUNKS)),
    Constraint("exchange_in_one_kernel", "an exchange overlaps in one kernel, not on streams",
               lambda spec, s: not (exchanges(spec) and s.overlap == "chunked")),
    Constraint("ragged_in_one_kernel", "rows whose number the device alone knows are moved in one kernel, by peer_copy",
               lambda spec, s: not ragged(spec) or (s.transport == "peer_copy" and s.overlap != "chunked")),
    Constraint("ragged_pull", "rows are pulled where peers can read them: symmetric, or as many tokens on every rank, "
               "copied first",
               lambda spec, s: not ragged(spec) or s.direction == "push" or _ragged(spec, s).pullable),
    Constraint("grouped_pushes", "tokens that experts multiply are pushed, group by group",
               lambda spec, s: not grouped(spec) or s.direction == "push"),
    Constraint("grouped_generated", "libraries multiply matrices whose sizes the host knows: products of experts are "
               "generated", lambda spec, s: not grouped(spec) or s.compute == "generated"),
    Constraint("ragged_shared_memory", "the numbers of experts fit the shared memory of a block",
               lambda spec, s: not ragged(spec) or _ragged(spec, s).shared_bytes <= spec.topology.gpu.smem_bytes),
    Constraint("engine_contiguous", "a copy engine copies contiguous bytes, not rows at a pitch",
               lambda spec, s: not exchanges(spec) or s.transport != "copy_engine" or exchange_of(spec).contiguous),
    Constraint("library_dtype", "library products take bfloat16, float16 and float32 operands",
               lambda spec, s: _generated(spec, s) or spec.operation.compute != "gemm" or all(
                   t.dtype in ("bfloat16", "float16", "float32") for t in spec.inputs)),
    Constraint("library_not_fused", "a library call cannot wait inside",
               lambda spec, s: not (spec.operation.compute == "gemm" and s.overlap == "fused" and s.compute == "library")),
    Constraint("epilogue_in_kernel", "a library call only multiplies: epilogues of a product without sums are generated",
               lambda spec, s: _generated(spec, s) or spec.operation.compute != "gemm" or sums(spec) or not spec.extended),
    Constraint("whole_rows_at_owner", "epilogues of whole rows follow a sum that is added up in one step, not round a ring",
               lambda spec, s: not any(epilogue.whole_rows for epilogue in spec.epilogues) or s.algorithm in WHOLE_SUMS),
    Constraint("packets_whole", "what goes from a rank to another as packets is whole ones of 8 bytes, as much for all, "
               "of two shots in sums of the type of parts",
               lambda spec, s: s.protocol != "ll" or in_packets(spec, s.algorithm)),
    Constraint("packets_small", f"packets, which take twice the bytes, carry operands of at most {MAX_IN_PACKETS >> 10} KB",
               lambda spec, s: s.protocol != "ll" or packed_bytes(spec) <= MAX_IN_PACKETS),
    Constraint("packets_by_themselves", "what arrives as packets is added up by itself, not by rows",
               lambda spec, s: s.protocol != "ll" or not any(epilogue.whole_rows for epilogue in spec.epilogues)),
    Constraint("fused_has_kernel", "a fused schedule has a kernel to fuse into",
               lambda spec, s: not (s.overlap == "fused" and spec.operation.compute != "gemm"
                                    and s.transport == "copy_engine" and s.direction == "pull")),
    Constraint("even_products", "products of the rows that a rank gathers are generated where all shards have as many",
               lambda spec, s: not _generated(spec, s) or spec.operation.moves == () or sums(spec)
               or ragged(spec) or len(set(_local_rows(spec))) == 1),
    Constraint("rows_to_multiply", "products of no rows are left to the library, which is not called for them",
               lambda spec, s: not _generated(spec, s) or spec.mnk[0] > 0),
    Constraint("product_arch", "generated products use wgmma, which sm_90a has, or mma.sync behind cp.async, before sm_90",
               lambda spec, s: not _generated(spec, s) or spec.topology.gpu.arch == "sm_90a" or tile.mma_sync(spec)),
    Constraint("warp_operands", "products of warps (before sm_90) take bfloat16 or float16",
               lambda spec, s: not _warps(spec, s) or not tile.promotes(spec)),
    Constraint("warp_contraction", "contractions that are gathered, and blocks of matrices, are multiplied by wgmma",
               lambda spec, s: not _warps(spec, s) or not (contracts(spec) or in_blocks(spec))),
    Constraint("warp_registers", f"the sums of a warp's part of a tile take at most {WARP_SUMS} registers of a thread",
               lambda spec, s: not _warps(spec, s) or tile.accumulators(spec, s) <= WARP_SUMS),
    Constraint("warp_halves", "warps store the half of their columns in pieces of 32 bytes",
               lambda spec, s: not _warps(spec, s) or tile.stored_columns(spec, s) // tile.warp_grid(s)[1] % 16 == 0),
    Constraint("wgmma_dtype", "generated products take operands of one type: bfloat16, float16, float8_e4m3fn, float8_e5m2",
               lambda spec, s: not _generated(spec, s) or (
                   spec.inputs[0].dtype in MULTIPLIED and spec.inputs[0].dtype == spec.inputs[1].dtype)),
    Constraint("scale_columns", "a tile lies in one column of block scales, which are 128 wide",
               lambda spec, s: not _generated(spec, s) or spec.attribute("scales") != "block" or BLOCK % s.block_n == 0),
    Constraint("stage_rows", "a stage holds whole rows of 128 bytes along K, of float8 those that are summed at once",
               _stage_rows),
    Constraint("operand_alignment", "rows of both operands are multiples of 16 bytes", _operand_alignment),
    Constraint("chunk_within_shard", "a chunk is no larger than the shard needs", _chunk_within_shard),
    Constraint("whole_tiles", "a chunk is made of whole tiles, or is the shard", _whole_tiles),
    Constraint("depth_within_transfers", "no more chunks are in flight than there are; experts of a rank are cut into "
               "equal groups", _depth_within_transfers),
    Constraint("order_matters", "the order of chunks matters only with several chunks and several peers", _order_matters),
    Constraint("depth_divides_blocks", "every chunk in flight gets the same number of blocks",
               lambda spec, s: s.num_comm_blocks % s.depth == 0),
    Constraint("comm_blocks_fit", "copying leaves at least half of the SMs to the work beside it", _comm_blocks_fit),
    Constraint("sum_blocks_fit", "a sixteenth to a quarter of the SMs add up chunks beside those that multiply others",
               lambda spec, s: s.sum_blocks == 0 or (
                   spec.topology.sm_share < 16 * s.sum_blocks <= 4 * spec.topology.sm_share and num_chunks(spec, s) > 1)),
    Constraint("work_blocks_fit", "the streams of small kernels leave an SM to work on",
               lambda spec, s: s.overlap == "none" or s.depth < spec.topology.sm_share),
    Constraint("rows_suit_tile", "a tile has at least 64 rows; few rows have the tile that just holds them",
               _rows_suit_tile),
    Constraint("accumulators_fit", "the sums of a tile fit the registers of the threads that multiply",
               lambda spec, s: not _generated(spec, s) or tile.sum_registers(spec, s) <= MAX_ACCUMULATORS - (
                   STREAM_REGISTERS if s.stream_k or s.consumers == tile.PINGPONG or _finishes_bytes(spec) else 0)),
    Constraint("halves_stored_whole", "a tile whose columns become half as many stores them in pieces of 32 bytes",
               lambda spec, s: not _generated(spec, s) or tile.stored_columns(spec, s) % 16 == 0),
    Constraint("cluster_has_rows", "blocks of a cluster have a row of tiles each",
               lambda spec, s: s.cluster_m == 1 or (not tile.small_m(spec)
                                                    and s.block_m * (s.cluster_m - 1) < _local_rows(spec)[0])),
    Constraint("split_fills", "blocks that share a contraction have a part each, and all tiles run at once", _split_fills),
    Constraint("stream_evens", "blocks share tiles along the contraction where the last wave is not nearly full, each at "
               f"least {STREAM_STEPS} blocks of it, and a tile in at most {STREAM_BLOCKS} parts", _stream_evens),
    Constraint("turns", "warpgroups that take turns have tiles of 64 or 128 rows, of at least "
               f"{TURN_RESULTS} results, and each several", _turns),
    Constraint("columns_needed", "a tile is no wider than its number of columns of tiles needs", _columns_needed),
    Constraint("raster_matters", "a group of rows of tiles spans about as many rows as a wave is wide", _raster_matters),
    Constraint("shared_memory", "the stages fit the shared memory of a block",
               lambda spec, s: not _generated(spec, s) or tile.shared_bytes(spec, s) <= spec.topology.gpu.smem_bytes),
    Constraint("norm_row_fits", "a row that is normalised fits shared memory beside the transport's pipeline",
               lambda spec, s: TRANSPORTS[s.transport].shared_bytes + WINDOW_BYTES + norm_bytes(spec)
               <= spec.topology.gpu.smem_bytes),
    Constraint("deep_enough", "the pipeline has about as many stages as fit", _deep_enough),
    Constraint("index_range", "rows, columns and tiles have 32-bit indices", _index_range),
)


def first_broken(spec: Spec, schedule: Schedule) -> Constraint | None:
    """The first constraint that does not hold, or None where the schedule is feasible."""
    return next((c for c in CONSTRAINTS if not c.holds(spec, schedule)), None)
