"""scales: kinds by name and by shape, what ranks hold of them, and declarations that are refused. A7 at full size."""

from __future__ import annotations

import pytest
from support import ag_gemm, gemm_rs, local_gemm, scaled

from tilescale.errors import SpecError
from tilescale.spec.op import Spec, linear, matmul
from tilescale.spec.operand import SCALES
from tilescale.spec.tensor import Tensor
from tilescale.spec.topology import Topology
from tilescale.spec.views import FullCol, FullRow, Partial, Replicate

FP8 = "float8_e4m3fn"
T8 = Topology.scale_model("8xH200-NVSwitch", ranks=8)


def a7(**keywords: object) -> Spec:
    """gemm_rs in fp8, M = N = 8192, 1024 of K a rank, on 8 ranks."""
    return matmul(Tensor((8192, 8192), FP8, FullCol), Tensor((8192, 8192), FP8, FullRow, "col"), out=FullRow, topology=T8,
                  **keywords)


def local_shapes(spec: Spec, rank: int = 1) -> list[tuple[int, ...]]:
    return [operand.tensor.local_shape(rank, spec.world) for operand in spec.operands[2:]]


def test_a7_scales_are_checked_when_the_spec_is_made() -> None:
    spec = a7(scales=((8192, 1), (1, 8192)))
    assert spec == a7(scales="rowcol")
    assert spec.kernels
    assert spec.output.dtype == "bfloat16"
    assert [(o.name, o.tensor.dtype, o.values) for o in spec.extras] == [
        ("scale_a", "float32", SCALES), ("scale_b", "float32", SCALES)]
    assert local_shapes(spec) == [(8192, 1), (1, 8192)]  # every rank scales its part of the contraction by all of them
    for wrong in (((8192,), (8192,)), ((1, 8192), (8192, 1)), ((1024, 1), (1, 8192)), ((8192, 1), (1, 8191))):
        with pytest.raises(SpecError, match=(
                r"by kind, tensor: \(1\) and \(1\); rowcol: \(8192, 1\) and \(1, 8192\); "
                r"block: \(8192, 64\) and \(64, 64\); got: .*give scales these shapes")):
            a7(scales=wrong)


def test_kinds_are_named_or_follow_from_shapes_and_change_the_digest() -> None:
    kinds = {"tensor": ((1,), (1,)), "rowcol": ((8192, 1), (1, 8192)), "block": ((8192, 64), (64, 64))}
    for kind, shapes in kinds.items():
        assert a7(scales=shapes).attribute("scales") == kind
        assert a7(scales=tuple(Tensor(shape, "float32") for shape in shapes)) == a7(scales=kind)
    assert len({a7().digest, *(a7(scales=kind).digest for kind in kinds)}) == 4
    assert a7().extras == ()


def test_ranks_hold_the_scales_of_what_they_multiply() -> None:
    assert local_shapes(a7(scales="tensor")) == [(1,), (1,)]
    assert local_shapes(a7(scales="block")) == [(8192, 8), (8, 64)]
    gathered = ag_gemm((1024, 2048, 300), 4, dtype=FP8)
    assert local_shapes(scaled(gathered, "rowcol")) == [(1024, 1), (1, 512)]  # of rows of A that are gathered, too
    assert local_shapes(scaled(gathered, "block")) == [(1024, 3), (3, 4)]
    by_rows = matmul(Tensor((1024, 256), FP8, FullRow), Tensor((256, 384), FP8, Replicate, "col"), out=FullRow, topology=T8,
                     scales="block")
    assert local_shapes(by_rows) == [(128, 2), (2, 3)]
    parts = matmul(Tensor((64, 2048), FP8, FullCol), Tensor((2048, 200), FP8, FullRow, "col"), out=Partial, topology=T8,
                   scales="block")
    assert local_shapes(parts) == [(64, 2), (2, 2)]
    assert local_shapes(scaled(local_gemm((40, 300, 200), dtype=FP8), "block"), 0) == [(40, 2), (2, 3)]


def test_a_linear_takes_scales() -> None:
    x, w = Tensor((64, 1024), FP8, FullCol), Tensor((256, 1024), FP8, FullCol)
    spec = linear(x, w, out=FullRow, topology=T8, scales="block")
    assert spec.op == "gemm_rs"
    assert spec.inputs[1].order == "col"
    assert local_shapes(spec) == [(64, 1), (1, 2)]


@pytest.mark.parametrize("spec", [lambda: a7(scales="rows"), lambda: scaled(a7(), "rows")], ids=["declared", "attribute"])
def test_an_unknown_kind_is_refused(spec: object) -> None:
    with pytest.raises(SpecError, match="scales are one of tensor, rowcol, block; got: 'rows'"):
        spec()  # type: ignore[operator]


def test_what_is_no_pair_of_shapes_is_refused() -> None:
    for wrong in (3, ((8192, 1),), (1, 2)):
        with pytest.raises(SpecError, match="scales are a kind, or the shapes of scale_a and scale_b"):
            a7(scales=wrong)


def test_scales_go_with_float8_and_with_products_of_this_family() -> None:
    with pytest.raises(SpecError, match="scales go with float8_e4m3fn and float8_e5m2; got: A bfloat16"):
        matmul(Tensor((64, 64), "bfloat16", Replicate), Tensor((64, 64), "bfloat16", Replicate), out=Replicate,
               topology=T8, scales="tensor")
    t4 = Topology.scale_model("8xH200-NVSwitch", ranks=4)
    with pytest.raises(SpecError, match=r"scales go with gemm, ag_gemm, gemm_rs, gemm_ar; got: summa, scales=tensor"):
        matmul(Tensor((256, 256), FP8, "Block"), Tensor((256, 256), FP8, "Block", "col"), out="Block", topology=t4,
               scales="tensor")


@pytest.mark.parametrize(("spec", "says"), [
    (gemm_rs((64, 256, 640), 4, order="col", dtype=FP8), "K=640 over 4 ranks; make K a multiple of 512"),
    (ag_gemm((64, 256, 640), 4, dtype=FP8), "N=256 over 4 ranks; make N a multiple of 512"),
])
def test_blocks_are_not_cut_between_ranks(spec: Spec, says: str) -> None:
    with pytest.raises(SpecError, match=f"whole blocks of 128; got: {says}"):
        scaled(spec, "block")
    assert scaled(spec, "rowcol").kernels


def test_views_that_are_whole_need_no_whole_blocks() -> None:
    spec = matmul(Tensor((64, 200), FP8, FullRow), Tensor((200, 72), FP8, Replicate, "col"), out=FullRow,
                  topology=Topology.scale_model("8xH200-NVSwitch", ranks=2), scales="block")
    assert local_shapes(spec) == [(32, 2), (2, 1)]


def test_several_matrices_are_declared_apart() -> None:
    b = [Tensor((256, 1024), FP8, FullCol, "col")] * 2
    with pytest.raises(SpecError, match="scales go with one B; got: 2 matrices, scales=rowcol; declare a product for each"):
        matmul(Tensor((1024, 256), FP8, FullRow), b, out=FullCol, topology=T8, scales="rowcol")
