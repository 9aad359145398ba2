"""Dispatch, with or without products of experts, and combine on a rank's GPU: what callers pass, routed as declared, and
whether all of it came out right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilescale.deploy.tensors import Local, local_inputs, local_outputs
from tilescale.runtime.gpu_check import (
    CALLS,
    EXACT_CALL,
    POISON,
    CallData,
    Expected,
    Place,
    TorchArrays,
    Workload,
    WrongResult,
)
from tilescale.runtime.reference import Sums, finish
from tilescale.runtime.routed import counts_of, entries_of
from tilescale.runtime.routed_scales import scaled_matrices, scaled_rows
from tilescale.runtime.routing import Indices, routing_of
from tilescale.schedules.ragged import ragged, ragged_geometry
from tilescale.spec.declaration import Spec
from tilescale.spec.ops._experts import sent_scale_bytes
from tilescale.spec.result import SMALLEST
from tilescale.spec.routed import routed_deviation

TURNS = ("twice", "declared", "declared")  # by call: the calls that are timed are routed as declared
ROWS_AT_ONCE = 4096  # of a sum in fp64
_KEPT_ROUNDOFF = 2.0**-24


@dataclass(frozen=True)
class Routing:
    """A call's routing: of all ranks, the entries with an expert. Columns of `entries`: source, token, k, holder, row."""

    indices: list[Indices]
    entries: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]


def workload(torch: Any, spec: Spec, rank: int, seed: int, place: Place) -> Workload:
    """The workload of a spec on a rank."""
    return (RoutedWorkload if ragged(spec) else Workload)(torch, spec, rank, seed, place)


class RoutedWorkload(Workload):
    """CALLS calls of a dispatch or a combine. The first meets experts twice and numbers that are no expert's."""

    def __init__(self, torch: Any, spec: Spec, rank: int, seed: int, place: Place) -> None:
        self._torch, self.spec, self.rank, self._seed, self._place = torch, spec, rank, seed, place
        self.kind = spec.operation.moves[0].kind
        self._geo = ragged_geometry(spec, "push", 1)
        self._routings = tuple(self._routing(call) for call in range(CALLS))
        self.calls = tuple(self._made(call) for call in range(CALLS))

    def _routing(self, call: int) -> Routing:
        rng = np.random.default_rng(self._seed * CALLS + call)
        indices = routing_of(self.spec, rng, TURNS[call])
        return Routing(indices, entries_of(self._geo, indices), counts_of(self._geo, indices))

    def poison(self) -> None:
        super().poison()
        if not self._geo.combines:
            for data in self.calls:
                data.inputs[-1].view(self._torch.uint8).fill_(POISON)

    def check(self, call: int, out: Any = None, expected: Expected | None = None) -> None:
        """As of Workload; of a dispatch also the counts, and that nothing behind the rows was written."""
        data, torch = self.calls[call], self._torch
        found = data.out if out is None else out
        if self._geo.combines:
            super().check(call, found, expected)
            return
        counts = torch.from_numpy(self._table(call)).to(found.device)
        if not torch.equal(data.inputs[-1], counts):
            raise WrongResult(f"call {call}: counts are {data.inputs[-1].tolist()}, not {counts.tolist()}")
        rows = data.expected.values.shape[0]
        if bool((found[rows:].view(torch.uint8) != POISON).any()):
            raise WrongResult(f"call {call}: rows behind the last one, {rows}, were written")
        if self.multiplies:
            self._compare(call, "out", found[:rows], data.expected)
            return
        wrong = (found[:rows].view(torch.uint8) != data.expected.values.view(torch.uint8)).any(dim=1)
        if bool(wrong.any()):
            at, many = int(wrong.to(torch.uint8).argmax()), int(wrong.sum())
            raise WrongResult(f"call {call}: row {at} of {rows} is not that of its token; {many} are wrong")

    # -- making --------------------------------------------------------------------------------------------------------
    def _table(self, call: int) -> npt.NDArray[np.int32]:
        local = self._geo.local
        part = self._routings[call].counts[:, self.rank * local:(self.rank + 1) * local]
        return np.ascontiguousarray(part, dtype=np.int32)

    def _made(self, call: int) -> CallData:
        torch, placed = self._torch, []
        for local in local_inputs(self.spec, self.rank):
            tensor = self._place(local)
            self._device = tensor.device
            if local.name == "indices":
                tensor.copy_(torch.from_numpy(self._routings[call].indices[self.rank]))
            elif local.name == "counts" and self._geo.combines:
                tensor.copy_(torch.from_numpy(self._table(call)))
            elif local.name == "weights":
                tensor.copy_(self._weights(call, self.rank))
            elif local.name == "a":
                self._fill(tensor, call)
            elif local.name == "b":
                tensor.copy_(self._matrices(call, self.rank))
            elif local.name != "counts":  # scales, and what epilogues read
                tensor.copy_(self._operand(call, local.name, self.rank))
            placed.append(tensor)
        out = self._place(local_outputs(self.spec, self.rank)[0])
        made = self._combined if self._geo.combines else self._multiplied if self.multiplies else self._dispatched
        return CallData(tuple(placed), out, made(call))

    def _operand(self, call: int, name: str, rank: int) -> Any:
        """The numbers of an operand of any rank."""
        named = {local.name: (at, local) for at, local in enumerate(local_inputs(self.spec, rank))}
        at, local = named[name]
        return self._fresh(local, call, at, rank, self._device)

    def _matrices(self, call: int, rank: int) -> Any:
        """Those of the experts of a rank."""
        return self._fresh(local_inputs(self.spec, rank)[1], call, 1, rank, self._device)

    def _rows_of_experts(self, call: int, rank: int) -> npt.NDArray[np.int64]:
        """How many rows every expert of a rank has."""
        part = slice(rank * self._geo.local, (rank + 1) * self._geo.local)
        return self._routings[call].counts[:, part].sum(axis=0)  # type: ignore[no-any-return]

    def _products(self, call: int, rank: int, rows: Any) -> tuple[Any, Any]:
        """The product of every row that a rank holds with the matrix of its expert, in fp64, and the sum of the absolute
        values that it adds up."""
        spec, each, matrices = self.spec, self._rows_of_experts(call, rank).tolist(), self._matrices(call, rank)
        scaled = spec.attribute("scales") is not None
        of_rows = self._scales_of_rows(call, rank) if scaled else None
        of_matrices = self._operand(call, "scale_b", rank) if scaled else None
        values, sizes, first = [], [], 0
        for expert, part in enumerate(rows.split(each)):
            last = first + part.shape[0]
            own = of_rows if of_rows is None or of_rows.ndim == 1 else of_rows[first:last]
            wide = scaled_rows(spec, part.double(), own)
            here = None if of_matrices is None else of_matrices[expert:expert + 1]
            matrix = scaled_matrices(spec, matrices[expert:expert + 1].double(), here)[0]
            values.append(wide @ matrix)
            sizes.append(wide.abs() @ matrix.abs())
            first = last
        return self._torch.cat(values), self._torch.cat(sizes)

    def _scales_of_rows(self, call: int, rank: int) -> Any:
        """Of every row that a rank holds: where they have come with tokens, those of its token."""
        if not sent_scale_bytes(self.spec):
            return self._operand(call, "scale_a", rank)
        entries = self._routings[call].entries
        mine = entries[entries[:, 3] == rank]
        mine = self._torch.from_numpy(mine[np.argsort(mine[:, 4])]).to(self._device)
        sent = [self._operand(call, "scale_a", source) for source in range(self._geo.world)]
        found = self._torch.empty((len(mine), sent[0].shape[1]), device=self._device)
        for source, scales in enumerate(sent):
            at = mine[:, 0] == source
            found[at] = scales[mine[at, 1]]
        return found

    def _multiplied(self, call: int) -> Expected:
        """A dispatch, and the products of its rows."""
        value, size = self._products(call, self.rank, self._dispatched(call).values)
        off = routed_deviation(self.spec, call == EXACT_CALL)
        torch = self._torch
        repeats = torch.from_numpy(self._rows_of_experts(call, self.rank)).to(self._device)
        extras = [[self._operand(call, operand.name, self.rank).double().repeat_interleave(repeats, dim=0)
                   for operand in epilogue.extras(self.spec)] for epilogue in self.spec.epilogues]
        found = finish(self.spec, Sums(value, size, None), off, extras, TorchArrays(torch, self._device))
        room = found.room + found.value.abs() * _KEPT_ROUNDOFF + SMALLEST.get(self.spec.output.dtype, 0.0)
        return Expected(found.value.to(self._kept), room.float())

    def _fill(self, tensor: Any, call: int) -> None:
        """Tokens, or the rows that there are."""
        held = self._held(call, self.rank)
        tensor.view(self._torch.uint8).fill_(POISON)
        tensor[: held.shape[0]].copy_(held)

    def _held(self, call: int, rank: int) -> Any:
        """The rows that a rank holds."""
        entries = self._routings[call].entries
        rows = int((entries[:, 3] == rank).sum()) if self._geo.combines else self._geo.tokens[rank]
        tensor = self.spec.inputs[0]
        return self._fresh(Local("a", (rows, tensor.sizes[1]), (), tensor.dtype), call, 0, rank, self._device)

    def _numbers(self, local: Local, call: int, generator: Any, device: Any) -> Any:
        dtype = getattr(self._torch, local.dtype)
        if dtype.is_floating_point:
            return super()._numbers(local, call, generator, device)
        return self._torch.randint(0, 100, local.shape, device=device, generator=generator).to(dtype)

    def _weights(self, call: int, rank: int) -> Any:
        shape = (self._geo.tokens[rank], self._geo.top_k)
        generator = self._torch.Generator(self._device).manual_seed((self._seed * CALLS + call) * 128 + rank + 1)
        drawn = self._torch.rand(shape, device=self._device, generator=generator)
        return (drawn * 3).ceil() if call == EXACT_CALL else drawn

    def _dispatched(self, call: int) -> Expected:
        torch, entries = self._torch, self._routings[call].entries
        mine = entries[entries[:, 3] == self.rank]
        mine = mine[np.argsort(mine[:, 4])]
        sent = self.spec.inputs[0]
        values = torch.empty((len(mine), sent.sizes[1]), dtype=getattr(torch, sent.dtype), device=self._device)
        for source in range(self._geo.world):
            at = np.flatnonzero(mine[:, 0] == source)
            tokens = torch.from_numpy(mine[at, 1]).to(self._device)
            held, place = self._held(call, source), torch.from_numpy(at).to(self._device)
            if sent.itemsize == 1:  # torch does not index every type of one byte on a GPU
                values.view(torch.uint8)[place] = held.view(torch.uint8)[tokens]
            else:
                values[place] = held[tokens]
        return Expected(values)

    def _combined(self, call: int) -> Expected:
        torch, entries = self._torch, self._routings[call].entries
        shape = (self._geo.tokens[self.rank], self.spec.output.sizes[1])
        value = torch.zeros(shape, dtype=torch.float64, device=self._device)
        magnitude, weights = torch.zeros_like(value), self._weights(call, self.rank)
        spread = torch.zeros_like(value)
        for holder in range(self._geo.world):
            mine = entries[(entries[:, 0] == self.rank) & (entries[:, 3] == holder)]
            held = self._held(call, holder)
            held, sizes = self._products(call, holder, held) if self.multiplies else (held, None)
            for first in range(0, len(mine), ROWS_AT_ONCE):
                part = torch.from_numpy(mine[first:first + ROWS_AT_ONCE]).to(self._device)
                scale = weights[part[:, 1], part[:, 2], None].double()
                terms = held[part[:, 4]].double() * scale
                value.index_add_(0, part[:, 1], terms)
                spread.index_add_(0, part[:, 1], terms.abs_())
                magnitude.index_add_(0, part[:, 1], terms if sizes is None else sizes[part[:, 4]] * scale)
        off = routed_deviation(self.spec, call == EXACT_CALL)
        room = value.abs() * (off.result + _KEPT_ROUNDOFF) + magnitude * off.magnitude + spread * off.spread
        room += SMALLEST.get(self.spec.output.dtype, 0.0)
        return Expected(value.to(self._kept), room.float())
