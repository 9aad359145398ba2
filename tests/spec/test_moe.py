"""Declarations of dispatch and combine: operands, sizes, what is refused, and what kernels cannot do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support import routed

from tilescale.errors import SpecError
from tilescale.spec.epilogues.swiglu import interleaved
from tilescale.spec.op import Spec, moe_combine, moe_dispatch, moe_dispatch_gemm, moe_gemm_combine
from tilescale.spec.ops._experts import sent_scale_bytes
from tilescale.spec.ops._moe import shares_of
from tilescale.spec.result import ACCUMULATION_EPSILON, EPSILON, Deviation
from tilescale.spec.routed import routed_deviation
from tilescale.spec.tensor import Tensor
from tilescale.spec.topology import Topology
from tilescale.spec.views import FullRow, Replicate

E4M3 = "float8_e4m3fn"
T4 = Topology.named("8xH200-NVSwitch", ranks=4)


def test_operands_are_what_callers_pass_and_results_come_last() -> None:
    out, back = routed("dispatch", 4), routed("combine", 4)
    assert [operand.name for operand in out.operands] == ["a", "indices", "counts"]
    assert [operand.name for operand in back.operands] == ["a", "indices", "weights", "counts"]
    assert [operand.name for operand in out.results] == ["counts"]
    assert back.results == ()


def test_experts_multiply_by_a_matrix_each() -> None:
    spec = moe_dispatch_gemm(Tensor((32, 64), "bfloat16", FullRow), Tensor((8, 64, 24), "bfloat16", FullRow), 2, T4)
    assert (spec.op, spec.mnk, spec.attribute("experts")) == ("moe_dispatch_gemm", (32, 24, 64), 8)
    assert [operand.name for operand in spec.operands] == ["a", "b", "indices", "counts"]
    assert spec.operands[1].tensor.local_shape(1, 4) == (2, 64, 24)
    assert (spec.output.local_shape(3, 4), spec.output.dtype) == ((64, 24), "bfloat16")
    assert spec.flops == 2 * 8 * 2 * 64 * 24
    assert spec.link_bytes == moe_dispatch(Tensor((32, 64), "bfloat16", FullRow), 8, 2, T4).link_bytes
    assert spec.label == "moe_dispatch_gemm 32x24x64 bfloat16 w4"


def test_products_are_off_by_no_more_than_a_product_is() -> None:
    spec = routed("dispatch_gemm", 4, out_dtype="float32")
    assert routed_deviation(spec) == Deviation(EPSILON["float32"] / 2, 136 * ACCUMULATION_EPSILON)
    assert routed_deviation(spec, integers=True).magnitude == 0.0
    assert routed_deviation(routed("dispatch", 4)).exact


def test_products_go_back_in_float32_unless_they_may_be_rounded() -> None:
    rows, factors = Tensor((4 * 32 * 2, 64), "bfloat16", FullRow), Tensor((8, 64, 24), "bfloat16", FullRow)
    exact, rounded = (moe_gemm_combine(rows, factors, 32, 2, T4, partial_dtype=dtype) for dtype in (None, "bfloat16"))
    assert (exact.op, exact.mnk, exact.output.sizes) == ("moe_gemm_combine", (256, 24, 64), (32, 24))
    assert [operand.name for operand in exact.operands] == ["a", "b", "indices", "weights", "counts"]
    assert exact.link_bytes == 2 * rounded.link_bytes == 8 * 2 * 24 * 4 * 3 // 4
    assert exact.flops == 2 * 8 * 2 * 64 * 24 + 2 * 8 * 2 * 24
    assert routed_deviation(exact) == Deviation(EPSILON["bfloat16"] / 2, (64 + 4) * ACCUMULATION_EPSILON)
    assert routed_deviation(rounded).spread == routed_deviation(rounded, integers=True).spread == EPSILON["bfloat16"] / 2
    with pytest.raises(SpecError, match="partial_dtype of moe_gemm_combine is bfloat16 or float16"):
        moe_gemm_combine(rows, factors, 32, 2, T4, partial_dtype="float32")
    with pytest.raises(SpecError, match="room for the rows of all tokens"):
        moe_gemm_combine(rows, factors, 16, 2, T4)


ROWS, FACTORS = Tensor((32, 64), "bfloat16", FullRow), Tensor((8, 64, 24), "bfloat16", FullRow)


@pytest.mark.parametrize(("tokens", "weights", "says"), [
    (ROWS, Tensor((64, 24), "bfloat16", FullRow), "weights are a matrix an expert, (experts, K, N)"),
    (ROWS, replace(FACTORS, shape=(8, 32, 24)), "the contraction sizes match"),
    (ROWS, replace(FACTORS, dtype="float16"), "rows and weights have one dtype; got: bfloat16 and float16"),
    (ROWS, replace(FACTORS, shape=(6, 64, 24)), "experts lie evenly on the ranks"),
    (ROWS, replace(FACTORS, view=Replicate), "the views of a moe_dispatch_gemm"),
    (Tensor((64,), "bfloat16", FullRow), FACTORS, "tokens is a matrix"),
])
def test_products_of_what_does_not_fit_are_refused(tokens: Tensor, weights: Tensor, says: str) -> None:
    with pytest.raises(SpecError) as refused:
        moe_dispatch_gemm(tokens, weights, 2, T4)
    assert says in str(refused.value)


def test_epilogues_follow_products_of_experts() -> None:
    spec = routed("dispatch_gemm", 4, columns=160, then=("bias", "swiglu"), out_dtype="float32")
    assert spec.kernels
    assert spec.output.sizes == (4 * 32 * 2, 80)
    assert [operand.name for operand in spec.operands] == ["a", "b", "indices", "bias", "counts"]
    bias = spec.operands[3].tensor
    assert (bias.sizes, bias.dtype, bias.local_shape(3, 4)) == ((8, 160), "float32", (2, 160))  # a row an expert
    assert routed("dispatch_gemm", 4, then=["gelu"]).label == "moe_dispatch_gemm+gelu 32x152x136 bfloat16 w4"
    assert routed("dispatch_gemm", 4).digest == routed("dispatch_gemm", 4, then=()).digest


@pytest.mark.parametrize(("op", "then", "columns", "says"), [
    ("dispatch_gemm", ("accumulate",), 152, "reads no tensor of the shape of the output"),
    ("dispatch_gemm", ("residual_rmsnorm",), 152, "reads no tensor of the shape of the output"),
    ("dispatch_gemm", ("swiglu", "bias"), 160, "swiglu is the last epilogue"),
    ("dispatch_gemm", ("swiglu",), 152, "whole blocks of 8 columns of gate and of up; got: 152 columns of B"),
    ("dispatch_gemm", ("silu", "silu"), 152, "an epilogue is named once"),
    ("dispatch_gemm", ("relu",), 152, "an epilogue is known; got: 'relu'"),
    ("dispatch_gemm", "silu", 152, "then is a sequence of epilogue names; got: 'silu'"),
    ("gemm_combine", ("silu",), 152, "not those that a combine weighs and sums; got: silu after moe_gemm_combine"),
    ("dispatch", ("silu",), 152, "an epilogue follows a product or a sum over ranks"),
])
def test_epilogues_that_no_product_of_experts_has_are_refused(op: str, then: str | tuple[str, ...], columns: int, says: str
                                                              ) -> None:
    def declare() -> Spec:
        if op == "dispatch_gemm":
            return routed(op, 4, columns=columns, then=then)
        return replace(routed(op, 4), then=tuple(then))

    with pytest.raises(SpecError) as refused:
        declare()
    assert says in str(refused.value)


SHAPES = {  # of scale_a of a rank: of tokens, of rows; of scale_b of a rank, for two experts
    "tensor": ((1,), (1,), (2,)), "rowcol": ((8, 1), (64, 1), (2, 152)), "block": ((8, 3), (64, 3), (2, 3, 2))}


@pytest.mark.parametrize("kind", SHAPES)
def test_scales_lie_where_rows_and_matrices_do(kind: str) -> None:
    for op, of_a in (("dispatch_gemm", SHAPES[kind][0]), ("gemm_combine", SHAPES[kind][1])):
        spec = routed(op, 4, hidden=272, dtype=E4M3, order="col", scales=kind)
        assert spec.kernels
        assert spec.output.dtype == "bfloat16"
        names = [operand.name for operand in spec.operands]
        assert names[:5] == ["a", "b", "scale_a", "scale_b", "indices"]
        shapes = [operand.tensor.local_shape(3, 4) for operand in spec.operands[2:4]]
        assert shapes == [of_a, SHAPES[kind][2]]
        given = [operand.tensor.shape for operand in spec.operands[2:4]]
        declare, rows = (moe_dispatch_gemm, ()) if op == "dispatch_gemm" else (moe_gemm_combine, (32,))
        assert declare(*spec.inputs, *rows, 2, T4, scales=given).attribute("scales") == kind  # type: ignore[operator]
        off = routed_deviation(spec)
        assert off.magnitude > routed_deviation(routed(op, 4, hidden=272)).magnitude + 0.01
        assert routed_deviation(spec, integers=True).magnitude == 0.0


def test_scales_of_tokens_travel_with_them() -> None:
    sent = {kind: sent_scale_bytes(routed("dispatch_gemm", 4, hidden=272, dtype=E4M3, order="col", scales=kind))
            for kind in SHAPES}
    assert sent == {"tensor": 0, "rowcol": 4, "block": 12}
    assert sent_scale_bytes(routed("gemm_combine", 4, hidden=272, dtype=E4M3, order="col", scales="block")) == 0
    assert sent_scale_bytes(routed("dispatch_gemm", 4)) == 0


@pytest.mark.parametrize(("op", "other", "says"), [
    ("dispatch_gemm", {"scales": "rowcol"}, "scales go with float8_e4m3fn and float8_e5m2"),
    ("gemm_combine", {"scales": "tensor"}, "scales go with float8_e4m3fn and float8_e5m2"),
    ("dispatch_gemm", {"dtype": E4M3, "order": "col", "scales": "rows"}, "scales are one of tensor, rowcol, block"),
    ("dispatch_gemm", {"dtype": E4M3, "order": "col", "scales": ((1,), (1,))},
     "the shapes of scale_a and scale_b are, by kind, tensor: (1) and (8)"),
])
def test_scales_that_experts_have_not_are_refused(op: str, other: dict[str, object], says: str) -> None:
    with pytest.raises(SpecError) as refused:
        routed(op, 4, **other)  # type: ignore[arg-type]
    assert says in str(refused.value)


def test_gate_and_up_of_all_experts_are_joined() -> None:
    gate, up = np.arange(96.0).reshape(2, 3, 16), -np.arange(96.0).reshape(2, 3, 16)
    joined = interleaved(gate, up)
    assert joined.shape == (2, 3, 32)
    for expert in range(2):
        assert np.array_equal(joined[expert], interleaved(gate[expert], up[expert]))


def test_every_rank_has_room_for_the_rows_of_all_tokens() -> None:
    spec = moe_dispatch(Tensor((32, 64), "bfloat16", FullRow), 8, 2, T4)
    assert spec.output.local_shape(3, 4) == (64, 64)
    shapes = {operand.name: operand.tensor.local_shape(1, 4) for operand in spec.operands}
    assert shapes == {"a": (8, 64), "indices": (8, 2), "counts": (4, 2)}
    assert {operand.tensor.dtype for operand in spec.operands[1:]} == {"int32"}
    assert routed("combine", 4).operands[2].tensor.dtype == "float32"


def test_a_token_crosses_a_link_once_a_rank_and_a_row_once_an_expert() -> None:
    out, back = (routed(op, 2, tokens=16, hidden=8, experts=8, top_k=4) for op in ("dispatch", "combine"))
    assert out.link_bytes == 8 * 2 * 8 * 2 // 2
    assert back.link_bytes == 8 * 4 * 8 * 2 // 2
    assert back.flops == 2 * 8 * 4 * 8


def test_shares_follow_a_histogram() -> None:
    assert shares_of(routed("dispatch", 2, experts=4, routing="histogram:3,2,1,2")) == (0.625, 0.375)
    assert shares_of(routed("dispatch", 4)) == (0.25,) * 4


@pytest.mark.parametrize(("spec", "says"), [
    (replace(routed("dispatch", 4), inputs=(Tensor((32, 136), "bfloat16", FullRow, order="col"),)), "row-major"),
    (routed("dispatch", 2, experts=64, top_k=33), "at most 32 experts"),
    (routed("combine", 2, dtype="float64"), "kernels add rows of"),
    (routed("dispatch_gemm", 2, dtype="float32"), "experts multiply bfloat16, float16, float8_e4m3fn, float8_e5m2"),
    (routed("dispatch_gemm", 2, dtype="float8_e4m3fn"), 'declare weights of float8 with order="col"'),
    (routed("gemm_combine", 2, dtype="float8_e5m2"), 'declare weights of float8 with order="col"'),
    (routed("dispatch_gemm", 2, out_dtype="float8_e4m3fn"), "rounded to bfloat16, float16, float32"),
    (routed("dispatch", 2, tokens=1 << 24, experts=256, top_k=8, hidden=1), "32 bits"),
], ids=["order", "top_k", "dtype", "factors", "bytes", "other bytes", "products", "places"])
def test_what_kernels_cannot_route_says_so(spec: object, says: str) -> None:
    assert says in spec.without_kernels  # type: ignore[attr-defined]


@pytest.mark.parametrize(("routing", "says"), [
    ("histogram:1,2,-1,1,1,1,1,1", "not negative, and one is above 0; got: -1"),
    ("histogram:0,0,0,0,0,0,0,0", "got: no weight above 0"),
    ("histogram:1,2", "got: 2 weights, 8 experts; give 8 weights"),
    ("trace:/none", "trace:FILE#DIGEST; got: 'trace:/none'"),
    ("skewed", "got: 'skewed'"),
])
def test_a_routing_that_is_none_is_refused_with_its_value(routing: str, says: str) -> None:
    with pytest.raises(SpecError) as refused:
        moe_dispatch(Tensor((32, 64), "bfloat16", FullRow), 8, 2, T4, routing=routing)
    assert says in str(refused.value)


@pytest.mark.parametrize("top_k", ["2", 2.0, True])
def test_top_k_is_an_integer(top_k: object) -> None:
    with pytest.raises(SpecError, match="top_k is a positive integer"):
        moe_dispatch(Tensor((32, 64), "bfloat16", FullRow), 8, top_k, T4)  # type: ignore[arg-type]


def test_ranks_may_be_an_axis_of_a_mesh() -> None:
    mesh = Topology.named("8xH200-NVSwitch").with_mesh({"dp": 2, "ep": 4})
    spec = moe_dispatch(Tensor((32, 64), "bfloat16", FullRow.on("ep")), 8, 2, mesh)
    assert (spec.world, spec.output.sizes[0]) == (4, 4 * 32 * 2)
    rows = Tensor((4 * 32 * 2, 64), "bfloat16", FullRow.on("ep"))
    assert moe_combine(rows, 32, 8, 2, mesh).world == 4


def test_trace_and_uniform_are_taken_as_they_are() -> None:
    assert routed("dispatch", 2, routing="trace:a.json#0123").attribute("routing") == "trace:a.json#0123"
    assert routed("dispatch", 2).attribute("routing") == "uniform"
