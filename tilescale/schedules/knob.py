"""Knobs: each is declared once, with its domain, when it applies, and its neighbours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilescale.errors import ScheduleError, nearest
from tilescale.schedules import tile
from tilescale.schedules.algorithms import ALGORITHMS
from tilescale.schedules.grouped import grouped
from tilescale.schedules.packing import packable
from tilescale.schedules.ragged import ragged
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.sums import sums
from tilescale.schedules.transports import TRANSPORTS
from tilescale.spec.contraction import in_blocks
from tilescale.spec.op import Spec

Value = str | int
Partial = dict[str, Value]


def _always(spec: Spec, chosen: Partial) -> bool:
    return True


@dataclass(frozen=True)
class Knob:
    """A named choice.

    `domain`: allowed values, in canonical order; `part(spec)`: those that make sense for an operation, where these are
    fewer. `applies(spec, chosen)` looks at the knobs declared before it; where it is false the knob holds `neutral`. So
    points that differ only in a knob without effect are one point.
    """

    name: str
    domain: tuple[Value, ...]
    neutral: Value
    applies: Callable[[Spec, Partial], bool] = _always
    part: Callable[[Spec], tuple[Value, ...]] | None = None

    def allowed(self, spec: Spec) -> tuple[Value, ...]:
        """The part of the domain that makes sense for the operation."""
        return self.domain if self.part is None else self.part(spec)

    def values(self, spec: Spec, chosen: Partial) -> tuple[Value, ...]:
        """The values to enumerate after `chosen`."""
        return self.allowed(spec) if self.applies(spec, chosen) else (self.neutral,)

    def neighbours(self, spec: Spec, value: Value) -> tuple[Value, ...]:
        """Values one step away: adjacent ones of an ordered domain, all others of a named one."""
        domain = self.allowed(spec)
        if value not in domain:
            return ()
        at = domain.index(value)
        if isinstance(domain[0], str):
            return tuple(v for v in domain if v != value)
        return domain[max(0, at - 1):at] + domain[at + 1:at + 2]

    def encode(self, value: Value) -> float:
        """Position in the domain, in [0, 1]; -1 for the neutral value outside it."""
        if value not in self.domain:
            return -1.0
        return self.domain.index(value) / max(1, len(self.domain) - 1)


def _computes(spec: Spec, chosen: Partial) -> bool:
    return spec.operation.compute == "gemm"


def _generated(spec: Spec, chosen: Partial) -> bool:
    return _computes(spec, chosen) and chosen["compute"] == "generated"


def _moves(spec: Spec, chosen: Partial) -> bool:
    return not spec.local


def _chunked(spec: Spec, chosen: Partial) -> bool:
    """Whether rows are cut into chunks; how many rows there are of ragged ones is not known, and blocks are whole."""
    return chosen["overlap"] != "none" and not ragged(spec) and not in_blocks(spec)


def _sends(spec: Spec, chosen: Partial) -> bool:
    """Whether copies of their own carry what a product becomes, rather than its stores or the loads of a sum."""
    if spec.operation.compute != "gemm" or not sums(spec):
        return True
    return chosen["direction"] == "push" and chosen["algorithm"] != "scatter"


def _blocks_copy(spec: Spec, chosen: Partial) -> bool:
    return _moves(spec, chosen) and chosen["transport"] != "copy_engine" and _sends(spec, chosen)


def _scoped(spec: Spec, chosen: Partial) -> bool:
    """Whether the threads of blocks copy, and nothing multiplies beside them: only then may they be what binds."""
    if not _blocks_copy(spec, chosen) or chosen["transport"] != "peer_copy" or _computes(spec, chosen):
        return False
    if ragged(spec):  # of which warps move rows
        return False
    if not sums(spec):
        return True
    if chosen["algorithm"] == "ring":  # sums are stored by those who add; only complete ones are passed on
        return any(move.kind == "all_reduce" for move in spec.operation.moves)
    return chosen["direction"] == "push" or chosen["algorithm"] == "two_shot" or spec.placement != "symmetric"


def _by_packets(spec: Spec, chosen: Partial) -> bool:
    """Whether data may travel as packets: where ranks store them at their peers, and nothing is multiplied."""
    found = (chosen["transport"], chosen["direction"], chosen["overlap"], chosen["copy_scope"])
    return (packable(spec) and found == ("peer_copy", "push", "none", "block")
            and chosen["algorithm"] in ("direct", "one_shot", "two_shot"))


def _in_slots(spec: Spec, chosen: Partial) -> bool:
    """Whether panels may arrive in slots that are handed back: beside blocks that multiply."""
    return in_blocks(spec) and chosen["overlap"] == "fused"


def _streams(spec: Spec, chosen: Partial) -> bool:
    if grouped(spec):
        return chosen["overlap"] == "fused"
    if ragged(spec):
        return False
    return chosen["overlap"] == "chunked" or (chosen["overlap"] == "fused" and _sends(spec, chosen))


def _algorithms(spec: Spec) -> tuple[Value, ...]:
    """Those that carry out the move of the operation; where nothing moves there is no choice. Cannon's shifts are rings."""
    if in_blocks(spec):
        return ("ring",) if spec.attribute("algorithm") == "cannon" else ("direct",)
    found = [a for a in ALGORITHMS if spec.operation.compute == "gemm" or not a.computes]
    return tuple(a.name for a in found if any(move.kind in a.moves for move in spec.operation.moves)) or ("direct",)


def _clusters(spec: Spec, chosen: Partial) -> bool:
    return spec.local and _generated(spec, chosen) and not tile.small_m(spec) and not tile.mma_sync(spec)


def _sums_beside(spec: Spec, chosen: Partial) -> bool:
    """Whether parts of a product may be added up while others are multiplied: those that peers read, or stored here, of one
    chunk after the other."""
    by_chunks = chosen["chunk_order"] == "chunk_major" or spec.world == 2  # whose one peer has one order
    return (sums(spec) and _generated(spec, chosen) and not _sends(spec, chosen) and chosen["overlap"] == "fused"
            and by_chunks and chosen["transport"] == "peer_copy" and chosen["algorithm"] != "ring")


def _splits(spec: Spec, chosen: Partial) -> bool:
    return spec.local and _generated(spec, chosen) and chosen["cluster_m"] == 1 and not tile.mma_sync(spec)


def _streamed(spec: Spec, chosen: Partial) -> bool:
    """Whether tiles may be shared along the contraction without a cluster: many rows, multiplied where they are."""
    return _clusters(spec, chosen) and chosen["split_k"] == 1


def _takes_turns(spec: Spec, chosen: Partial) -> bool:
    """Whether warpgroups may take turns at the tiles of a block, where each tile is its own."""
    return _streamed(spec, chosen) and chosen["stream_k"] == 0


def _tiles(moving: tuple[Value, ...], local: tuple[Value, ...], small: tuple[Value, ...]
           ) -> Callable[[Spec], tuple[Value, ...]]:
    """By kind of product: of operations that move data, local ones, and local ones of few rows."""
    return lambda spec: moving if not spec.local else small if tile.small_m(spec) else local


def _block_m(spec: Spec) -> tuple[Value, ...]:
    if tile.small_m(spec):
        return (tile.padded_rows(spec.inputs[0].local_shape(0, spec.world)[0]),)
    return (64, 128, 256) if spec.local else (64, 128)


def _columns(spec: Spec) -> tuple[Value, ...]:
    """Of one-byte operands a thread holds sums twice, so that tiles are narrower."""
    if not spec.local and tile.promotes(spec):
        return (128, 192)
    if spec.local and tile.mma_sync(spec):
        return WARP_COLUMNS
    return _tiles((128, *_evener(spec), 256), TILE_COLUMNS, (64, 128))(spec)


def _evener(spec: Spec) -> tuple[int, ...]:
    """Widths whose waves of tiles take less time than those of the widest, where rows of A are gathered or products added
    up: of few tiles the last wave of wide ones is nearly empty."""
    if len(spec.inputs) != 2 or not (spec.op == "ag_gemm" or sums(spec)):
        return ()
    rows, columns = spec.mnk[0], spec.inputs[1].local_shape(0, spec.world)[1]

    def cost(width: int) -> int:
        return -(-(-(-rows // 128) * -(-columns // width)) // spec.topology.sm_share) * width

    able = set(EVENER) & set(WARP_COLUMNS) if tile.mma_sync(spec) else EVENER
    return tuple(width for width in EVENER if width in able and cost(width) <= EVENER_GAIN * cost(256))


def _depths(spec: Spec) -> tuple[Value, ...]:
    """Rows of 128 bytes, and longer ones where few rows are multiplied."""
    one = tile.PROMOTED if tile.promotes(spec) else 64
    return _tiles((one,), (one,), (128, 256, 512))(spec)


WARP_COLUMNS: tuple[Value, ...] = (64, 96, 128, 192, 256)  # that warps of a tile share evenly
TILE_COLUMNS: tuple[Value, ...] = (48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256)
EVENER, EVENER_GAIN = (160, 192, 224), 0.95
STAGES: tuple[Value, ...] = (3, 4, 5, 6, 7, 8, 10, 12)
KNOBS: tuple[Knob, ...] = (
    Knob("transport", ("peer_copy", "copy_engine", "tma", "multimem"), "peer_copy", _moves),
    Knob("direction", ("push", "pull"), "push", _moves),
    Knob("algorithm", ("direct", "one_shot", "scatter", "two_shot", "ring"), "direct", _moves, _algorithms),
    Knob("overlap", ("none", "chunked", "fused"), "none", _moves),
    Knob("compute", ("library", "generated"), "generated", _computes),
    Knob("chunk_rows", (64, 128, 256, 512, 1024), 0, _chunked),
    Knob("depth", (1, 2, 4), 1, _streams),
    Knob("chunk_order", ("peer_major", "chunk_major"), "peer_major",
         lambda s, c: c["overlap"] == "fused" and not ragged(s)),
    Knob("num_comm_blocks", (2, 4, 8, 16, 32), 0, _blocks_copy),
    Knob("block_m", (8, 16, 32, 64, 128, 256), 0, _generated, _block_m),
    Knob("block_n", TILE_COLUMNS, 0, _generated, _columns),
    Knob("block_k", (64, 128, 256, 512), 0, _generated, _depths),
    Knob("num_stages", STAGES, 0, _generated, _tiles((3, 4, 6), STAGES, (3, 4, 5, 6, 7))),
    Knob("raster_group", (4, 8, 16), 0, _generated, _tiles((8,), (4, 8, 16), (4,))),
    Knob("cluster_m", (1, 2), 1, _clusters),
    Knob("split_k", (1, 2, 3, 4, 6, 8), 1, _splits),
    Knob("copy_scope", ("block", "warpgroup", "warp"), "block", _scoped),
    Knob("protocol", ("simple", "ll", "credit"), "simple", lambda s, c: _by_packets(s, c) or _in_slots(s, c),
         lambda s: ("simple", "credit") if in_blocks(s) else ("simple", "ll")),
    Knob("stream_k", (0, 1, 2), 0, _streamed),
    Knob("consumers", ("cooperative", "pingpong"), "cooperative", _takes_turns),
    Knob("sum_blocks", (0, 2, 4, 8, 16, 32), 0, _sums_beside),
)
BY_NAME = {knob.name: knob for knob in KNOBS}


def points(spec: Spec, restrict: dict[str, Sequence[Value]]) -> Iterator[Partial]:
    """The crossed space in canonical order, each point once. `restrict` narrows domains by name.

    Raises ScheduleError for a name or a value that no knob has.
    """
    check_restriction(restrict)

    def extend(at: int, chosen: Partial) -> Iterator[Partial]:
        if at == len(KNOBS):
            yield dict(chosen)
            return
        knob = KNOBS[at]
        applies = knob.applies(spec, chosen) and not _moot(spec, chosen)
        for value in knob.values(spec, chosen) if applies else (knob.neutral,):
            if not applies or knob.name not in restrict or value in restrict[knob.name]:
                chosen[knob.name] = value
                yield from extend(at + 1, chosen)
        chosen.pop(knob.name, None)

    return extend(0, {})


def _moot(spec: Spec, chosen: Partial) -> bool:
    """Whether the transport alone rules a point out, so that one stands for all of them: without a switch that does it,
    nothing else about multicast needs a choice."""
    found = str(chosen.get("transport", "peer_copy"))
    return TRANSPORTS[found].multicast and not spec.topology.link.multicast


def check_restriction(restrict: object) -> dict[str, Sequence[Value]]:
    """The restriction itself; ScheduleError unless every name is a knob and every value is in its domain."""
    if not isinstance(restrict, Mapping):
        raise ScheduleError("a space is narrowed by a mapping of knobs to values", type(restrict).__name__,
                            'for example {"transport": ["tma"]}')
    for name, values in restrict.items():
        if name not in BY_NAME:
            raise ScheduleError("a space is narrowed by knobs", repr(name), nearest(name, BY_NAME))
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise ScheduleError(f"the values of {name} are a list", repr(values), f"write [{values!r}]")
        domain = BY_NAME[name].domain
        for value in values:
            if value not in domain:
                raise ScheduleError(f"{name} is one of {', '.join(map(str, domain))}", repr(value), "use one of these")
    return dict(restrict)


def canonical(spec: Spec, schedule: Schedule) -> Schedule:
    """The same schedule with every knob that does not apply at its neutral value. Raises ScheduleError on bad values."""
    chosen: Partial = {}
    for knob in KNOBS:
        value: Value = getattr(schedule, knob.name)
        allowed = knob.values(spec, chosen)
        if not knob.applies(spec, chosen):
            value = knob.neutral
        elif value not in allowed:
            raise ScheduleError(f"{knob.name} is one of {', '.join(map(str, allowed))}", repr(value), "use one of these")
        chosen[knob.name] = value
    return Schedule(**chosen)  # type: ignore[arg-type]
