"""Provenance: which rows of which rank's operand each byte holds, followed along one run over all calls.

A plan without races computes the same values in every order, so one order shows them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from tilescale.schedules.agents import CALLER, Model, Work
from tilescale.schedules.contracting import BOTH, Sums
from tilescale.schedules.following import Following
from tilescale.schedules.footprint import SUMMED, describe, elements_of
from tilescale.schedules.order import Run
from tilescale.schedules.plan import (
    Clear,
    Contract,
    Gemm,
    MultimemStore,
    Pass,
    Pieces,
    PutPackets,
    Ragged,
    Reduce,
    Region,
    SharedGemm,
    Sum,
    SumAside,
)
from tilescale.schedules.story import Counterexample, Place

OPERAND, PRODUCT, PART, OTHER, ZERO = "operand", "product", "part", "other", "zero"
CARRIED = "carried"
PIECE = "piece"  # sums of a piece of a tile
ASIDE = "aside"  # behind the epilogues that have handed something out besides, in Value.then
SECOND = "second"  # of the blocks of a mesh, those of b: bytes of all of them, rank after rank


class Value(NamedTuple):
    """What bytes hold: byte x of the buffer is byte x + `shift` of the whole operand (or of the whole output, for a
    product), as of `call`. A part is a product that is yet to be summed and rounded: its bytes are counted in rows of
    Goal.part_row_bytes. What is carried is a sum that lacks some ranks, its bytes counted as those of the whole output in
    float32. `shift` is 0 for other inputs and zeros. `ranks`: in a plan that reduces, the ranks whose parts
    are summed there. `then`: epilogues that have been applied."""

    kind: str
    shift: int
    call: int
    ranks: tuple[int, ...] = ()
    then: tuple[str, ...] = ()


Piece = tuple[int, int, Value]


class Contents:
    """What one version of one buffer holds: disjoint pieces, sorted; bytes in no piece were never written."""

    def __init__(self) -> None:
        self.lows: list[int] = []
        self.highs: list[int] = []
        self.values: list[Value] = []

    def pieces(self, low: int, high: int) -> Iterator[Piece]:
        """The known pieces of [low, high), cut to it."""
        index = bisect_right(self.highs, low)
        while index < len(self.lows) and self.lows[index] < high:
            yield max(low, self.lows[index]), min(high, self.highs[index]), self.values[index]
            index += 1

    def write(self, low: int, high: int, value: Value) -> None:
        """Replace what [low, high) holds, and join it to equal neighbours."""
        first, last = bisect_right(self.highs, low), bisect_left(self.lows, high)
        lows, highs, values = [low], [high], [value]
        if first < last and self.lows[first] < low:
            lows, highs, values = [self.lows[first], *lows], [low, *highs], [self.values[first], *values]
        if first < last and self.highs[last - 1] > high:
            lows, highs, values = [*lows, high], [*highs, self.highs[last - 1]], [*values, self.values[last - 1]]
        if first and self.highs[first - 1] == lows[0] and self.values[first - 1] == values[0]:
            first -= 1
            lows[0] = self.lows[first]
        if last < len(self.lows) and self.lows[last] == highs[-1] and self.values[last] == values[-1]:
            highs[-1] = self.highs[last]
            last += 1
        joined = [(lows[0], highs[0], values[0])]
        for piece in zip(lows[1:], highs[1:], values[1:], strict=True):
            if joined[-1][2] == piece[2] and joined[-1][1] == piece[0]:
                joined[-1] = (joined[-1][0], piece[1], piece[2])
            else:
                joined.append(piece)
        self.lows[first:last] = [p[0] for p in joined]
        self.highs[first:last] = [p[1] for p in joined]
        self.values[first:last] = [p[2] for p in joined]


class DataFlow(Following):
    """Follows the data of a plan along `run`."""

    def __init__(self, model: Model, run: Run) -> None:
        super().__init__(model, run)
        self.memory: dict[tuple[int, str, int], Contents] = {}
        self.sums = Sums(model.plan.goal)

    def _contents(self, rank: int, buffer: str, call: int) -> Contents:
        key = (rank, buffer, call % self.versions[buffer])
        contents = self.memory.get(key)
        if contents is None:
            contents = self.memory[key] = Contents()
            made = self.plan.buffer(buffer)
            if made.zeroed:
                contents.write(0, made.size, Value(ZERO, 0, -1))
        return contents

    def _caller(self, rank: int, call: int) -> Counterexample | None:
        problem = self._outputs(rank, call - 1) if call else None
        if problem is not None or call == self.model.calls:
            return problem
        start, end = self.goal.starts[rank], self.goal.starts[rank + 1]
        part: tuple[int, ...] = ()
        if self.goal.reduces:
            start, end, part = 0, self.goal.starts[-1], (rank,)
        for buffer in self.plan.buffers:
            if buffer.role == "input" and buffer.name == self.goal.operand and end > start:
                # The shard of a rank may be shorter than the buffer: the rest holds nothing.
                self._contents(rank, buffer.name, call).write(0, end - start, Value(OPERAND, start, call, part))
            elif buffer.role == "input" and self.goal.mesh[0]:
                self._contents(rank, buffer.name, call).write(0, buffer.size, Value(SECOND, rank * buffer.size, call))
            elif buffer.role == "input" and buffer.name != self.goal.operand and buffer.size:
                self._contents(rank, buffer.name, call).write(0, buffer.size, Value(OTHER, 0, call))
        return None

    def _outputs(self, rank: int, call: int) -> Counterexample | None:
        for buffer in self.plan.buffers:
            if buffer.role != "output":
                continue
            first, size = 0, buffer.size
            if buffer.name in (self.goal.output, self.goal.aside):
                first, size = self.goal.output_span(rank, buffer.size)
            pieces = list(self._contents(rank, buffer.name, call).pieces(0, size))
            kept = buffer.name == self.goal.keeps
            kind = PRODUCT if self.goal.computes and not kept else OPERAND
            everyone = tuple(range(self.plan.world)) if self.goal.reduces else ()
            then = (*self.goal.then, ASIDE) if buffer.name == self.goal.aside else self.goal.then
            wanted = Value(kind, first, call, everyone, () if kept else then)
            reached = 0
            for low, high, value in [*pieces, (size, size, wanted)]:
                known = buffer.name in (self.goal.output, self.goal.keeps, self.goal.aside)
                wrong = value != wanted if known else value.call != call
                if low > reached or wrong:
                    low, high = (reached, low) if low > reached else (low, high)
                    held = "nothing" if low == reached and wrong is False else _say(value, low, high)
                    return Counterexample(
                        "data_flow",
                        f"output {buffer.name} of rank {rank} must hold {_say(wanted, low, high)}; it holds {held}",
                        (Place(rank, CALLER, call=call),),
                        buffer.name,
                        rank,
                        low,
                        high - low,
                    )
                reached = high
        return None

    def _step(self, rank: int, work: Work, call: int) -> Counterexample | None:
        step = work.step
        if isinstance(step, Pieces):
            for part in step.parts:
                self._contents(part.rank, part.buffer, call).write(part.offset, part.end, Value(PIECE, 0, call))
            return None
        if isinstance(step, Gemm):
            return self._gemm(rank, work, step, call)
        if isinstance(step, Contract):
            return self._contract(rank, work, step, call)
        if isinstance(step, Sum):
            return self._sum(rank, work, step, call)
        if isinstance(step, Clear):
            self._contents(step.dst.rank, step.dst.buffer, call).write(step.dst.offset, step.dst.end, Value(ZERO, 0, call))
            return None
        assert not isinstance(step, Ragged)  # check_steps leaves them to ragged operations
        pieces = self._read(step.src, call)
        if not _filled(pieces, step.src, call):
            return self._unwritten(rank, work, step.src, call)
        if isinstance(step, Reduce):
            return self._reduce(rank, work, step, call, pieces)
        for region in step.targets if isinstance(step, MultimemStore | PutPackets) else (step.dst,):
            offset, target = region.offset - step.src.offset, self._contents(region.rank, region.buffer, call)
            for low, high, value in pieces:
                target.write(low + offset, high + offset, _moved(value, offset))
        return None

    def _reduce(self, rank: int, work: Work, step: Reduce, call: int, pieces: list[Piece]) -> Counterexample | None:
        """Add what `pieces` of the source hold to zeros, or to parts of the same rows from other ranks."""
        offset = step.dst.offset - step.src.offset
        target = self._contents(step.dst.rank, step.dst.buffer, call)
        for low, high, value in pieces:
            added, reached = _moved(value, offset), low + offset
            for first, last, held in list(target.pieces(low + offset, high + offset)):
                fresh = held.kind == ZERO
                same = held[:3] == added[:3] and not set(held.ranks) & set(added.ranks)
                if first > reached or not added.ranks or not (fresh or same):
                    message = f"must add to zeros or to other parts of {_say(added, first, last)}; there is "
                    return self._refuse(rank, work, call, step.dst, message + _say(held, first, last))
                target.write(first, last, added._replace(ranks=tuple(sorted({*held.ranks, *added.ranks}))))
                reached = last
            if reached < high + offset:
                return self._refuse(rank, work, call, step.dst, "adds to bytes that were never written")
        return None

    def _sum(self, rank: int, work: Work, step: Sum, call: int) -> Counterexample | None:
        """Every source must hold the same rows, of other ranks than the others; together they are a larger sum. One of all
        ranks is what the output wants; one of fewer is carried on, in float32."""
        sums: list[Piece] = []
        added_up = PART if self.goal.part_row_bytes else OPERAND  # what carried sums are sums of
        for number, (source, element) in enumerate(zip(step.srcs, elements_of(step), strict=True)):
            pieces = self._read(source, call)
            if not _filled(pieces, source, call):
                return self._unwritten(rank, work, source, call)
            wanted = (CARRIED,) if step.carried and number == 0 else (OPERAND, PART)
            wrong = [piece for piece in pieces if piece[2].kind not in wanted or not piece[2].ranks or piece[2].then]
            if wrong:
                return self._refuse(rank, work, call, source, "must add parts of a sum; it reads " + _told(wrong[0]))
            here = [_in_elements(piece, source.offset, SUMMED[element], added_up) for piece in pieces]
            added = here if number == 0 else _added(sums, here)
            if added is None:
                told = " and ".join(map(_told, (sums[0], here[0])))
                message = f"must add parts of the same rows, each once; there are elements {told}"
                return self._refuse(rank, work, call, source, message)
            sums = added
        size = SUMMED[step.out]
        for low, high, value in sums:
            whole = len(value.ranks) == self.plan.world
            if not whole and (step.out != "float32" or value.kind != added_up):
                return self._refuse(rank, work, call, step.dst, "must keep a sum that lacks some ranks in float32: it is "
                                    "rounded once, when it is complete")
            first, last, start = (at * size for at in (low, high, low + value.shift))
            kind = CARRIED if not whole else PRODUCT if value.kind == PART else value.kind
            problem = self._beside(rank, work, step, call, (first, start, last - first))
            if problem is not None:
                return problem
            for to in step.targets:
                then = (*step.then, ASIDE) if isinstance(step, SumAside) and to in step.aside else step.then
                self._contents(to.rank, to.buffer, call).write(
                    to.offset + first, to.offset + last,
                    value._replace(kind=kind, shift=start - first - to.offset, then=then))
        return None

    def _beside(self, rank: int, work: Work, step: Gemm | Sum, call: int, made: tuple[int, int, int]
                ) -> Counterexample | None:
        """Extra operands must be of this call; of those with rows, the same as are made: `made` is where they begin in the
        step and in the whole output, and their size, in bytes of the output."""
        inside, start, size = made
        rows = {extra.buffer for extra in self.goal.extras if extra.row_bytes}
        span = self.goal.output_span(rank, self.plan.buffer(self.goal.output).size)
        for region in step.extras:
            if not _filled(self._read(region, call), region, call):
                return self._unwritten(rank, work, region, call)
            wanted = start - span[0]
            if region.buffer in rows and (region.offset + inside != wanted or start + size > sum(span)):
                message = f"must read the rows of {region.buffer} that it makes of the output, from byte {wanted} on"
                return self._refuse(rank, work, call, region, message)
        return None

    def _gemm(self, rank: int, work: Work, step: Gemm, call: int) -> Counterexample | None:
        pieces, local = self._read(step.a, call), self._read(step.b, call)
        left = [(part, self._read(part, call)) for part in (step.parts if isinstance(step, SharedGemm) else ())]
        for region, found in ((step.a, pieces), (step.b, local), *left):
            if not _filled(found, region, call):
                return self._unwritten(rank, work, region, call)
        if any(value.kind != PIECE for _, found in left for _, _, value in found):
            return self._refuse(rank, work, call, left[0][0], "must add sums of pieces of its tiles")
        if local[0][2].kind != OTHER:
            return self._refuse(rank, work, call, step.b, "must multiply by the local operand")
        row, out_row = self.goal.row_bytes, self.goal.product_row_bytes
        kind = PART if self.goal.part_row_bytes else PRODUCT
        target = self._contents(step.out.rank, step.out.buffer, call)
        for low, high, value in pieces:
            first, last = low - step.a.offset, high - step.a.offset
            if value.kind != OPERAND or first % row or last % row or (low + value.shift) % row:
                return self._refuse(
                    rank, work, call, step.a, "must read whole rows of the operand; it reads " + _say(value, low, high)
                )
            begin = step.out.offset + first // row * out_row
            shift = (low + value.shift) // row * out_row - begin
            whole_row = self.goal.output_row_bytes
            inside, start, size = (at // row * whole_row for at in (first, low + value.shift, last - first))
            problem = self._beside(rank, work, step, call, (inside, start, size))
            if problem is not None:
                return problem
            target.write(begin, step.out.offset + last // row * out_row, Value(kind, shift, call, value.ranks, step.then))
        return None

    def _contract(self, rank: int, work: Work, step: Contract, call: int) -> Counterexample | None:
        """A segment of the operand times the same of the local one; the last of a group has taken all of it."""
        if step.gathered == BOTH:
            return self._panel(rank, work, step, call)
        pieces, local = self._read(step.segment, call), self._read(step.local, call)
        for region, found in ((step.segment, pieces), (step.local, local)):
            if not _filled(found, region, call):
                return self._unwritten(rank, work, region, call)
        for piece in pieces:
            if piece[2].kind != OPERAND:
                return self._refuse(rank, work, call, step.segment, "must read the operand; it reads " + _told(piece))
        held = [(low, high, value.shift) for low, high, value in pieces]
        return self._summed(rank, work, step, call, self.sums.add((rank, work.launch, work.role), step, held))

    def _panel(self, rank: int, work: Work, step: Contract, call: int) -> Counterexample | None:
        """A panel of block matrices: the block of a and the rows of b that meet at its indices, in this rank's row and
        column of the mesh."""
        goal, (rows, cols) = self.goal, self.goal.mesh
        width, row_b = goal.starts[1] // goal.row_bytes, step.b.size // step.k
        height = width * cols // rows
        owner_a, owner_b = rank // cols * cols + step.at // width, step.at // height * cols + rank % cols
        wanted = ((step.a, OPERAND, owner_a * step.a.size),
                  (step.b, SECOND, (owner_b * height + step.at % height) * row_b))
        for region, kind, first in wanted:
            pieces = self._read(region, call)
            if not _filled(pieces, region, call):
                return self._unwritten(rank, work, region, call)
            for piece in pieces:
                if piece[2].kind != kind or piece[2].shift != first - region.offset:
                    what = "the blocks of b" if kind == SECOND else "the operand"
                    message = f"must multiply bytes from {first} on of {what}; it reads {_told(piece)}"
                    return self._refuse(rank, work, call, region, message)
        for part in step.sums if isinstance(step, Pass) else ():
            left = self._read(part, call)
            if not step.first and (not _filled(left, part, call) or any(value.kind != PIECE for _, _, value in left)):
                return self._refuse(rank, work, call, part, "must add to the sums that the pass before has left")
            if not step.last:
                self._contents(part.rank, part.buffer, call).write(part.offset, part.end, Value(PIECE, 0, call))
        taken = self.sums.take((rank, work.launch, work.role), step, [(step.at, step.at + step.k)])
        return self._summed(rank, work, step, call, taken)

    def _summed(self, rank: int, work: Work, step: Contract, call: int, wrong: str | None) -> Counterexample | None:
        if wrong is not None:
            return self._refuse(rank, work, call, step.segment, wrong)
        if step.last:
            self._contents(step.out.rank, step.out.buffer, call).write(0, step.out.size, Value(PRODUCT, 0, call))
        return None

    def _read(self, region: Region, call: int) -> list[Piece]:
        return list(self._contents(region.rank, region.buffer, call).pieces(region.offset, region.end))

    def _unwritten(self, rank: int, work: Work, region: Region, call: int) -> Counterexample:
        return self._refuse(
            rank,
            work,
            call,
            region,
            f"reads bytes of {region.buffer} of rank {region.rank} that were not written in this call",
        )

    def _refuse(self, rank: int, work: Work, call: int, region: Region, message: str) -> Counterexample:
        place = Place(rank, work.launch, work.role, work.number, call, describe(work.step))
        return Counterexample(
            "data_flow",
            f"step {work.number} of rank {rank} {message}",
            (place,),
            region.buffer,
            region.rank,
            region.offset,
            region.size,
        )


def _filled(pieces: list[Piece], region: Region, call: int) -> bool:
    """Whether every byte of the region was written in this call."""
    reached = region.offset
    for low, high, value in pieces:
        if low > reached or value.call != call:
            return False
        reached = high
    return reached >= region.end


def _moved(value: Value, offset: int) -> Value:
    return value if value.kind in (OTHER, ZERO) else value._replace(shift=value.shift - offset)


def _added(first: list[Piece], second: list[Piece]) -> list[Piece] | None:
    """Two coverings of the same bytes added piece by piece; None where they hold different rows or a rank twice."""
    cuts = sorted({at for low, high, _ in (*first, *second) for at in (low, high)})
    found: list[Piece] = []
    for low, high in pairwise(cuts):
        one, other = _at(first, low), _at(second, low)
        if one is None or other is None or one[:3] != other[:3] or set(one.ranks) & set(other.ranks):
            return None
        found.append((low, high, one._replace(ranks=tuple(sorted((*one.ranks, *other.ranks))))))
    return found


def _at(pieces: list[Piece], at: int) -> Value | None:
    return next((value for low, high, value in pieces if low <= at < high), None)


def _in_elements(piece: Piece, offset: int, size: int, added_up: str) -> Piece:
    """A piece of a source counted in its elements from the first, which is alike for all types; carried sums are told from
    what they are sums of by their ranks alone."""
    low, high, value = piece
    first, kind = (low - offset) // size, added_up if value.kind == CARRIED else value.kind
    return first, (high - offset) // size, value._replace(kind=kind, shift=(low + value.shift) // size - first)


def _told(piece: Piece) -> str:
    return _say(piece[2], piece[0], piece[1])


def _say(value: Value, low: int, high: int) -> str:
    if value.kind == OTHER:
        return f"another input of call {value.call}"
    if value.kind == ZERO:
        return f"zeros of call {value.call}"
    what = {SECOND: "the blocks of b", OPERAND: "the operand", PRODUCT: "the product", PART: "the parts of the product",
            CARRIED: "the sum on its way",
            PIECE: "sums of pieces"}[value.kind]
    if value.ranks:
        what += f" of ranks {', '.join(map(str, value.ranks))}"
    if value.then:
        what += f" after {', '.join(value.then)}"
    return f"bytes {low + value.shift} to {high + value.shift} of {what} of call {value.call}"
