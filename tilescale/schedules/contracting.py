"""Products along a gathered contraction, as the verifier sees them: shapes, groups, and what they have summed."""

from __future__ import annotations

from bisect import insort
from itertools import pairwise

from tilescale.schedules.plan import Contract, Goal, Pass, Plan, Role, Signal, Wait

ITEM_SIZES = (1, 2, 4, 8)
BOTH = 2  # of Contract.gathered
SUM_BYTES = 4  # float32
Problem = tuple[str, str]  # rule, message


def contraction_size(goal: Goal) -> int:
    """Indices of the whole contraction."""
    if goal.mesh[1]:
        return goal.starts[1] // goal.row_bytes * goal.mesh[1]
    return goal.starts[-1] // goal.row_bytes


def check_contract(plan: Plan, rank: int, step: Contract) -> Problem | None:
    """Shapes of a step: a segment of whole rows, the whole local operand, the whole output, all but the segment here."""
    if step.gathered == BOTH and plan.goal.mesh[0]:
        return _check_panel(plan, rank, step) or _check_out(plan, rank, step)
    goal, local = plan.goal, step.local
    if not goal.contracts or goal.mesh[0] or step.gathered not in (0, 1):
        return "gemm_shape", "parts of a contraction are for plans that gather one, of a or of b"
    if min(step.m, step.n, step.k) < 1 or step.segment.size != step.k * goal.row_bytes or goal.row_bytes % step.width:
        return "gemm_shape", (f"a segment must be {step.k} rows of {step.width} elements in {goal.row_bytes} bytes; got "
                              f"{step.segment.size} bytes")
    item, size = goal.row_bytes // step.width, contraction_size(goal)
    whole = (step.n * step.m // step.width) * size * item
    held = (local.offset, local.size, plan.buffer(local.buffer).size)
    if item not in ITEM_SIZES or held != (0, whole, whole):
        return "gemm_shape", f"the local operand must be whole, {whole} bytes; got {local.size} from {local.offset} on"
    if plan.buffer(local.buffer).role != "input" or local.buffer == goal.operand:
        return "gemm_shape", f"the local operand is an input that is not gathered; got {local.buffer}"
    if local.rank != rank or step.segment.rank != rank:
        return "gemm_shape", f"rank {rank} multiplies what it holds; got ranks {local.rank} and {step.segment.rank}"
    return _check_out(plan, rank, step)


def _check_panel(plan: Plan, rank: int, step: Contract) -> Problem | None:
    """A panel of block matrices: a block of a, as many rows of b, all within one block of each."""
    goal, (rows, cols) = plan.goal, plan.goal.mesh
    item, rest = divmod(goal.row_bytes, max(1, step.m))
    width = goal.starts[1] // goal.row_bytes
    if min(step.m, step.n, step.k) < 1 or rest or item not in ITEM_SIZES or step.a.size != width * goal.row_bytes:
        return "gemm_shape", f"a panel takes {width} columns of {goal.row_bytes} bytes of a; got {step.a.size} bytes"
    if step.k != width or step.b.size != step.k * step.n * item or cols % rows or step.at % width:
        return "gemm_shape", (f"a panel of {width} indices takes as many rows of b, within a block; got {step.k} from "
                              f"{step.at} on")
    if step.a.rank != rank or step.b.rank != rank:
        return "gemm_shape", f"rank {rank} multiplies what it holds; got ranks {step.a.rank} and {step.b.rank}"
    return None


def _check_out(plan: Plan, rank: int, step: Contract) -> Problem | None:
    goal, out, size = plan.goal, step.out, contraction_size(plan.goal)
    if out.rank != rank:
        return "gemm_shape", f"rank {rank} multiplies for itself; got rank {out.rank}"
    row, rest = divmod(goal.output_row_bytes, step.n)
    if rest or row not in ITEM_SIZES or (out.offset, out.size) != (0, step.m * goal.output_row_bytes):
        return "gemm_shape", (f"out must be all of {step.m} rows of {goal.output_row_bytes} bytes; got {out.size} bytes "
                              f"from {out.offset} on")
    if out.buffer != goal.output or plan.buffer(out.buffer).size != out.size:
        return "gemm_shape", f"out must be the whole output {goal.output}; got {out.buffer}"
    if not 0 <= step.at <= size - step.k:
        return "gemm_shape", f"a segment of {step.k} lies in a contraction of {size}; got one from {step.at} on"
    return None


def check_pass(plan: Plan, rank: int, step: Pass) -> Problem | None:
    """Sums of the whole product, in a workspace of the own rank that is theirs alone."""
    known = {buffer.name: buffer for buffer in plan.buffers}
    fits = [(part.rank, part.offset, part.size) == (rank, 0, step.m * step.n * SUM_BYTES) and not part.loops
            and known[part.buffer].role == "workspace" and known[part.buffer].size == part.size
            and part.buffer not in (step.a.buffer, step.b.buffer) for part in step.sums]
    if step.gathered != BOTH or fits != [True]:
        return "gemm_shape", (
            f"passes over block matrices keep {step.m} x {step.n} sums in float32 in a workspace of rank {rank} that is "
            f"theirs alone; got {step.sums}")
    return None


def check_groups(role: Role) -> Problem | None:
    """Groups begin with a step that is first, end with one that is last, are of one product, and else only wait; between
    passes they signal, too."""
    head: Contract | None = None
    for step in role.steps:
        if isinstance(step, Contract):
            if step.first is not (head is None):
                return "structure", "a group of products begins once, with the step that is marked first"
            head = head or step
            if _product(step) != _product(head):
                return "structure", "the steps of a group are parts of one product"
            head = None if step.last else head
        elif head is not None and not isinstance(step, (Wait, Signal) if isinstance(head, Pass) else Wait):
            return "structure", f"between the steps of a group a role only waits; got {type(step).__name__}"
    if head is not None:
        return "structure", "a group of products ends with a step that is marked last"
    if role.agent == "library" and any(isinstance(step, Pass) or (isinstance(step, Contract) and not step.last)
                                       for step in role.steps):
        return "structure", "a library call keeps no sums: its product is a group of its own"
    return None


def _product(step: Contract) -> tuple[object, ...]:
    sums = step.sums if isinstance(step, Pass) else ()
    return type(step), sums, step.out, None if step.gathered == BOTH else step.local, step.gathered, step.m, step.n


class Sums:
    """Which indices of the contraction the open group of every role has multiplied; they are joined as they come."""

    def __init__(self, goal: Goal) -> None:
        self.goal = goal
        self.taken: dict[tuple[int, str, str], list[tuple[int, int]]] = {}

    def add(self, place: tuple[int, str, str], step: Contract, held: list[tuple[int, int, int]]) -> str | None:
        """Takes a step whose segment holds bytes (low, high) with their `shift` to the whole operand; None, or why not."""
        row, ranges = self.goal.row_bytes, list[tuple[int, int]]()
        for low, high, shift in held:
            first, rest = divmod(low + shift, row)
            index, behind = divmod(low - step.segment.offset, row)
            if rest or behind or (high - low) % row:
                return f"must read whole rows of the operand; it reads bytes {low + shift} to {high + shift}"
            if first != step.at + index:
                return (f"must multiply rows {first} on of the operand by the same of its own; it takes those from "
                        f"{step.at + index} on")
            ranges.append((first, first + (high - low) // row))
        return self.take(place, step, ranges)

    def take(self, place: tuple[int, str, str], step: Contract, ranges: list[tuple[int, int]]) -> str | None:
        """The same where it is known which indices are multiplied."""
        if step.first:
            self.taken[place] = []
        taken = self.taken[place]
        for found in ranges:
            insort(taken, found)
        if any(before[1] > after[0] for before, after in pairwise(taken)):
            return "multiplies an index of the contraction twice"
        if not step.last:
            return None
        size = contraction_size(self.goal)
        whole = [(0, 0), *taken, (size, size)]
        gap = next(((a[1], b[0]) for a, b in pairwise(whole) if a[1] < b[0]), None)
        return None if gap is None else f"ends a product without indices {gap[0]} to {gap[1]} of its contraction"
