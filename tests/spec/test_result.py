"""result: what operations compute, in words, and what may differ."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from support import ag_gemm, all_gather, gemm_rs, reduction

from tilescale.errors import SpecError
from tilescale.spec.op import linear, matmul, moe_dispatch, redistribute, shift
from tilescale.spec.result import (
    ACCUMULATION_EPSILON,
    EPSILON,
    RESULTS,
    TENSOR_CORE_DEVIATION,
    Deviation,
    Factor,
    Result,
    additions,
    deviation,
    kind_of,
    peers_deviation,
    result_of,
)
from tilescale.spec.tensor import Tensor
from tilescale.spec.topology import Topology
from tilescale.spec.views import FullCol, FullRow, Replicate, Shard

T4 = Topology.scale_model("8xH200-NVSwitch", ranks=4)


def test_a_kind_of_move_lives_in_the_file_of_its_name() -> None:
    assert RESULTS.names() == ("all_reduce", "exchange", "gather", "none", "reduce_scatter")
    for kind in RESULTS:
        assert kind.result.__module__ == f"tilescale.spec.results.{kind.name}"


def test_gathers_join_one_operand_and_sums_have_a_term_a_rank() -> None:
    assert result_of(ag_gemm(), 2) == Result(((Factor(0, (0, 1, 2, 3)), Factor(1, (2,))),))
    assert result_of(all_gather(), 2).only_moves
    spec = gemm_rs((64, 32, 128), ranks=2)
    assert result_of(spec, 1) == Result(
        ((Factor(0, (0,)), Factor(1, (0,))), (Factor(0, (1,)), Factor(1, (1,)))), 0, 32, 32)
    assert result_of(gemm_rs((64, 32, 128), ranks=2, out="Partial"), 1) == Result(((Factor(0, (1,)), Factor(1, (1,))),))
    assert result_of(reduction((6, 8), ranks=2), 0) == Result(((Factor(0, (0,)),), (Factor(0, (1,)),)))
    assert result_of(reduction((6, 8), ranks=2, to=Shard(1)), 1) == Result(
        ((Factor(0, (0,)),), (Factor(0, (1,)),)), 1, 4, 4)


@pytest.mark.parametrize("rows", [1, 5, 8, 9, 17])
def test_shards_of_a_sum_are_dtensors_and_may_be_empty(rows: int) -> None:
    for spec in (gemm_rs((rows, 32, 64), ranks=8), reduction((rows, 32), ranks=8, to=FullRow)):
        parts = [result_of(spec, rank) for rank in range(8)]
        assert [part.size for part in parts] == list(Tensor.shard_sizes(rows, 8))
        covered = [i for part in parts for i in range(part.start, part.start + (part.size or 0))]
        assert covered == list(range(rows))


def test_additions_are_those_of_the_whole_contraction_and_of_the_ranks() -> None:
    assert additions(gemm_rs((8, 8, 136), ranks=4), result_of(gemm_rs((8, 8, 136), ranks=4), 3)) == 136
    assert additions(ag_gemm((8, 8, 64)), result_of(ag_gemm((8, 8, 64)), 0)) == 64
    local = gemm_rs((8, 8, 136), ranks=4, out="Partial")
    assert additions(local, result_of(local, 0)) == 34
    weights = matmul(Tensor((8, 64), "bfloat16", FullRow), Tensor((64, 8), "bfloat16", FullRow), FullRow, T4)
    assert additions(weights, result_of(weights, 0)) == 64
    assert additions(reduction(ranks=8), result_of(reduction(ranks=8), 0)) == 8


def test_integers_and_moves_are_exact_and_the_rest_is_rounded_once() -> None:
    for spec in (gemm_rs(), gemm_rs(out="Replicate"), reduction(), reduction(to=FullRow), ag_gemm()):
        result = result_of(spec, 0)
        assert deviation(spec, result, integers=True).exact
        found = deviation(spec, result)
        assert found == Deviation(2.0**-8, additions(spec, result) * ACCUMULATION_EPSILON)
    assert deviation(all_gather(), result_of(all_gather(), 0)).exact


@pytest.mark.parametrize("partial", ["bfloat16", "float16"])
def test_rounded_partials_are_allowed_by_an_attribute_alone(partial: str) -> None:
    spec = gemm_rs((64, 64, 128), partial_dtype=partial)
    for integers in (False, True):
        found = deviation(spec, result_of(spec, 0), integers)
        assert found.spread == EPSILON[partial] / 2
        assert found.result == EPSILON["bfloat16"] / 2
        assert (found.magnitude == 0) == integers
    assert spec.attribute("partial_dtype") == partial
    plain = gemm_rs((64, 64, 128))
    assert plain.attributes == ()
    assert plain.digest != spec.digest


def test_peers_may_round_every_addend_and_every_running_sum_but_not_what_only_moves() -> None:
    spec = reduction(ranks=8)
    found = peers_deviation(spec, result_of(spec, 0), integers=True)
    assert found == Deviation(2.0**-8, 0.0, 9 * 2.0**-8)
    assert peers_deviation(all_gather(), result_of(all_gather(), 0)).exact
    assert peers_deviation(ag_gemm(), result_of(ag_gemm(), 0)) == deviation(ag_gemm(), result_of(ag_gemm(), 0))


def test_partial_dtype_goes_with_sums_of_products() -> None:
    w = Tensor((64, 128), "bfloat16", Shard(1))
    spec = linear(Tensor((16, 128), "bfloat16", FullCol), w, Replicate, T4, partial_dtype="bfloat16")
    assert (spec.op, spec.attributes) == ("gemm_ar", (("partial_dtype", "bfloat16"),))
    with pytest.raises(SpecError, match=r"gemm_rs and gemm_ar.*got: ag_gemm, partial_dtype=bfloat16; leave it out"):
        matmul(Tensor((16, 128), "bfloat16", FullRow), Tensor((128, 16), "bfloat16", FullCol), FullCol, T4,
               partial_dtype="bfloat16")
    for wrong in ("float32", "int8"):
        with pytest.raises(SpecError, match=rf"partial_dtype of gemm_rs is bfloat16 or float16, or None.*'{wrong}'"):
            gemm_rs(partial_dtype=wrong)
    with pytest.raises(SpecError, match="a dtype is known"):
        gemm_rs(partial_dtype="bf16")


def test_what_nobody_described_is_refused() -> None:
    with pytest.raises(SpecError, match=r"described for all_reduce, exchange, gather, none, reduce_scatter; got: moe_disp"):
        kind_of(moe_dispatch(Tensor((16, 16), "bfloat16", FullRow), 8, 2, T4))


def test_an_exchange_says_what_a_rank_receives_in_its_own_file() -> None:
    x = Tensor((16, 8, 32), "bfloat16", FullRow)
    assert result_of(shift(x, 3, T4), 1) == Result(((Factor(0, (2,)),),))
    assert result_of(redistribute(Tensor((16, 8), "bfloat16", Replicate), Replicate, T4, root=2), 1) == Result(
        ((Factor(0, (2,)),),))
    turned = redistribute(x, Shard(1), T4, transpose=(1, 2, 0))
    assert result_of(turned, 3) == Result(((Factor(0, (0, 1, 2, 3), 0),),), 2, 24, 8, (1, 2, 0))
    assert deviation(turned, result_of(turned, 3)).exact
    nobody = replace(turned.operation, name="nobody", holds=None)
    with pytest.raises(SpecError, match="give its Operation a function `holds`"):
        RESULTS["exchange"].result(SimpleNamespace(operation=nobody, op="nobody"), 0)  # type: ignore[arg-type]


def test_products_of_bytes_allow_what_the_tensor_core_loses_whatever_the_contraction() -> None:
    def allowed(dtype: str, k: int, integers: bool = False) -> float:
        spec = gemm_rs((64, 64, k), 4, order="col", dtype=dtype)
        return deviation(spec, result_of(spec, 0), integers).magnitude

    assert allowed("float8_e4m3fn", 512, integers=True) == 0
    assert allowed("float8_e4m3fn", 512) - allowed("bfloat16", 512) == TENSOR_CORE_DEVIATION
    assert allowed("float8_e5m2", 8192) - allowed("bfloat16", 8192) == TENSOR_CORE_DEVIATION
    assert TENSOR_CORE_DEVIATION < 0.02
