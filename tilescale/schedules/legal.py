"""Whether a schedule makes sense at all, in the space or out of it: what lowering relies on, checked with words."""

from __future__ import annotations

from collections.abc import Collection

from tilescale.errors import ScheduleError, SpecError, nearest
from tilescale.schedules import tile
from tilescale.schedules.algorithms import ALGORITHMS
from tilescale.schedules.exchanges import exchange_of, exchanges
from tilescale.schedules.geometry import gathers_everywhere
from tilescale.schedules.grouped import grouped
from tilescale.schedules.knob import BY_NAME, WARP_COLUMNS
from tilescale.schedules.packing import in_packets, packable
from tilescale.schedules.plan import PACKET_BYTES
from tilescale.schedules.ragged import ragged, ragged_geometry
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.slots import SLOTS, shifts_fit
from tilescale.schedules.streaming import stream
from tilescale.schedules.sums import sums
from tilescale.schedules.transports import TRANSPORTS
from tilescale.spec.contraction import contracts, in_blocks, in_whole_shards
from tilescale.spec.op import Spec
from tilescale.spec.scales import BLOCK

DIRECTIONS = ("push", "pull")
OVERLAPS = ("none", "chunked", "fused")
COMPUTES = ("generated", "library")
ORDERS = ("peer_major", "chunk_major")
CONSUMERS = ("cooperative", "pingpong")
SCOPES = ("block", "warpgroup", "warp")
PROTOCOLS = ("simple", "ll", "credit")
MAX_BLOCKS = 1 << 16
MAX_WAVES = 2
TURN_ROWS = (64, 128)
BLOCK_M = (8, 16, 32, 64, 128, 256)
BLOCK_N = tuple(range(48, 257, 16))


def require_spec(value: object) -> Spec:
    """The spec itself; SpecError for anything else."""
    if not isinstance(value, Spec):
        raise SpecError("a spec is what matmul, linear or redistribute return", type(value).__name__,
                        "declare one, such as tilescale.matmul(a, b, out=tilescale.FullCol, topology=topology)")
    return value


def check(spec: object, schedule: object) -> None:
    """Raise SpecError or ScheduleError, naming knob and values, where lowering could not carry out the schedule."""
    known = require_spec(spec)
    known.require_kernels()
    if not isinstance(schedule, Schedule):
        raise ScheduleError("a schedule is a Schedule", type(schedule).__name__, "take one of tilescale.space(spec)")
    _check_names(schedule)
    for name, low in (("chunk_rows", 0), ("depth", 1), ("num_comm_blocks", 0), ("block_m", 0), ("block_n", 0),
                      ("block_k", 0), ("num_stages", 0), ("raster_group", 0), ("cluster_m", 1), ("split_k", 1),
                      ("stream_k", 0), ("sum_blocks", 0)):
        _check_number(schedule, name, low)
    _check_algorithm(known, schedule)
    if not known.local:
        _check_copying(schedule, _sends(known, schedule), not ragged(known) and not in_blocks(known))
    if known.operation.compute == "gemm":
        _check_product(schedule)
        _check_warps(known, schedule)
        _check_stream(known, schedule)
        _check_turns(known, schedule)
        _check_rows(known, schedule)
    _check_sums_beside(known, schedule)
    if contracts(known):
        _check_contraction(known, schedule)
    if in_blocks(known):
        _check_blocks(schedule)
    if schedule.protocol == "ll":
        _check_packets(known, schedule)
    if schedule.protocol == "credit":
        _check_slots(known, schedule)


def _check_names(s: Schedule) -> None:
    choices: tuple[tuple[str, Collection[str]], ...] = (
        ("transport", TRANSPORTS.names()), ("algorithm", ALGORITHMS.names()), ("direction", DIRECTIONS),
        ("overlap", OVERLAPS), ("compute", COMPUTES), ("chunk_order", ORDERS),
        ("copy_scope", SCOPES), ("protocol", PROTOCOLS), ("consumers", CONSUMERS))
    for name, known in choices:
        value = getattr(s, name)
        if value not in known:
            raise ScheduleError(f"{name} is one of {', '.join(known)}", repr(value), nearest(value, known))


def _check_number(s: Schedule, name: str, low: int) -> None:
    value = getattr(s, name)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value < 2**31:
        raise ScheduleError(f"{name} is an integer, at least {low} and below 2**31", repr(value),
                            "see tilescale.space(spec)")


def _sends(spec: Spec, s: Schedule) -> bool:
    """Whether copies of their own carry data to peers."""
    return not (spec.operation.compute == "gemm" and sums(spec) and (s.direction == "pull" or s.algorithm == "scatter"))


def _check_algorithm(spec: Spec, s: Schedule) -> None:
    known = BY_NAME["algorithm"].values(spec, {})
    if s.algorithm not in known:
        raise ScheduleError(f"algorithms of {spec.op} are {', '.join(map(str, known))}", f"algorithm={s.algorithm!r}",
                            "use one of these")
    if exchanges(spec):
        _check_exchange(spec, s)
    wanted = "pull" if sums(spec) else "push"
    if TRANSPORTS[s.transport].multicast and not spec.local and (
            not (sums(spec) or gathers_everywhere(spec)) or s.direction != wanted):
        raise ScheduleError("multimem pushes what all ranks receive, and pulls sums over all ranks",
                            f"{spec.op}, direction={s.direction!r}", f"use direction={wanted!r}, or another transport")
    if s.algorithm == "ring" and (s.direction != "push" or TRANSPORTS[s.transport].multicast):
        raise ScheduleError("in a ring every rank sends to the next one", f"{s.transport}, direction={s.direction!r}",
                            "use direction='push' and another transport than multimem")
    if ragged(spec):
        _check_ragged(spec, s)
    if not sums(spec):
        return
    if s.algorithm == "ring":
        _check_ring(spec, s)
    if TRANSPORTS[s.transport].multicast and (spec.then or spec.extras):
        raise ScheduleError("sums of a switch have no epilogues", f"then={spec.then}", "use another transport")
    if s.direction == "pull" and s.transport != "peer_copy" and not TRANSPORTS[s.transport].multicast:
        raise ScheduleError("a sum that pulls reads its peers directly", f"transport={s.transport!r}",
                            "use transport='peer_copy' or direction='push'")
    if s.algorithm == "scatter" and ((s.compute, s.direction) != ("generated", "push") or s.overlap == "chunked"):
        raise ScheduleError("products are scattered by the stores of a generated product, none of them on other streams",
                            f"overlap={s.overlap!r}, compute={s.compute!r}, direction={s.direction!r}",
                            "use overlap='fused' or 'none', compute='generated', direction='push'")
    if s.overlap == "chunked" and spec.operation.compute != "gemm":
        raise ScheduleError("chunks of a sum on streams are products", f"{spec.op}, overlap='chunked'",
                            "use overlap='fused' or 'none'")


def _check_sums_beside(spec: Spec, s: Schedule) -> None:
    """Blocks that add up beside those that multiply: parts that peers read, or store here."""
    if s.sum_blocks == 0:
        return
    given = f"{spec.op}, sum_blocks={s.sum_blocks}, overlap={s.overlap!r}, algorithm={s.algorithm!r}, {s.direction}"
    if not BY_NAME["sum_blocks"].applies(spec, s.as_dict()):
        raise ScheduleError("sums beside products are of parts that peers read or store, chunk by chunk", given,
                            "use overlap='fused', compute='generated', chunk_order='chunk_major', and direction='pull' or "
                            "algorithm='scatter'; or sum_blocks=0")
    if s.sum_blocks >= spec.topology.sm_share:
        raise ScheduleError(f"blocks that add up leave some of {spec.topology.sm_share} SMs to those that multiply", given,
                            "use fewer")


def _check_ring(spec: Spec, s: Schedule) -> None:
    if s.transport != "peer_copy":
        raise ScheduleError("sums on their way are stored at the next rank by the blocks that add",
                            f"transport={s.transport!r}", "use transport='peer_copy'")
    if spec.operation.compute == "gemm" and s.overlap != "none":
        raise ScheduleError("products go round a ring when they are complete", f"overlap={s.overlap!r}",
                            "use overlap='none'")
    if any(epilogue.whole_rows for epilogue in spec.epilogues):
        raise ScheduleError("sums that go round a ring are added up by elements, not by rows",
                            f"then={', '.join(spec.then)}", "use another algorithm")


def _check_exchange(spec: Spec, s: Schedule) -> None:
    if s.overlap == "chunked":
        raise ScheduleError("an exchange overlaps in one kernel", f"{spec.op}, overlap='chunked'",
                            "use overlap='fused' or 'none'")
    if TRANSPORTS[s.transport].agent != "copy_engine":
        return
    if not exchange_of(spec).contiguous:
        raise ScheduleError("a copy engine copies contiguous bytes", f"{spec.label}, transport={s.transport!r}",
                            "use transport='peer_copy' or 'tma'")
    if s.direction == "pull" and s.overlap == "fused":
        raise ScheduleError("a fused exchange has a kernel beside its copies", "a copy engine that pulls, overlap='fused'",
                            "use overlap='none' or direction='push'")


def _check_ragged(spec: Spec, s: Schedule) -> None:
    if s.transport != "peer_copy" or s.overlap == "chunked":
        raise ScheduleError("rows whose number the device alone knows are moved in one kernel, by peer_copy",
                            f"{spec.op}, transport={s.transport!r}, overlap={s.overlap!r}",
                            "use transport='peer_copy', overlap='none' or 'fused'")
    if s.copy_scope != "block":
        raise ScheduleError("warps move rows whose number the device alone knows",
                            f"{spec.op}, copy_scope={s.copy_scope!r}", "use copy_scope='block'")
    share = spec.topology.sm_share
    if s.overlap == "fused" and s.num_comm_blocks >= share:
        raise ScheduleError(f"a gang beside the one that sends has some of {share} SMs",
                            f"num_comm_blocks={s.num_comm_blocks}", "use fewer")
    if grouped(spec):
        _check_grouped(spec, s)
    elif s.direction == "pull" and not ragged_geometry(spec, s.direction, s.num_comm_blocks).pullable:
        raise ScheduleError("rows are pulled where peers can read them", f"{spec.op}, direction='pull'",
                            "declare inputs='symmetric', or use direction='push'")


def _check_grouped(spec: Spec, s: Schedule) -> None:
    if s.direction != "push" or s.compute != "generated":
        raise ScheduleError("what experts multiply is pushed, and multiplied by a generated kernel",
                            f"{spec.op}, direction={s.direction!r}, compute={s.compute!r}",
                            "use direction='push', compute='generated'")
    local = ragged_geometry(spec, "push", 1).local
    if local % s.depth:
        raise ScheduleError("experts of a rank are cut into equal groups", f"depth={s.depth}, {local} experts a rank",
                            "make depth divide the experts of a rank")


def _check_copying(s: Schedule, sends: bool, chunks: bool) -> None:
    blocks = TRANSPORTS[s.transport].agent == "blocks"
    if chunks and s.overlap != "none" and s.chunk_rows == 0:
        raise ScheduleError(f"an overlap of {s.overlap} has chunks", "chunk_rows=0", "set chunk_rows, or overlap='none'")
    if s.overlap == "none" and s.depth != 1:
        raise ScheduleError("one chunk is in flight where nothing overlaps", f"depth={s.depth}", "set depth=1")
    if blocks and sends and not 0 < s.num_comm_blocks < MAX_BLOCKS:
        raise ScheduleError(f"{s.transport} copies with 1 to {MAX_BLOCKS - 1} blocks",
                            f"num_comm_blocks={s.num_comm_blocks}", "set num_comm_blocks")
    if blocks and s.num_comm_blocks % s.depth:
        raise ScheduleError("every chunk in flight gets the same number of blocks",
                            f"num_comm_blocks={s.num_comm_blocks}, depth={s.depth}", "make depth divide num_comm_blocks")
    if not blocks and s.num_comm_blocks:
        raise ScheduleError(f"{s.transport} uses no blocks to copy", f"num_comm_blocks={s.num_comm_blocks}", "set it to 0")


def _check_blocks(s: Schedule) -> None:
    given = f"direction={s.direction!r}, overlap={s.overlap!r}, transport={s.transport!r}, compute={s.compute!r}"
    pushed = s.direction == "push" and TRANSPORTS[s.transport].agent == "blocks"
    if not pushed or s.overlap == "chunked" or s.compute != "generated":
        raise ScheduleError("blocks of matrices are pushed by blocks of a kernel, and multiplied in it or behind it", given,
                            "use direction='push', overlap='fused' or 'none', transport='peer_copy' or 'tma'")
    if s.chunk_rows:
        raise ScheduleError("blocks of matrices travel whole", f"chunk_rows={s.chunk_rows}", "set chunk_rows=0")


def _check_slots(spec: Spec, s: Schedule) -> None:
    if not in_blocks(spec) or s.overlap != "fused":
        raise ScheduleError("slots are handed back by blocks that multiply panels of block matrices as they come",
                            f"{spec.op}, overlap={s.overlap!r}", "use protocol='simple'")
    if not shifts_fit(spec, s):
        raise ScheduleError(f"what ranks pass on comes in another order than it is multiplied: {SLOTS} slots hold it all",
                            f"a mesh of {spec.topology.mesh_sizes}", "use protocol='simple'")


def _check_packets(spec: Spec, s: Schedule) -> None:
    chosen = {"transport": "peer_copy", "direction": "push", "overlap": "none", "copy_scope": "block"}
    wrong = [f"{name}={getattr(s, name)!r}" for name, value in chosen.items() if getattr(s, name) != value]
    wrong += [f"algorithm={s.algorithm!r}"] if s.algorithm not in ("direct", "one_shot", "two_shot") else []
    if not packable(spec) or wrong:
        raise ScheduleError(
            "packets carry what ranks gather or add up, and store at their peers", ", ".join([spec.op, *wrong]),
            ", ".join(["use protocol='simple', or no ring", *(f"{k}={v!r}" for k, v in chosen.items())]))
    if not in_packets(spec, s.algorithm):
        raise ScheduleError(
            f"what goes from a rank to another is whole packets of {PACKET_BYTES} bytes, as much for all, of two shots in "
            "sums of the type of parts", f"{spec.label}, algorithm={s.algorithm!r}", "use protocol='simple', or one shot")
    if any(epilogue.whole_rows for epilogue in spec.epilogues):
        raise ScheduleError("packets are added up by themselves, not by rows", f"then={', '.join(spec.then)}",
                            "use protocol='simple'")


def _check_contraction(spec: Spec, s: Schedule) -> None:
    if s.compute == "library" and (s.overlap != "none" or in_whole_shards(spec)):
        raise ScheduleError("a library call takes a whole contraction, gathered as rows",
                            f"{spec.label}, overlap={s.overlap!r}",
                            "use overlap='none' where the contraction is the outer dimension, or compute='generated'")
    if s.overlap == "chunked" and TRANSPORTS[s.transport].agent != "blocks":
        raise ScheduleError("a contraction chunked on streams is copied by blocks", f"transport={s.transport!r}",
                            "use overlap='fused', or transport='peer_copy' or 'tma'")
    if s.compute == "generated" and s.chunk_rows % s.block_k:
        raise ScheduleError("a chunk of a contraction is made of whole blocks of it",
                            f"chunk_rows={s.chunk_rows}, block_k={s.block_k}", "make block_k divide chunk_rows")


def _check_product(s: Schedule) -> None:
    if s.compute == "library":
        if s.overlap == "fused":
            raise ScheduleError("a library call cannot wait inside", "compute='library', overlap='fused'",
                                "use overlap='chunked' or compute='generated'")
        return
    rules = (("block_m", s.block_m in BLOCK_M, ", ".join(map(str, BLOCK_M))),
             ("block_n", s.block_n in BLOCK_N, ", ".join(map(str, BLOCK_N))),
             ("block_k", s.block_k in (64, 128, 256, 512), "64, 128, 256 or 512"),
             ("num_stages", 2 <= s.num_stages <= 32, "2 to 32"),
             ("raster_group", s.raster_group >= 1, "at least 1"), ("cluster_m", s.cluster_m in (1, 2), "1 or 2"),
             ("split_k", 1 <= s.split_k <= 8, "1 to 8"))
    for name, good, rule in rules:
        if not good:
            raise ScheduleError(f"a generated product has {name} of {rule}", f"{name}={getattr(s, name)}", f"set {name}")
    if s.cluster_m > 1 and s.split_k > 1:
        raise ScheduleError("a cluster shares loads or a contraction", f"cluster_m={s.cluster_m}, split_k={s.split_k}",
                            "set one of them to 1")


def _check_warps(spec: Spec, s: Schedule) -> None:
    """What warps multiply by mma.sync: rows of one GPU's shards, tiles that four or eight warps share evenly."""
    if s.compute == "library" or not tile.mma_sync(spec):
        return
    arch = spec.topology.gpu.arch
    if contracts(spec) or in_blocks(spec):
        raise ScheduleError("contractions that are gathered are multiplied by wgmma", f"{spec.label} on {arch}",
                            "use compute='library' where it is allowed, or a GPU of sm_90a")
    if s.block_m < tile.ROWS or s.block_n not in WARP_COLUMNS or s.block_k != tile.ROWS:
        raise ScheduleError("warps share tiles of 64, 128 or 256 rows, "
                            f"{', '.join(map(str, WARP_COLUMNS))} columns, and 64 of the contraction",
                            f"{s.block_m}x{s.block_n}x{s.block_k}", "use one of these")
    if s.cluster_m > 1 or s.split_k > 1 or s.stream_k:
        raise ScheduleError("blocks share loads or a contraction where they multiply by wgmma",
                            f"cluster_m={s.cluster_m}, split_k={s.split_k}, stream_k={s.stream_k} on {arch}",
                            "leave them at 1, 1 and 0")


def _check_stream(spec: Spec, s: Schedule) -> None:
    """Tiles are shared along the contraction where each rank multiplies many rows that it holds."""
    if s.stream_k == 0 or s.compute == "library":
        return
    if not spec.local or tile.small_m(spec):
        raise ScheduleError("tiles are shared along the contraction where nothing is sent and rows are many", spec.label,
                            "use stream_k=0")
    if s.stream_k > MAX_WAVES or s.split_k > 1:
        raise ScheduleError(f"at most {MAX_WAVES} waves of tiles are shared, by all blocks or by those of a cluster",
                            f"stream_k={s.stream_k}, split_k={s.split_k}", "set stream_k=1 and split_k=1")
    if not stream(spec, s).ranges:
        raise ScheduleError("waves whose tiles are shared are not full", f"{spec.label}, stream_k={s.stream_k}",
                            "use stream_k=0")


def _check_turns(spec: Spec, s: Schedule) -> None:
    """Warpgroups take turns at whole tiles of a product that nothing waits for."""
    if s.consumers == "cooperative" or s.compute == "library":
        return
    if not spec.local or tile.small_m(spec) or tile.mma_sync(spec) or s.split_k > 1 or s.stream_k:
        raise ScheduleError("warpgroups take turns at whole tiles of products by wgmma, where nothing is sent",
                            f"{spec.label}, split_k={s.split_k}, stream_k={s.stream_k}", "use consumers='cooperative'")
    if s.block_m not in TURN_ROWS:
        raise ScheduleError("a warpgroup that has a tile to itself multiplies 64 or 128 rows", f"block_m={s.block_m}",
                            "set block_m=64 or 128")


def _check_rows(spec: Spec, s: Schedule) -> None:
    """What a stage holds of operands of one byte; those of two bytes fill whole rows with every block_k."""
    if s.compute != "generated" or not tile.promotes(spec):
        return
    if spec.inputs[1].order != "col":
        raise ScheduleError("wgmma reads one-byte operands along K", f"B is {spec.inputs[1].label}",
                            'declare B with order="col", as torch.nn.Linear holds its weight')
    if s.block_k % tile.PROMOTED or (s.block_k > tile.PROMOTED and not tile.small_m(spec)):
        raise ScheduleError(f"products of one-byte operands move their sums on every {tile.PROMOTED} of K",
                            f"block_k={s.block_k}", f"set block_k={tile.PROMOTED}")
    if spec.attribute("scales") == "block" and BLOCK % s.block_n:
        raise ScheduleError(f"a tile lies in one column of block scales, which are {BLOCK} wide", f"block_n={s.block_n}",
                            "set block_n=64 or 128")
    if spec.inputs[0].dtype != spec.inputs[1].dtype:
        raise ScheduleError("generated products take operands of one type",
                            f"{spec.inputs[0].dtype} and {spec.inputs[1].dtype}", "convert one of them")
