"""Rows of a step table for steps whose sizes are known on the device alone (abi.cuh says what their fields mean)."""

from __future__ import annotations

from collections.abc import Callable

from tilescale.codegen.table import KIND_RAGGED, KIND_SOURCE, TASKS, StepRow
from tilescale.schedules.plan import Grouped, Ragged, Region
from tilescale.schedules.ragged import RaggedGeometry

NO_STEP = 0xFFFFFFFF
PACKED, OWN, TOLD = 0, 1, 2  # how rows are found: as MoeRows of moe.cuh
BY_TOKEN = 1  # tokens lie where their number at the source says

Slot = Callable[[Region], int]


def ragged_rows(step: Ragged, number: int, rank: int, geo: RaggedGeometry, slot: Slot) -> list[StepRow]:
    """The row of a step, the routing behind it, and what else its task wants behind."""
    if isinstance(step, Grouped):
        return _group_rows(step, number, rank, geo, slot)
    routing = StepRow(KIND_SOURCE, NO_STEP, source=slot(geo.whole("indices", rank)), target=slot(geo.whole("routes", rank)),
                      size=geo.most)
    further = {"place": _place, "weigh": _weigh}.get(step.task)
    behind = [routing, *(further(step, rank, geo, slot) if further else ())]
    source = step.reads[0] if step.reads and step.task not in ("total", "place") else None
    target = step.writes[0] if step.writes else None
    tokens = geo.room if step.task == "return" else geo.tokens[rank]
    through = geo.push and step.peer != rank  # whether tokens or rows go through a segment
    before = geo.head_bytes if step.task == "send" and through else 1 if step.task == "return" and through else 0
    own = StepRow(
        KIND_RAGGED, number, source=slot(source) if source else 0, target=slot(target) if target else 0, counter=rank,
        value=step.peer, per_call=TASKS[step.task], rows=len(behind), source_offset=source.offset if source else 0,
        target_offset=target.offset if target else 0, size=tokens, first_tile=geo.row_bytes, peer=before)
    return [own, *behind]


def _source(head: Region, rows: Region, rank: int, way: int, geo: RaggedGeometry, slot: Slot) -> StepRow:
    """A segment, and where the tokens or rows are. Where a peer holds them, they cross a link."""
    return StepRow(KIND_SOURCE, NO_STEP, source=slot(head), target=slot(rows), counter=rows.rank, value=rank, per_call=way,
                   source_offset=head.offset, target_offset=rows.offset, size=rows.size // geo.row_bytes)


def _place(step: Ragged, rank: int, geo: RaggedGeometry, slot: Slot) -> list[StepRow]:
    counts = step.writes[1]
    found = [StepRow(KIND_SOURCE, NO_STEP, target=slot(counts), target_offset=counts.offset)]
    for source in range(geo.world):
        head, tokens = step.reads[source], step.reads[geo.world + source]
        way = BY_TOKEN if source == rank or not geo.push else PACKED
        found.append(_source(head, tokens, rank, way, geo, slot))
    return found


def _weigh(step: Ragged, rank: int, geo: RaggedGeometry, slot: Slot) -> list[StepRow]:
    rows, heads = step.reads[3:3 + geo.world], list(step.reads[3 + geo.world:])
    found = []
    for holder in range(geo.world):
        way = OWN if holder == rank else PACKED if geo.push else TOLD
        head = heads.pop(0) if way == TOLD else rows[holder]
        found.append(_source(head, rows[holder], rank, way, geo, slot))
    return found


def _group_rows(step: Grouped, number: int, rank: int, geo: RaggedGeometry, slot: Slot) -> list[StepRow]:
    """The rows of a step for a group of experts: what it names by parts is addressed by the ranges that these lie in."""
    reads, writes = step.within[:len(step.reads)], step.within[len(step.reads):]
    behind = [StepRow(KIND_SOURCE, NO_STEP, source=slot(geo.whole("indices", rank)), target=slot(geo.whole("routes", rank)),
                      value=step.group, size=geo.most)]
    source: Region | None = reads[0]
    if step.task == "send_group":
        behind.append(StepRow(KIND_SOURCE, NO_STEP, source=slot(geo.whole("order", rank))))
    elif step.task == "place_group":
        source = None
        scales = slot(geo.whole("scales", rank)) if "scales" in geo.sizes else 0
        behind.append(StepRow(KIND_SOURCE, NO_STEP, source=scales, target=slot(geo.whole("counts", rank))))
        for holder, segment in enumerate(reads[:geo.world]):
            own = holder == rank
            tokens = geo.whole("a", rank) if own else geo.packed(rank, holder)
            behind.append(_source(segment, tokens, rank, BY_TOKEN if own else PACKED, geo, slot))
    elif step.task == "multiply":
        source = geo.whole("counts", rank)
        if "scales" in geo.sizes:
            behind.append(StepRow(KIND_SOURCE, NO_STEP, source=slot(geo.whole("scales", rank))))
    through = step.task == "send_group" and step.peer != rank
    row = StepRow(
        KIND_RAGGED, number, source=slot(source) if source else 0, target=slot(writes[0]), counter=rank, value=step.peer,
        per_call=TASKS[step.task], rows=len(behind), target_offset=writes[0].offset,
        size=geo.room if step.task in ("multiply", "return_group") else geo.tokens[rank], first_tile=geo.row_bytes,
        peer=geo.head_bytes if through else 0)
    return [row, *behind]
