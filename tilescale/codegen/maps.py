"""Tensor maps of a product: of its operands, and of where it is stored."""

from __future__ import annotations

from collections.abc import Sequence

from tilescale.codegen.program import Placed, TensorMapSpec
from tilescale.schedules import tile
from tilescale.schedules.geometry import spanned
from tilescale.schedules.grouped import grouped
from tilescale.schedules.plan import Buffer, Contract, Gemm, Plan
from tilescale.schedules.schedule import Schedule
from tilescale.spec.contraction import NAMES, contraction_inner, contracts, gathered_operand, in_blocks
from tilescale.spec.op import Spec
from tilescale.spec.ops._moe import combines
from tilescale.spec.tensor import ITEMSIZE

BOX_ROWS = 16  # of a product: what a warp stores
STORED = ("out", "partial")  # buffers that a tensor map may cover: a rank stores its whole product there


def map_bytes(plan: Plan, span: int = 1) -> int:
    """Bytes of the operand that one shard of a tensor map holds: all of it where nothing is gathered. `span`: shards of
    ranks that a product takes together."""
    goal = plan.goal
    return goal.starts[-1] if goal.reduces else (goal.starts[1] - goal.starts[0]) * span


def out_shard_bytes(plan: Plan, span: int = 1) -> int:
    """Bytes of the product that one shard of the operand becomes."""
    return map_bytes(plan, span) // plan.goal.row_bytes * plan.goal.product_row_bytes


def stored_buffer(plan: Plan) -> Buffer | None:
    """The buffer that all products are stored in, where tensor stores can reach it: its map clips at the end of a shard,
    so segments that end before are made of whole boxes."""
    steps = [step for rank in plan.ranks for launch in rank for step in launch.steps
             if isinstance(step, Gemm | Contract)]
    names = {step.out.buffer if step.out.rank == step.a.rank else "" for step in steps}
    name = names.pop() if len(names) == 1 else ""
    if name not in STORED:
        return None
    found = plan.buffer(name)
    whole = name == "out" or all(step.m % BOX_ROWS == 0 or step.out.end == found.size for step in steps)
    return found if whole else None


def _wide(element: str) -> int:
    """Elements of a box: 128 bytes, the swizzle's width."""
    return tile.ROW_BYTES // ITEMSIZE[element]


def tensor_maps(spec: Spec, s: Schedule, plan: Plan, placed: Sequence[Placed], n: int, k: int) -> tuple[TensorMapSpec, ...]:
    """A own, A gathered (a map a version), B, and the product. Boxes are 128 bytes (the swizzle's width) wide.

    A product with two versions has one in each shard of its map.
    """
    if contracts(spec):
        return _contraction_maps(spec, s, plan, n, k)
    if in_blocks(spec):
        return _block_maps(spec, s, plan, n, k)
    if grouped(spec):
        return _group_maps(spec, s, plan, n, k)
    goal, versions = plan.goal, {buffer.name: buffer.versions for buffer in plan.buffers}
    a, b = spec.inputs[0], spec.inputs[1]
    span = spanned(spec, s)
    rows = map_bytes(plan, span) // goal.row_bytes

    def operand(buffer: str, version: int, shards: int, span: int) -> TensorMapSpec:
        box, shard = (_wide(a.dtype), s.block_m // tile.owners(spec, s), 1), map_bytes(plan, span)
        return TensorMapSpec(buffer, version, (k, shard // goal.row_bytes, shards), (goal.row_bytes, shard), box, a.dtype)

    own = operand("a", 0, 1, 1)
    gathered = [operand("gather", v, plan.world // span, span) for v in range(versions.get("gather", 0))]
    gathered += [*gathered, own, own][: 2 - len(gathered)]
    if b.order == "col":
        map_b = TensorMapSpec("b", 0, (k, n), (k * b.itemsize,), (_wide(b.dtype), s.block_n // s.cluster_m), b.dtype)
    else:
        map_b = TensorMapSpec("b", 0, (n, k), (n * b.itemsize,), (_wide(b.dtype), s.block_k // s.cluster_m), b.dtype)
    staging, stored = tile.staging(spec, s), stored_buffer(plan)
    map_out = own  # where nothing is stored through it
    if staging.staged and stored is not None:
        size = out_shard_bytes(plan, span)
        stride = next((p.stride for p in placed if p.buffer == stored.name), 0) or size
        columns = goal.product_row_bytes // ITEMSIZE[tile.product_dtype(spec)]
        shards = stored.versions if stored.versions > 1 else stored.size // size
        map_out = TensorMapSpec(stored.name, 0, (columns, rows, shards), (goal.product_row_bytes, stride),
                                (staging.columns, BOX_ROWS, 1), tile.product_dtype(spec))
    return (own, *gathered, map_b, map_out)


def _contraction_maps(spec: Spec, s: Schedule, plan: Plan, n: int, k: int) -> tuple[TensorMapSpec, ...]:
    """What is sent (own, gathered), the local operand, and the product. Both operands are shards of the contraction, so
    that loads are cut off at the end of a shard."""
    sent, shard, world = gathered_operand(spec), k // plan.world, plan.world
    sizes, blocks = [plan.buffer("out").size // plan.goal.output_row_bytes, n], (s.block_m, s.block_n)

    def factor(operand: int, buffer: str, version: int, shards: int, pitch: int) -> TensorMapSpec:
        """`pitch`: indices from one row to the next, where the contraction is the inner dimension."""
        tensor, outer = spec.inputs[operand], sizes[operand]
        if contraction_inner(operand, tensor):
            step = shard if pitch > shard else outer * shard
            return TensorMapSpec(buffer, version, (shard, outer, shards), (pitch * tensor.itemsize, step * tensor.itemsize),
                                 (64, blocks[operand], 1), tensor.dtype)
        row = outer * tensor.itemsize
        return TensorMapSpec(buffer, version, (outer, shard, shards), (row, shard * row), (64, s.block_k, 1), tensor.dtype)

    own = factor(sent, NAMES[sent], 0, 1, shard)
    gathered = [factor(sent, "gather", version, world, shard) for version in range(plan.buffer("gather").versions)]
    local = factor(1 - sent, NAMES[1 - sent], 0, world, k)
    return (own, *gathered, *[own] * (2 - len(gathered)), local, _out_map(spec, s, plan, n) or own)


def _out_map(spec: Spec, s: Schedule, plan: Plan, n: int) -> TensorMapSpec | None:
    """Of a whole product; None where nothing is stored through it."""
    row, staging = plan.goal.output_row_bytes, tile.staging(spec, s)
    rows = plan.buffer("out").size // row
    return TensorMapSpec("out", 0, (n, rows, 1), (row, row * rows), (staging.columns, BOX_ROWS, 1),
                         tile.product_dtype(spec)) if staging.staged else None


def _group_maps(spec: Spec, s: Schedule, plan: Plan, n: int, k: int) -> tuple[TensorMapSpec, ...]:
    """The rows of all experts, and their matrices, one behind the other. Products are stored without a map: rows behind
    the last one of an expert are those of the next."""
    a, b = spec.inputs
    row, experts = plan.goal.row_bytes, b.local_shape(0, plan.world)[0]
    name = "a" if combines(spec) else "rows"
    size = plan.buffer(name).size
    rows = TensorMapSpec(name, 0, (k, size // row, 1), (row, size), (_wide(a.dtype), s.block_m, 1), a.dtype)
    pitch, size = (k if b.order == "col" else n) * b.itemsize, n * k * b.itemsize
    if b.order == "col":
        factors = TensorMapSpec("b", 0, (k, n, experts), (pitch, size), (_wide(b.dtype), s.block_n, 1), b.dtype)
    else:
        factors = TensorMapSpec("b", 0, (n, k, experts), (pitch, size), (_wide(b.dtype), s.block_k, 1), b.dtype)
    return (rows, rows, rows, factors, rows)


def _block_maps(spec: Spec, s: Schedule, plan: Plan, n: int, k: int) -> tuple[TensorMapSpec, ...]:
    """Blocks of A of even and odd calls, panels of B of even and odd calls, and the product; where panels arrive in slots,
    these and the own blocks."""
    cols, goal, item = plan.goal.mesh[1], plan.goal, spec.inputs[0].itemsize
    panel, m = k // cols, goal.row_bytes // item
    sizes = (panel * m * item, panel * n * item)

    def places(buffer: str, own: str, size: int) -> list[tuple[str, int, int]]:
        """(buffer, version, panels)."""
        held = plan.buffer(buffer)
        if held.versions > 1:
            return [(buffer, version, cols) for version in (0, 1)]
        return [(name, 0, plan.buffer(name).size // size) for name in (buffer, own)]

    a = [TensorMapSpec(buffer, version, (panel, m, panels), (panel * item, m * panel * item), (64, s.block_m, 1),
                       spec.inputs[0].dtype) for buffer, version, panels in places("gather", "a", sizes[0])]
    b = [TensorMapSpec(buffer, version, (n, panel, panels), (n * item, panel * n * item), (64, s.block_k, 1),
                       spec.inputs[1].dtype) for buffer, version, panels in places("column", "b", sizes[1])]
    return (*a, *b, _out_map(spec, s, plan, n) or a[0])
