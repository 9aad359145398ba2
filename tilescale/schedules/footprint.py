"""What each step reads and writes, and the checks of a plan that need no run: names, bounds, shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Any

from tilescale.schedules.boxes import Box, Grids, axes, box_of, grid_of, meet, remaining, span, whole_of
from tilescale.schedules.contracting import Problem, check_contract, check_groups, check_pass
from tilescale.schedules.neighbours import RULE, reads_a_neighbour
from tilescale.schedules.packets import check_buffer, check_launch, check_packets
from tilescale.schedules.plan import (
    Buffer,
    Clear,
    Contract,
    Copy,
    Gemm,
    GetPackets,
    Grouped,
    Launch,
    MultimemReduce,
    MultimemStore,
    PacketStep,
    Pass,
    Pieces,
    Plan,
    PutPackets,
    Ragged,
    Reduce,
    Region,
    Role,
    SharedGemm,
    Signal,
    Step,
    Sum,
    SumAside,
    SumPackets,
    Wait,
)
from tilescale.schedules.sharing import check_parts, check_shared, covering
from tilescale.schedules.story import Counterexample, Place

ITEM_SIZES = (1, 2, 4, 8)
SUMMED = {"float32": 4, "bfloat16": 2, "float16": 2}  # element types that kernels add, and their bytes
ROLES = ("input", "output", "workspace")
AGENTS = ("blocks", "copy_engine", "library")
Access = tuple[Region, bool]
_KEPT = "_accesses"


def accesses(step: Step) -> tuple[Access, ...]:
    """The regions a step touches, each with whether it writes it. Asked for often, so a step keeps its own."""
    found: tuple[Access, ...] | None = step.__dict__.get(_KEPT)
    if found is None:
        found = step.__dict__[_KEPT] = _accesses(step)
    return found


def _accesses(step: Step) -> tuple[Access, ...]:
    if isinstance(step, MultimemStore | PutPackets):
        return ((step.src, False), *((target, True) for target in step.targets))
    if isinstance(step, Copy | Reduce):
        return ((step.src, False), (step.dst, True))
    if isinstance(step, Clear):
        return ((step.dst, True),)
    if isinstance(step, Sum):
        return (*((src, False) for src in (*step.srcs, *step.extras)), *((region, True) for region in step.targets))
    if isinstance(step, Pass):  # which reads what it replaces, a block its own
        written = (step.out,) if step.last else step.sums
        return ((step.a, False), (step.b, False), *((part, False) for part in step.sums if step.last),
                *((region, True) for region in written))
    if isinstance(step, Contract):  # a group stores tile by tile, as early as in its first step
        return ((step.a, False), (step.b, False), *(((step.out, True),) if step.first else ()))
    if isinstance(step, Pieces):  # whole tiles are stored from here on
        return ((step.a, False), (step.b, False), *((part, True) for part in covering(step.parts)), (step.out, True))
    if isinstance(step, SharedGemm):
        return tuple((src, False) for src in (step.a, step.b, *step.extras, *covering(step.parts)))
    if isinstance(step, Gemm):
        return (*((src, False) for src in (step.a, step.b, *step.extras)), (step.out, True))
    if isinstance(step, Ragged):
        return (*((region, False) for region in step.reads), *((region, True) for region in step.writes))
    return ()


def elements_of(step: Sum) -> tuple[str, ...]:
    """The type of every source of a sum."""
    return (step.carried or step.element, *[step.element] * (len(step.srcs) - 1)) if step.srcs else ()


def counter_totals(plan: Plan) -> list[list[int]]:
    """How much each counter of each rank grows in one call."""
    totals = [[0] * plan.counters for _ in range(plan.world)]
    for launches in plan.ranks:
        for launch in launches:
            for role in launch.roles:
                for step in role.steps:
                    if isinstance(step, Signal):
                        totals[step.rank][step.counter] += step.value * role.blocks
    return totals


def describe(step: Step) -> str:
    """A step in words."""
    if isinstance(step, MultimemStore | PutPackets):
        return f"{type(step).__name__} {_region(step.src)} to {', '.join(map(_region, step.targets))}"
    if isinstance(step, MultimemReduce):
        return f"MultimemReduce of {', '.join(map(_region, step.srcs))} to {_region(step.dst)}"
    if isinstance(step, Copy):
        return f"Copy {_region(step.src)} to {_region(step.dst)}"
    if isinstance(step, Reduce):
        return f"Reduce {_region(step.src)} into {_region(step.dst)}"
    if isinstance(step, Clear):
        return f"Clear {_region(step.dst)}"
    if isinstance(step, Sum):
        return (f"{type(step).__name__} of {', '.join(map(_region, step.srcs))} to {', '.join(map(_region, step.targets))}"
                f"{_then(step)}")
    if isinstance(step, Pieces):
        return f"Pieces {step.m}x{step.n}x{step.k} of {_region(step.a)} to {', '.join(map(_region, step.parts[:3]))}"
    if isinstance(step, Gemm):
        return f"{type(step).__name__} {step.m}x{step.n}x{step.k} of {_region(step.a)} to {_region(step.out)}{_then(step)}"
    if isinstance(step, Contract):
        place = "".join(word for word, there in ((", first", step.first), (", last", step.last)) if there)
        return f"{type(step).__name__} {step.m}x{step.n}x{step.k} of {_region(step.segment)} from {step.at}{place}"
    if isinstance(step, Ragged):
        group = f", group {step.group}" if isinstance(step, Grouped) else ""
        then = f", then {', '.join(step.then)}" if isinstance(step, Grouped) and step.then else ""
        return f"Ragged {step.task} for rank {step.peer}{group}{then}"
    if isinstance(step, Signal):
        return f"Signal +{step.value} to counter {step.counter} of rank {step.rank}"
    return f"Wait for {step.value} on counter {step.counter}"


def _then(step: Gemm | Sum) -> str:
    reads = f" with {', '.join(map(_region, step.extras))}" if step.extras else ""
    return (f", then {', '.join(step.then)}" if step.then else "") + reads


def _region(region: Region) -> str:
    loops = "".join(f", {count} at {pitch}" for count, pitch in region.loops)
    return f"{region.buffer}[{region.offset}:{region.offset + region.row}{loops}] of rank {region.rank}"


def _refuse(rule: str, message: str, place: Place, region: Region | None = None) -> Counterexample:
    if region is None:
        return Counterexample(rule, message, (place,))
    return Counterexample(rule, message, (place,), region.buffer, region.rank, region.offset, region.size)


def check_structure(plan: Plan) -> Counterexample | None:
    """Names, numbers and roles that later checks rely on."""
    names = [b.name for b in plan.buffers]
    for buffer in plan.buffers:
        if buffer.role not in ROLES or buffer.versions not in (1, 2) or buffer.size < 0 or names.count(buffer.name) > 1:
            return Counterexample(
                "structure",
                f"buffer {buffer.name} must have its own name, a role of {ROLES}, one or two "
                f"versions and a size; got {buffer}",
            )
        grids = buffer.rank_grids
        wrong = len(grids) not in (0, plan.world) or max(map(prod, grids), default=0) > buffer.size
        if wrong or (buffer.grid and (min(buffer.grid) < 1 or prod(buffer.grid) != buffer.size)):
            return Counterexample("structure", f"a grid must hold the bytes of its buffer; got {buffer}")
        if not check_buffer(buffer):
            return Counterexample(
                "packets", f"a buffer of packets is a zeroed workspace that peers see, of whole ones; got {buffer}")
    problem = _check_goal(plan)
    if problem:
        return problem
    for rank, launches in enumerate(plan.ranks):
        seen: set[str] = set()
        for launch in launches:
            problem = _check_launch(rank, launch, seen)
            if problem:
                return problem
            beside = check_launch(plan, launch)
            if beside:
                return _refuse(*beside, Place(rank, launch.name))
            seen.add(launch.name)
    return None


def _check_goal(plan: Plan) -> Counterexample | None:
    goal = plan.goal
    roles = {b.name: b.role for b in plan.buffers}
    if roles.get(goal.operand) != "input" or roles.get(goal.output) != "output":
        return Counterexample(
            "structure",
            f"the goal's operand must be an input and its output an output; got {goal.operand} and {goal.output}",
        )
    for extra in goal.extras:
        if roles.get(extra.buffer) != "input" or extra.row_bytes not in (0, goal.output_row_bytes):
            return Counterexample(
                "structure",
                f"an extra operand is an input that is read whole, or has rows of {goal.output_row_bytes} bytes as the "
                f"output has; got {extra}",
            )
    if goal.aside and (goal.aside == goal.output or roles.get(goal.aside) != "output"
                       or plan.buffer(goal.aside).size != plan.buffer(goal.output).size):
        return Counterexample(
            "structure", f"what epilogues hand out besides is an output as large as theirs; got {goal.aside}")
    if goal.pieces:
        return _check_pieces(plan)
    if goal.ragged:
        return None
    starts = goal.starts
    if goal.mesh[0] and (goal.mesh[0] * goal.mesh[1] != plan.world or len({b - a for a, b in pairwise(starts)}) != 1):
        return Counterexample("structure", f"a mesh has equal blocks on all ranks; got {goal.mesh} and {starts}")
    if goal.keeps and (roles.get(goal.keeps) != "output" or plan.buffer(goal.keeps).size != starts[-1]):
        return Counterexample("structure", f"what holds the whole operand is an output of its size; got {goal.keeps}")
    if len(starts) != plan.world + 1 or starts[0] != 0 or any(a > b for a, b in pairwise(starts)):
        return Counterexample("structure", f"the goal needs one rising start a rank and the total; got {starts}")
    rows, rest = divmod(starts[-1], goal.row_bytes)
    size, whole = plan.buffer(goal.output).size, rows * goal.output_row_bytes
    largest = max(b - a for a, b in pairwise(starts)) // goal.row_bytes * goal.output_row_bytes
    # Where nothing reaches a peer, each rank has the rows of its own shard.
    partly = goal.reduces or not any(b.peer_visible for b in plan.buffers)
    if goal.contracts:
        whole = size  # any number of rows: those of a local operand
    if rest or any(s % goal.row_bytes for s in starts) or size not in ((whole, largest) if partly else (whole,)):
        return Counterexample(
            "structure",
            f"the shards must be whole rows and the output one row for each; got {goal} and an "
            f"output of {plan.buffer(goal.output).size} bytes",
        )
    return None


def _check_pieces(plan: Plan) -> Counterexample | None:
    """The pieces are boxes of operands and outputs, and cover each output once."""
    goal, wanted = plan.goal, dict[int, list[Box]]()
    for target, source in goal.pieces:
        ends = grid_of(plan.buffer(goal.operand), source.rank), grid_of(plan.buffer(goal.output), target.rank)
        box, known = box_of(target, ends[1]), source.buffer == goal.operand and target.buffer == goal.output
        fits = target.size == source.size and box_of(source, ends[0]) is not None
        if not known or not fits or box is None or axes(source, target, ends) is None:
            return Counterexample(
                "structure",
                f"a piece must go from the operand to the output, from a box to one of its shape; got {_region(source)} "
                f"to {_region(target)}",
            )
        wanted.setdefault(target.rank, []).append(box)
    for rank in range(plan.world):
        boxes, grid = wanted.get(rank, []), grid_of(plan.buffer(goal.output), rank)
        left = [part for whole in whole_of(grid) for part in remaining(whole, boxes)]
        twice = sum(prod(high - low for low, high in box) for box in boxes) > prod(grid)
        if left or twice:
            return Counterexample("structure", f"the pieces must cover the output of rank {rank}, each byte once")
    return None


def _check_launch(rank: int, launch: Launch, seen: set[str]) -> Counterexample | None:
    place = Place(rank, launch.name)
    if launch.name in seen:
        return _refuse("structure", f"two launches of rank {rank} are named {launch.name}", place)
    missing = sorted(set(launch.after) - seen)
    if missing:
        return _refuse(
            "structure", f"a launch can only come after earlier launches of its rank; {missing} are not", place
        )
    if not launch.roles or len({role.agent for role in launch.roles}) != 1 or launch.agent not in AGENTS:
        return _refuse("structure", f"the roles of a launch must share one agent of {AGENTS}", place)
    for role in launch.roles:
        if role.blocks < 1 or (role.agent != "blocks" and role.blocks != 1):
            return _refuse(
                "structure",
                f"a role has at least one block, a copy engine or library call exactly one; got {role.blocks}",
                Place(rank, launch.name, role.name),
            )
        problem = check_groups(role) or check_shared(role, rank)
        if problem:
            return _refuse(*problem, Place(rank, launch.name, role.name))
    return None


def places(plan: Plan) -> Iterator[tuple[Place, Role, Step]]:
    """Every step of the plan with its place."""
    for rank in range(plan.world):
        for number, launch, role, step in plan.steps_of(rank):
            yield Place(rank, launch.name, role.name, number), role, step


def check_steps(plan: Plan) -> Counterexample | None:
    """Bounds, peer visibility, ranks, counters, and shapes of every step."""
    buffers, grids = {b.name: b for b in plan.buffers}, Grids(plan)
    checks: dict[type, Callable[[Plan, int, Any], Problem | None]] = {
        Copy: _check_copy,
        Reduce: _check_reduce,
        Clear: lambda plan, rank, step: None,
        Gemm: _check_gemm,
        Contract: check_contract,
        Pass: lambda plan, rank, step: check_contract(plan, rank, step) or check_pass(plan, rank, step),
        Pieces: _check_pieces_of,
        SharedGemm: lambda plan, rank, step: _check_gemm(plan, rank, step) or check_parts(plan, rank, step),
        Sum: _check_sum,
        MultimemStore: lambda plan, rank, step: _check_copy(plan, rank, step) or _check_multicast(plan, step, step.targets),
        MultimemReduce: _check_multimem_reduce,
        PutPackets: lambda plan, rank, step: _check_copy(plan, rank, step) or check_packets(plan, rank, step),
        GetPackets: lambda plan, rank, step: _check_copy(plan, rank, step) or check_packets(plan, rank, step),
        SumPackets: lambda plan, rank, step: _check_sum(plan, rank, step) or check_packets(plan, rank, step),
        SumAside: lambda plan, rank, step: _check_sum(plan, rank, step) or _check_aside(plan, step),
        Ragged: _check_ragged,
        Grouped: lambda plan, rank, step: (
            _check_ragged(plan, rank, step) or _check_grouped(step) or _check_beside(plan, rank, step)),
        Signal: _check_signal,
        Wait: _check_wait,
    }
    for rank in range(plan.world):
        for number, launch, role, step in plan.steps_of(rank):
            for region, write in accesses(step):
                problem = _check_region(plan, rank, step, region, write, buffers.get(region.buffer))
                if problem:
                    return _refuse(*problem, _place(rank, number, launch, role, step), region)
            clash = _overlapping(step, grids)
            if clash is not None:
                message = "a step writes bytes that it also reads"
                return _refuse("race", message, _place(rank, number, launch, role, step), clash)
            problem = checks[type(step)](plan, rank, step)
            if problem:
                return _refuse(*problem, _place(rank, number, launch, role, step))
    return _check_neighbours(plan, grids)


def _check_neighbours(plan: Plan, grids: Grids) -> Counterexample | None:
    """Of copies that blocks may take together; those of copy engines run one behind the other."""
    for rank, launches in enumerate(plan.ranks):
        first = 0
        for launch, role in ((of, role) for of in launches for role in of.roles):
            found = reads_a_neighbour(role.steps, grids) if role.agent == "blocks" else None
            if found is not None:
                number, copy = found
                return _refuse("race", RULE, _place(rank, first + number, launch, role, copy), copy.src)
            first += len(role.steps)
    return None


def _check_region(plan: Plan, rank: int, step: Step, region: Region, write: bool, buffer: Buffer | None) -> Problem | None:
    if buffer is None or not 0 <= region.rank < plan.world:
        return "bounds", f"{_region(region)} is not in a buffer of the plan"
    if region.offset < 0 or region.size <= 0 or region.end > buffer.size:
        return "bounds", f"{_region(region)} is not inside a buffer of {buffer.size} bytes"
    if (region.loops or buffer.grid) and box_of(region, grid_of(buffer, region.rank)) is None:
        return "structure", f"{_region(region)} must be a box of the grid {grid_of(buffer, region.rank)} of its buffer"
    if region.rank != rank and not buffer.peer_visible:
        return "visibility", f"rank {rank} uses {region.buffer} of rank {region.rank}, which peers cannot see"
    if write and buffer.role == "input":
        return "structure", f"only the caller writes the input {region.buffer}"
    if buffer.packets and not isinstance(step, PacketStep):
        return "packets", f"packets are stored and read as such; {region.buffer} holds them"
    return None


def _overlapping(step: Step, grids: Grids) -> Region | None:
    touched = accesses(step)
    for region, write in touched:
        for other, other_write in touched:
            if write and not other_write and (region.rank, region.buffer) == (other.rank, other.buffer):
                shared = meet(grids.box(region), grids.box(other))
                if shared is not None:
                    low, high = span(shared, grids.of(region.buffer, region.rank))
                    return Region(region.buffer, region.rank, low, high - low)
    return None


def _place(rank: int, number: int, launch: Launch, role: Role, step: Step) -> Place:
    return Place(rank, launch.name, role.name, number, action=describe(step))


def _check_copy(plan: Plan, rank: int, step: Copy) -> Problem | None:
    if step.src.size != step.dst.size:
        return "copy_size", f"a copy reads as many bytes as it writes; got {step.src.size} and {step.dst.size}"
    if not (step.src.loops or step.dst.loops):
        return None
    grids = tuple(grid_of(plan.buffer(region.buffer), region.rank) for region in (step.src, step.dst))
    if axes(step.src, step.dst, (grids[0], grids[1])) is None:
        return "copy_size", f"a copy takes rows of one shape from one place to another; got {describe(step)}"
    return None


def _check_reduce(plan: Plan, rank: int, step: Reduce) -> Problem | None:
    if step.src.loops or step.dst.loops:
        return "copy_size", f"a reduction is of contiguous bytes; got {describe(step)}"
    size = SUMMED.get(step.element)
    whole = size is not None and not any(r.offset % size or r.size % size for r in (step.src, step.dst))
    if not whole or step.src.size != step.dst.size:
        return "copy_size", (
            "a reduction adds whole elements of float32, bfloat16 or float16, as many as it reads; got "
            f"{step.element}, {_region(step.src)} and {_region(step.dst)}"
        )
    return None


def _check_sum(plan: Plan, rank: int, step: Sum) -> Problem | None:
    out, sizes = SUMMED.get(step.out, 0), [SUMMED.get(element, 0) for element in elements_of(step)]
    fits = out > 0 and len(sizes) > 0 and min(sizes) > 0 and not (step.dst.offset % out or step.dst.size % out)
    if not fits or any(src.offset % size or src.size * out != step.dst.size * size
                       for src, size in zip(step.srcs, sizes, strict=True)):
        return "copy_size", (
            "a sum adds whole elements of float32, bfloat16 or float16, as many from each source as it writes; got "
            f"{describe(step)} of {step.element} to {step.out}"
        )
    return _check_extras(plan, rank, step, step.dst.size)


def _check_aside(plan: Plan, step: SumAside) -> Problem | None:
    """One region beside the result, where tables have room for one slot, and no other offset."""
    fits = [region != step.dst and replace(region, buffer=step.dst.buffer) == step.dst for region in step.aside]
    if fits != [True] or not step.then or not plan.goal.aside:
        return "aside", ("what epilogues hand out besides lies where their result does, in another buffer; got "
                         f"{describe(step)}")
    return None


def _check_extras(plan: Plan, rank: int, step: Gemm | Sum, size: int) -> Problem | None:
    """Extra operands are of the own rank, and read whole or in as many bytes (`size`) as the step makes of the output."""
    rows = {extra.buffer: extra.row_bytes for extra in plan.goal.extras}
    for region in step.extras:
        whole = (0, plan.buffer(region.buffer).size) if region.buffer in rows else ()
        fits = region.size == size if rows.get(region.buffer) else (region.offset, region.size) == whole
        if not fits or region.rank != rank or region.loops:
            return "extras", (
                f"a step reads an extra operand of its rank whole, or the {size} bytes of it that are its rows of the "
                f"output; got {_region(region)}"
            )
    return None


def _check_multimem_reduce(plan: Plan, rank: int, step: MultimemReduce) -> Problem | None:
    if step.element not in ("float32", step.out):
        return "copy_size", f"a switch rounds to what it adds, {step.element}; {step.out} would be a second rounding"
    return _check_sum(plan, rank, step) or _check_multicast(plan, step, step.srcs)


def _check_multicast(plan: Plan, step: Step, regions: Sequence[Region]) -> Problem | None:
    """A multicast address stands for the same bytes of every rank, and is accessed 16 bytes at a time."""
    ranks = sorted(region.rank for region in regions)
    places = {(region.buffer, region.offset, region.size) for region in regions}
    own = (step.src,) if isinstance(step, MultimemStore) else ()
    aligned = not any(region.offset % 16 or region.size % 16 for region in (*regions, *own))
    if ranks != list(range(plan.world)) or len(places) != 1 or not aligned or any(region.loops for region in regions) \
            or not plan.buffer(regions[0].buffer).peer_visible:
        return "multicast", (
            "a multicast address stands for one range of a peer-visible buffer of every rank, in units of 16 bytes; got "
            f"{describe(step)}")
    return None


def _check_ragged(plan: Plan, rank: int, step: Ragged) -> Problem | None:
    if not plan.goal.ragged or not 0 <= step.peer < plan.world:
        return "structure", f"a ragged step is for one of {plan.world} ranks, of a ragged operation; got {describe(step)}"
    return None


def _check_grouped(step: Grouped) -> Problem | None:
    """Every part lies within a known range."""
    touched = (*step.reads, *step.writes)
    inside = len(step.within) == len(touched) and all(
        (part.buffer, part.rank) == (whole.buffer, whole.rank) and whole.offset <= part.offset and part.end <= whole.end
        for part, whole in zip(touched, step.within, strict=True))
    if not inside or not 0 <= step.group < step.groups:
        return "structure", (
            f"a step for one of {step.groups} groups says of every part within which range it lies; got "
            f"{describe(step)} of group {step.group}")
    return None


def _check_beside(plan: Plan, rank: int, step: Grouped) -> Problem | None:
    """Extra operands are of the own rank and read whole: where those of an expert lie the device finds."""
    names = {extra.buffer for extra in plan.goal.extras}
    for region in step.reads:
        if region.buffer in names and region != Region(region.buffer, rank, 0, plan.buffer(region.buffer).size):
            return "extras", f"a step reads an extra operand of its rank whole; got {_region(region)}"
    return None


def _check_signal(plan: Plan, rank: int, step: Signal) -> Problem | None:
    if not 0 <= step.counter < plan.counters or not 0 <= step.rank < plan.world or step.value < 1:
        return (
            "structure",
            f"a signal adds at least 1 to one of {plan.counters} counters of {plan.world} ranks; got {step}",
        )
    return None


def _check_wait(plan: Plan, rank: int, step: Wait) -> Problem | None:
    if not 0 <= step.counter < plan.counters or step.value < 1:
        return "structure", f"a wait wants at least 1 of one of {plan.counters} counters; got {step}"
    return None


def _check_pieces_of(plan: Plan, rank: int, step: Pieces) -> Problem | None:
    whole = Gemm(step.a, step.b, step.out, step.m, step.n, step.k)
    return _check_gemm(plan, rank, whole) or check_parts(plan, rank, step)


def _check_gemm(plan: Plan, rank: int, step: Gemm) -> Problem | None:
    goal, (m, n, k) = plan.goal, (step.m, step.n, step.k)
    row = goal.product_row_bytes
    if goal.contracts:
        return "gemm_shape", "where a contraction is gathered, products are parts of it"
    if min(m, n, k) < 1 or step.a.size != m * goal.row_bytes or step.out.size != m * row:
        return "gemm_shape", (
            f"a and out must be {m} rows of {goal.row_bytes} and {row} bytes; got "
            f"{step.a.size} and {step.out.size} bytes"
        )
    fits = goal.row_bytes % k == 0 and goal.row_bytes // k in ITEM_SIZES
    fits = fits and row % n == 0 and row // n in ITEM_SIZES
    if not fits or step.b.size * m != step.a.size * n:
        return "gemm_shape", (
            f"rows of {goal.row_bytes} and {row} bytes and b of {step.b.size} bytes do "
            f"not fit m {m}, n {n}, k {k}"
        )
    if step.b.rank != rank:
        return "gemm_shape", f"b must be the operand of rank {rank}; got rank {step.b.rank}"
    return _check_extras(plan, rank, step, m * goal.output_row_bytes)
