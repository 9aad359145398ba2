"""The shipped recipes: every workload derives to the operation it states, and the model tables are whole."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

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
from tilescale.spec.operation import OPERATIONS
from tilescale.spec.tensor import Tensor
from tilescale.spec.topology import Topology
from tilescale.spec.views import parse_view
from tilescale.tuner.recipe import read

RECIPES = Path(__file__).parents[2] / "recipes"
FILES = sorted(RECIPES.glob("*/*.toml"))
WORKLOADS = [path for path in FILES if path.parent.name not in ("models", "epilogues")]
MODELS = [path for path in FILES if path.parent.name == "models" and path.stem != "m_buckets"]


def tensor(table: dict[str, Any]) -> Tensor:
    return Tensor(tuple(table["shape"]), table["dtype"], parse_view(table["view"]), table.get("order", "row"))


def routed(workload: dict[str, Any], topology: Topology) -> Spec:
    experts, top_k, routing = workload["experts"], workload["top_k"], workload.get("routing", "uniform")
    if "tokens" in workload:
        return moe_dispatch(tensor(workload["tokens"]), experts, top_k, topology, routing=routing)
    out = tensor(workload["combined"])
    rows = Tensor((topology.world * out.sizes[0] * top_k, out.sizes[1]), out.dtype, out.view)
    return moe_combine(rows, out.sizes[0], experts, top_k, topology, routing=routing)


def declared(workload: dict[str, Any], topology: Topology) -> Spec:
    if "experts" in workload:
        return routed(workload, topology)
    if "combined" in workload:
        out, weights, top_k = tensor(workload["combined"]), tensor(workload["weights"]), workload["top_k"]
        rows = Tensor((topology.world * out.sizes[0] * top_k, weights.sizes[1]), weights.dtype, out.view)
        return moe_gemm_combine(rows, weights, out.sizes[0], top_k, topology, partial_dtype=workload.get("partial_dtype"),
                                out_dtype=out.dtype, scales=workload.get("scales"))
    if "weights" in workload:
        return moe_dispatch_gemm(tensor(workload["tokens"]), tensor(workload["weights"]), workload["top_k"], topology,
                                 routing=workload.get("routing", "uniform"), then=workload.get("then", ()),
                                 scales=workload.get("scales"))
    if "k" in workload:
        return shift(tensor(workload["x"]), workload["k"], topology)
    if "x" in workload:
        return redistribute(tensor(workload["x"]), workload["to"], topology, transpose=workload.get("transpose"),
                            root=workload.get("root"))
    b = workload["b"]
    return matmul(tensor(workload["a"]), [*map(tensor, b)] if isinstance(b, list) else tensor(b), workload["out"], topology,
                  gathered=workload.get("gathered", False), algorithm=workload.get("algorithm"),
                  scales=workload.get("scales"))


def test_recipes_are_there() -> None:
    assert {path.parent.name for path in WORKLOADS} == {operation.name for operation in OPERATIONS if operation.kernels}
    assert len(MODELS) == 7


@pytest.mark.parametrize("path", WORKLOADS, ids=lambda path: path.stem)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_workload_is_the_operation_it_states(path: Path, ranks: int) -> None:
    recipe = tomllib.loads(path.read_text())
    assert recipe["title"]
    assert set(recipe["tune"]) == {"trials", "seconds", "seed"}
    assert recipe["topology"]["kind"] == "scale_model"
    blocks = path.parent.name == "summa"  # on a mesh: 2 x 2, which every algorithm has
    topology = Topology.scale_model(recipe["topology"]["name"], ranks=4 if blocks else ranks)
    specs = [declared(workload, topology) for workload in recipe["workload"]]
    assert [spec.op for spec in specs] == [workload["op"] for workload in recipe["workload"]]
    assert {spec.op for spec in specs} == {path.parent.name}
    assert all(spec.kernels for spec in specs)
    assert len({workload["name"] for workload in recipe["workload"]}) == len(specs)


def test_recipes_of_epilogues_declare_them() -> None:
    recipe = read(RECIPES / "epilogues" / "llama-3-70b.toml")
    assert {spec.then for _, spec in recipe.workloads} == {
        ("swiglu",), ("residual_rmsnorm",), ("add_rmsnorm",), ("accumulate",)}
    assert all(spec.kernels and spec.then for _, spec in recipe.workloads)
    assert recipe.spec("gate_up_4096").output.shape == (4096, 28672)


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_layer_of_a_model_is_the_operation_it_states(path: Path, ranks: int) -> None:
    recipe = tomllib.loads(path.read_text())
    assert recipe["model"] == path.stem
    assert recipe["layer"]
    views = {"ag_gemm": ("FullRow", "FullCol", "FullCol"), "gemm_rs": ("FullCol", "FullRow", "FullRow")}
    views["gemm_ar"] = ("FullCol", "FullRow", "Replicate")
    topology = Topology.named("8xH200-NVSwitch", ranks=ranks)
    for layer in recipe["layer"]:
        assert set(layer) == {"layer", "op", "N", "K"}
        assert layer["op"] in OPERATIONS
        a, b, out = views[layer["op"]]
        spec = matmul(
            Tensor((4096, layer["K"]), "bfloat16", parse_view(a)),
            Tensor((layer["K"], layer["N"]), "bfloat16", parse_view(b), "col"),
            out,
            topology,
        )
        assert spec.op == layer["op"]
        divided = layer["N"] if layer["op"] == "ag_gemm" else layer["K"]
        assert divided % ranks == 0


def test_token_counts_rise() -> None:
    counts = tomllib.loads((RECIPES / "models" / "m_buckets.toml").read_text())["M"]
    assert counts == sorted(set(counts))
    assert counts[0] == 1
    assert counts[-1] == 32768
