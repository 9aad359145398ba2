"""derive: every row of the table is reached by a declaration, and the table and the operations agree."""

from __future__ import annotations

import itertools

import pytest

from tilescale.errors import SpecError
from tilescale.spec.derive import OPERATIONS, TABLE, Rule, derive
from tilescale.spec.op import (
    Spec,
    matmul,
    moe_combine,
    moe_dispatch,
    moe_dispatch_gemm,
    moe_gemm_combine,
    redistribute,
    shift,
)
from tilescale.spec.tensor import Tensor
from tilescale.spec.topology import Topology
from tilescale.spec.views import NAMED, Shard, View

T4 = Topology.named("8xH200-NVSwitch", ranks=4)
WITH_KERNELS = {"ag_gemm", "ag_gemm_k", "all_gather", "all_reduce", "all_to_all", "broadcast", "gemm", "gemm_ar", "gemm_rs",
                "moe_combine", "moe_dispatch", "moe_dispatch_gemm", "moe_gemm_combine", "reduce_scatter", "shift", "summa",
                "weight_gather_gemm"}
WORDS = ("FullRow", "FullCol", "Replicate", "Partial", "Block")


def declare(rule: Rule) -> Spec:
    """The declaration of a row, with small tensors."""

    def tensor(word: str, dim: int = 0) -> Tensor:
        view: View = Shard(dim) if word == "Shard" else NAMED[word]
        return Tensor((16, 16), "bfloat16", view)

    sources = [tensor(word) for word in rule.sources]
    if rule.declaration == "matmul":
        return matmul(sources[0], sources[1], out=rule.target, topology=T4)
    if rule.declaration == "shift":
        return shift(sources[0], 1, T4)
    if rule.declaration == "moe_dispatch":
        return moe_dispatch(sources[0], 8, 2, T4)
    if rule.declaration == "moe_dispatch_gemm":
        return moe_dispatch_gemm(sources[0], Tensor((8, 16, 16), "bfloat16", NAMED["FullRow"]), 2, T4)
    if rule.declaration == "moe_gemm_combine":
        rows = Tensor((4 * 16 * 2, 16), "bfloat16", NAMED["FullRow"])
        return moe_gemm_combine(rows, Tensor((8, 16, 16), "bfloat16", NAMED["FullRow"]), 16, 2, T4)
    if rule.declaration == "moe_combine":
        return moe_combine(Tensor((4 * 16 * 2, 16), "bfloat16", NAMED["FullRow"]), 16, 8, 2, T4)
    root = 0 if rule.declaration.endswith("from one rank") else None
    return redistribute(sources[0], tensor(rule.target, dim=1).view, T4, root=root)


@pytest.mark.parametrize("rule", TABLE, ids=lambda rule: rule.label)
def test_every_row_is_recognised(rule: Rule) -> None:
    spec = declare(rule)
    assert spec.op == rule.op
    assert spec.local == (rule.op == "gemm") == (spec.link_bytes == 0)
    # Sums scatter rows alone; the row of the table has columns.
    assert spec.kernels == (rule.op in WITH_KERNELS and spec.op != "reduce_scatter")


@pytest.mark.parametrize("rule", TABLE, ids=lambda rule: rule.label)
def test_a_row_without_kernels_says_what_to_do_instead(rule: Rule) -> None:
    spec = declare(rule)
    if spec.kernels:
        spec.require_kernels()
        return
    with pytest.raises(SpecError) as caught:
        spec.require_kernels()
    assert "torch" in str(caught.value) or "ag_gemm" in str(caught.value)
    assert spec.label in str(caught.value)


def test_every_operation_is_in_the_table_and_the_reverse() -> None:
    assert {rule.op for rule in TABLE} == set(OPERATIONS.names())
    assert len({(rule.declaration, rule.sources, rule.target) for rule in TABLE}) == len(TABLE)
    assert {operation.name for operation in OPERATIONS if operation.kernels} == WITH_KERNELS


@pytest.mark.parametrize("name", OPERATIONS.names())
def test_an_operation_lives_in_the_file_of_its_name(name: str) -> None:
    operation = OPERATIONS[name]
    assert operation.name == name
    assert operation.summary
    assert operation.flops.__module__ == f"tilescale.spec.ops.{name}" or operation.flops.__name__ == "no_flops"
    assert operation.kernels or operation.remedy
    assert operation.compute in ("gemm", "copy", None)
    assert all(-1 <= move.operand < 2 for move in operation.moves)


def test_what_is_not_in_the_table_is_refused_with_what_is() -> None:
    rows = {(rule.sources, rule.target) for rule in TABLE if rule.declaration == "matmul"}
    for a, b, out in itertools.product(WORDS, repeat=3):
        inputs = [Tensor((16, 16), "bfloat16", NAMED[word]) for word in (a, b)]
        output = Tensor((16, 16), "bfloat16", NAMED[out])
        if ((a, b), out) in rows:
            assert derive("matmul", inputs, output) in OPERATIONS
            continue
        with pytest.raises(SpecError) as caught:
            derive("matmul", inputs, output)
        assert f"got: {a}, {b} -> {out}" in str(caught.value)
        assert "may be" in caught.value.remedy


def test_the_remedy_prefers_outputs_of_the_same_inputs() -> None:
    a = Tensor((16, 16), "bfloat16", NAMED["FullCol"])
    b = Tensor((16, 16), "bfloat16", NAMED["FullRow"])
    with pytest.raises(SpecError, match=r"may be FullRow \(gemm_rs\), Replicate \(gemm_ar\), Partial \(gemm\)"):
        matmul(a, b, out="FullCol", topology=T4)
