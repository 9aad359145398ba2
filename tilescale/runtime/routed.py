"""Values of dispatch and combine on all ranks: what callers pass, and what they must find, made by numpy alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilescale.runtime.check import Array, from_bits, random_input, to_bits
from tilescale.runtime.reference import NumpyArrays, Sums, finish
from tilescale.runtime.routed_scales import Scales, as_bytes, drawn_scales, scaled_matrices, scaled_rows
from tilescale.runtime.routing import Indices
from tilescale.schedules.ragged import RaggedGeometry, ragged_geometry
from tilescale.spec.declaration import Spec
from tilescale.spec.ops._experts import sent_scale_bytes
from tilescale.spec.ops._moe import multiplies
from tilescale.spec.result import SMALLEST
from tilescale.spec.routed import routed_deviation
from tilescale.spec.tensor import Tensor

POISON = 0xFF


@dataclass(frozen=True)
class Routed:
    """`inputs[rank]`: bytes by buffer. `exact[rank]`: bytes that outputs must hold, by buffer, what nobody writes with
    POISON. `value[rank]`, `allowed[rank]`: numbers of the output and how far they may be off, where it adds up; `partly`:
    these are its first rows, and nobody writes the others."""

    inputs: list[dict[str, bytes]]
    exact: list[dict[str, bytes]]
    value: list[Array]
    allowed: list[Array]
    partly: bool = False


def routed(spec: Spec, indices: list[Indices], rng: np.random.Generator, exact: bool) -> Routed:
    """A call. `exact`: small integers."""
    geo = ragged_geometry(spec, "push", 1)
    if multiplies(spec):
        return (_weighted if geo.combines else _multiplied)(spec, geo, indices, rng, exact)
    return (_combined if geo.combines else _dispatched)(spec, geo, indices, rng, exact)


def counts_of(geo: RaggedGeometry, indices: list[Indices]) -> npt.NDArray[np.int64]:
    """Rows of each expert (columns) from each rank (rows)."""
    return np.stack([np.bincount(part[(part >= 0) & (part < geo.experts)], minlength=geo.experts) for part in indices])


def _begin(geo: RaggedGeometry, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where rows of each expert from each rank begin at the rank of the expert: by expert, then by source."""
    first = np.zeros_like(counts)
    for holder in range(geo.world):
        part = slice(holder * geo.local, (holder + 1) * geo.local)
        flat = counts[:, part].T.reshape(-1)
        first[:, part] = (np.cumsum(flat) - flat).reshape(geo.local, geo.world).T
    return first


def entries_of(geo: RaggedGeometry, indices: list[Indices]) -> npt.NDArray[np.int64]:
    """Every entry with an expert, in order: source, token, k, the rank of its expert, and its row there."""
    first, found = _begin(geo, counts_of(geo, indices)), []
    for source, part in enumerate(indices):
        token, k = np.nonzero((part >= 0) & (part < geo.experts))
        expert = part[token, k].astype(np.int64)
        order = np.argsort(expert, kind="stable")
        number = np.empty(len(order), np.int64)  # which of the rows of its expert
        number[order] = np.arange(len(order)) - np.searchsorted(expert[order], expert[order])
        row = first[source, expert] + number
        found.append(np.stack([np.full_like(expert, source), token, k, expert // geo.local, row], axis=1))
    return np.concatenate(found)


def _table(geo: RaggedGeometry, indices: list[Indices], rank: int) -> bytes:
    part = counts_of(geo, indices)[:, rank * geo.local:(rank + 1) * geo.local]
    return part.astype("<i4").tobytes()


def _drawn(tensor: Tensor, rows: int, rng: np.random.Generator, exact: bool) -> npt.NDArray[np.uint8]:
    """Rows of a tensor, as bytes."""
    bits = to_bits(random_input(rng, (rows, tensor.sizes[1]), exact), tensor.dtype)
    return np.frombuffer(bits.tobytes(), np.uint8).reshape(rows, tensor.sizes[1] * tensor.itemsize)


def _dispatched(spec: Spec, geo: RaggedGeometry, indices: list[Indices], rng: np.random.Generator, exact: bool) -> Routed:
    tokens = [_drawn(spec.inputs[0], count, rng, exact) for count in geo.tokens]
    outs = [np.full((geo.room, geo.row_bytes), POISON, np.uint8) for _ in range(geo.world)]

    for source, token, _, holder, row in entries_of(geo, indices).tolist():
        outs[holder][row] = tokens[source][token]
    inputs = [{"a": tokens[rank].tobytes(), "indices": indices[rank].astype("<i4").tobytes()} for rank in range(geo.world)]
    found = [{"out": outs[rank].tobytes(), "counts": _table(geo, indices, rank)} for rank in range(geo.world)]
    return Routed(inputs, found, [], [])


def _multiplied(spec: Spec, geo: RaggedGeometry, indices: list[Indices], rng: np.random.Generator, exact: bool) -> Routed:
    """A dispatch, and the product of every row with the matrix of its expert."""
    sent = _dispatched(spec, geo, indices, rng, exact)
    counts, off = counts_of(geo, indices), routed_deviation(spec, exact)
    least = SMALLEST.get(spec.output.dtype, 0.0)
    scales = drawn_scales(spec, rng, exact)
    of_rows = _scales_of_rows(spec, geo, indices, scales)
    inputs, exactly, value, allowed = [], [], [], []
    for rank, (given, found) in enumerate(zip(sent.inputs, sent.exact, strict=True)):
        bits, factors = _matrices(spec, rng, exact, scales[rank])
        rows = counts[:, rank * geo.local:(rank + 1) * geo.local].sum(axis=0)
        size = int(rows.sum()) * geo.row_bytes
        held = from_bits(found["out"][:size], spec.inputs[0].dtype).reshape(-1, spec.mnk[2])
        held = scaled_rows(spec, held, of_rows[rank])
        parts = np.split(held, np.cumsum(rows)[:-1])
        total = np.concatenate([part @ factor for part, factor in zip(parts, factors, strict=True)])
        magnitude = np.concatenate([np.abs(part) @ np.abs(factor) for part, factor in zip(parts, factors, strict=True)])
        beside, numbers = _beside(spec, rank, rows, rng, exact)
        made = finish(spec, Sums(total, magnitude, None), off, numbers, NumpyArrays())
        value.append(made.value)
        allowed.append(made.room + least)
        inputs.append({**given, "b": bits, **beside, **as_bytes(scales[rank])})
        exactly.append({"counts": found["counts"]})
    return Routed(inputs, exactly, value, allowed, partly=True)


def _scales_of_rows(spec: Spec, geo: RaggedGeometry, indices: list[Indices], scales: list[Scales]) -> list[Array]:
    """Of every row of a dispatch, those that have travelled with its token, or the one of all tokens."""
    if not sent_scale_bytes(spec):
        return [each.get("scale_a", np.ones(1)) for each in scales]
    entries, sent = entries_of(geo, indices), np.concatenate([each["scale_a"] for each in scales])
    first, found = np.cumsum([0, *geo.tokens]), []
    for holder in range(geo.world):
        mine = entries[entries[:, 3] == holder]
        mine = mine[np.argsort(mine[:, 4])]
        found.append(sent[first[mine[:, 0]] + mine[:, 1]])
    return found


def _beside(spec: Spec, rank: int, rows: npt.NDArray[np.int64], rng: np.random.Generator, exact: bool
            ) -> tuple[dict[str, bytes], list[list[Array]]]:
    """What epilogues read: bytes by buffer, and of every epilogue its operands, of each row those of its expert. `rows`:
    of every expert of the rank."""
    given, found = {}, []
    for epilogue in spec.epilogues:
        own = []
        for operand in epilogue.extras(spec):
            shape = operand.tensor.local_shape(rank, spec.world)
            given[operand.name] = bits = to_bits(random_input(rng, shape, exact), operand.tensor.dtype).tobytes()
            own.append(np.repeat(from_bits(bits, operand.tensor.dtype).reshape(shape), rows, axis=0))
        found.append(own)
    return given, found


def _matrices(spec: Spec, rng: np.random.Generator, exact: bool, scales: Scales) -> tuple[bytes, Array]:
    """Those of the experts of a rank: their memory, and what they stand for."""
    tensor = spec.inputs[1]
    experts, k, n = tensor.local_shape(0, spec.world)
    by_rows = tensor.order == "row"
    rows, columns = (k, n) if by_rows else (n, k)
    bits = to_bits(random_input(rng, (experts * rows, columns), exact), tensor.dtype).tobytes()
    held = from_bits(bits, tensor.dtype).reshape(experts, rows, columns)
    return bits, scaled_matrices(spec, held if by_rows else held.transpose(0, 2, 1), scales.get("scale_b"))


def _weighted(spec: Spec, geo: RaggedGeometry, indices: list[Indices], rng: np.random.Generator, exact: bool) -> Routed:
    """The product of every row with the matrix of its expert, and a combine of these."""
    sent, dtype = _combined(spec, geo, indices, rng, exact), spec.inputs[0].dtype
    scales = drawn_scales(spec, rng, exact)
    made = [_matrices(spec, rng, exact, each) for each in scales]
    value = [np.zeros((count, spec.output.sizes[1])) for count in geo.tokens]
    magnitude, spread = [np.zeros_like(v) for v in value], [np.zeros_like(v) for v in value]
    counts = counts_of(geo, indices).sum(axis=0).reshape(geo.world, geo.local)
    ends = np.cumsum(counts, axis=1)
    held = [scaled_rows(spec, from_bits(given["a"], dtype).reshape(geo.room, -1), each.get("scale_a"))
            for given, each in zip(sent.inputs, scales, strict=True)]
    weights = [np.frombuffer(given["weights"], "<f4").reshape(part.shape)
               for given, part in zip(sent.inputs, indices, strict=True)]
    for source, token, k, holder, row in entries_of(geo, indices).tolist():
        weight, matrix = float(weights[source][token, k]), made[holder][1][int((ends[holder] <= row).sum())]
        term = held[holder][row] @ matrix
        value[source][token] += weight * term
        magnitude[source][token] += weight * (np.abs(held[holder][row]) @ np.abs(matrix))
        spread[source][token] += weight * np.abs(term)
    off, least = routed_deviation(spec, exact), SMALLEST.get(spec.output.dtype, 0.0)
    allowed = [least + np.abs(v) * off.result + m * off.magnitude + s * off.spread
               for v, m, s in zip(value, magnitude, spread, strict=True)]
    inputs = [{**given, "b": bits, **as_bytes(each)}
              for given, (bits, _), each in zip(sent.inputs, made, scales, strict=True)]
    return Routed(inputs, sent.exact, value, allowed)


def _combined(spec: Spec, geo: RaggedGeometry, indices: list[Indices], rng: np.random.Generator, exact: bool) -> Routed:
    held = [np.full((geo.room, geo.row_bytes), POISON, np.uint8) for _ in range(geo.world)]
    dtype, hidden = spec.inputs[0].dtype, spec.inputs[0].sizes[1]
    weights = [(rng.integers(1, 4, part.shape) if exact else rng.random(part.shape)).astype(np.float32) for part in indices]
    value = [np.zeros((count, hidden)) for count in geo.tokens]
    magnitude = [np.zeros((count, hidden)) for count in geo.tokens]

    for source, token, k, holder, row in entries_of(geo, indices).tolist():
        drawn = _drawn(spec.inputs[0], 1, rng, exact)[0]
        held[holder][row] = drawn
        term = float(weights[source][token, k]) * from_bits(drawn.tobytes(), dtype)
        value[source][token] += term
        magnitude[source][token] += np.abs(term)

    inputs = [{"a": held[rank].tobytes(), "indices": indices[rank].astype("<i4").tobytes(),
               "weights": weights[rank].astype("<f4").tobytes(), "counts": _table(geo, indices, rank)}
              for rank in range(geo.world)]
    off, least = routed_deviation(spec, exact), SMALLEST.get(dtype, 0.0)
    allowed = [least + np.abs(v) * off.result + m * off.magnitude for v, m in zip(value, magnitude, strict=True)]
    return Routed(inputs, [{} for _ in value], value, allowed)
