"""tensor: checks, canonical views, and shards as torch cuts them."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilescale import canon
from tilescale.errors import SpecError
from tilescale.spec.tensor import ITEMSIZE, Dim, Tensor, as_dtype, shard_offset, shard_sizes, square_mesh
from tilescale.spec.views import Block, FullCol, FullRow, Partial, Replicate, Shard

sizes = st.integers(1, 40)
dims = st.builds(lambda low, more: Dim("M", low, low + more), sizes, st.integers(0, 40))


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    shape = draw(st.lists(sizes | dims, min_size=1, max_size=4))
    views = [Replicate, Partial, *map(Shard, range(-len(shape), len(shape)))] + ([Block] if len(shape) == 2 else [])
    order = draw(st.sampled_from(["row", "col"])) if len(shape) == 2 else "row"
    return Tensor(tuple(shape), draw(st.sampled_from(sorted(ITEMSIZE))), draw(st.sampled_from(views)), order)


@given(tensors())
def test_a_tensor_survives_canonical_json(tensor: Tensor) -> None:
    again = canon.loads(Tensor, canon.dumps(tensor))
    assert again == tensor
    assert hash(again) == hash(tensor)
    assert canon.digest(again) == canon.digest(tensor)


@given(st.integers(1, 300), st.integers(1, 16))
@settings(max_examples=200)
def test_shards_are_those_of_dtensor(size: int, world: int) -> None:
    torch = pytest.importorskip("torch")
    placements = pytest.importorskip("torch.distributed.tensor")
    split = placements.Shard(0)._split_tensor(torch.arange(size), world, with_padding=False)[0]
    assert shard_sizes(size, world) == tuple(len(shard) for shard in split)
    for rank, shard in enumerate(split):
        assert shard_offset(size, rank, world) == (int(shard[0]) if len(shard) else size)


@given(tensors(), st.integers(1, 9))
def test_local_parts_cover_the_tensor_once(tensor: Tensor, world: int) -> None:
    if tensor.view in (Replicate, Partial):
        assert {tensor.local_shape(rank, world) for rank in range(world)} == {tensor.sizes}
        return
    cells: list[tuple[int, ...]] = []
    matrix = Tensor(tensor.sizes[:2], tensor.dtype, tensor.view) if tensor.ndim == 2 else tensor
    for rank in range(world):
        spans = zip(matrix.local_offset(rank, world), matrix.local_shape(rank, world), strict=True)
        ranges = [range(offset, offset + size) for offset, size in spans]
        cut = [i for i in range(matrix.ndim) if matrix.view == Block or i == matrix.shard_dim]
        cells += [(i, j) for i in ranges[cut[0]] for j in (ranges[cut[1]] if len(cut) == 2 else [0])]
    total = matrix.sizes[0] * matrix.sizes[1] if matrix.view == Block else matrix.sizes[matrix.shard_dim or 0]
    assert len(cells) == len(set(cells)) == total


def test_equal_layouts_are_equal_tensors() -> None:
    assert Tensor((4, 8), "bfloat16", Shard(1)) == Tensor((4, 8), "bfloat16", FullCol)
    assert Tensor((4, 8), "bfloat16", Shard(-2)) == Tensor((4, 8), "bfloat16", FullRow)
    assert Tensor((8,), "bfloat16", FullCol) == Tensor((8,), "bfloat16", FullRow)
    assert Tensor((4, 8, 2), "bfloat16", Shard(-2)).view == Shard(1)
    assert Tensor((4, 8), "bfloat16", Shard(1).on("tp")).view == FullCol.on("tp")
    assert Tensor((4, 8), "bfloat16", FullCol).shard_dim == 1


def test_torch_values_are_accepted() -> None:
    torch = pytest.importorskip("torch")
    placements = pytest.importorskip("torch.distributed.tensor")
    held = torch.empty(4, 8, dtype=torch.bfloat16)
    tensor = Tensor(held.shape, held.dtype, [placements.Shard(0)])  # type: ignore[arg-type]
    assert tensor == Tensor((4, 8), "bfloat16", FullRow)
    assert {as_dtype(getattr(torch, name)) for name in ITEMSIZE} == set(ITEMSIZE)
    for name, size in ITEMSIZE.items():
        assert getattr(torch, name).itemsize == size


def test_counts() -> None:
    tensor = Tensor((10, 6), "float32", FullRow)
    assert (tensor.numel, tensor.nbytes, tensor.itemsize, tensor.ndim) == (60, 240, 4, 2)
    assert [tensor.local_shape(rank, 4) for rank in range(4)] == [(3, 6), (3, 6), (3, 6), (1, 6)]
    assert Tensor((10, 6), "float32", Block).local_shape(3, 4) == (5, 3)
    assert Tensor((10, 6), "float32", Block).local_shape(5, 8, mesh=(4, 2)) == (3, 3)
    assert [square_mesh(world) for world in (1, 4, 6, 7, 8)] == [(1, 1), (2, 2), (2, 3), (1, 7), (2, 4)]
    assert Tensor((Dim("M", 1, 16), 6), "int8").sizes == (16, 6)


def test_a_dim_is_bound_within_its_range() -> None:
    tensor = Tensor((Dim("M", 2, 16), 6), "bfloat16", FullRow)
    assert tensor.bind(M=4) == Tensor((4, 6), "bfloat16", FullRow)
    assert tensor.bind(K=4) == tensor
    with pytest.raises(SpecError, match=r"M is in \[2, 16\]; got: 17"):
        tensor.bind(M=17)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((4, 8), "bf16"), "a dtype is known; got: 'bf16'"),
        (((4, 8), "bfloat61"), "did you mean 'bfloat16'"),
        (((4, -1), "bfloat16"), "a size is an integer from 0 up or a Dim; got: -1"),
        (((4, 2.0), "bfloat16"), "a size is an integer from 0 up or a Dim; got: 2.0"),
        (((4, True), "bfloat16"), "a size is an integer from 0 up or a Dim; got: True"),
        ((8, "bfloat16"), "a shape is a sequence"),
        (("48", "bfloat16"), "a shape is a sequence"),
        (((), "bfloat16"), "at least one dimension"),
        (((4, 8), "bfloat16", Shard(2)), "has -2 <= dim < 2; got: Shard(2)"),
        (((4, 8), "bfloat16", "FulRow"), "did you mean 'FullRow'"),
        (((4, 8, 2), "bfloat16", Block), "a Block view is for matrices"),
        (((4, 8), "bfloat16", FullRow, "column"), 'is "row" or "col"'),
        (((4, 8, 2, 2), "bfloat16", FullRow, "col"), 'order "col" is for matrices and stacks of them'),
    ],
)
def test_a_wrong_tensor_is_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        Tensor(*arguments)  # type: ignore[arg-type]
    assert message in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize("arguments", [("M", 0, 4), ("M", 5, 4), ("M N", 1, 2), ("M", 1, 2.0), ("M", True, 2)])
def test_a_wrong_dim_is_refused(arguments: tuple[object, ...]) -> None:
    with pytest.raises(SpecError):
        Dim(*arguments)  # type: ignore[arg-type]


def test_ranks_outside_the_world_are_refused() -> None:
    tensor = Tensor((4, 8), "bfloat16", FullRow)
    with pytest.raises(SpecError, match=r"a rank is in \[0, world\); got: rank 4, world 4"):
        tensor.local_shape(4, 4)
    with pytest.raises(SpecError, match=r"at least one rank"):
        tensor.shard_sizes(4, 0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        tensor.dtype = "int8"  # type: ignore[misc]
