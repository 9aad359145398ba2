"""What is checked and tuned on several GPUs: every operation that has kernels, at small shapes and at those of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import tilescale as ts
from tilescale.errors import TilescaleError
from tilescale.spec.op import Spec
from tilescale.spec.operation import OPERATIONS
from tilescale.spec.topology import Topology
from tilescale.tuner.models import ALONG, VIEWS

MODEL = "llama-3-70b"
HIDDEN, UP, QKV = 8192, 28672, 10240  # of that model: N of mlp_up and attn_qkv, K of mlp_down
DTYPE = "bfloat16"
MOVES = {
    "all_gather": (ts.FullRow, ts.Replicate),
    "all_reduce": (ts.Partial, ts.Replicate),
    "all_to_all": (ts.FullRow, ts.FullCol),
    "broadcast": (ts.Replicate, ts.Replicate),
    "reduce_scatter": (ts.Partial, ts.FullRow),
}
ROUTED = ("moe_combine", "moe_dispatch", "moe_dispatch_gemm", "moe_gemm_combine")
Make = Callable[[Topology], Spec]


def product(op: str, m: int, n: int, k: int, parts: str | None = None) -> Make:
    """A tensor-parallel product, weights as torch.nn.Linear holds them; `parts`: what products may be rounded to before
    they are summed."""
    if op in (*ALONG, "summa"):
        view, left, right = ALONG.get(op, (ts.Block, "row", "row"))
        return lambda topology: ts.matmul(ts.Tensor((m, k), DTYPE, view, left), ts.Tensor((k, n), DTYPE, view, right), view,
                                          topology)
    a, b, out = VIEWS[op]
    return lambda topology: ts.matmul(ts.Tensor((m, k), DTYPE, a), ts.Tensor((k, n), DTYPE, b, "col"), out, topology,
                                      partial_dtype=parts)


def moved(op: str, rows: int, columns: int) -> Make:
    """A tensor from one view to another."""
    if op == "shift":
        return lambda topology: ts.shift(ts.Tensor((rows, columns), DTYPE, ts.FullRow), 1, topology)
    view, to = MOVES[op]
    root = 0 if op == "broadcast" else None
    return lambda topology: ts.redistribute(ts.Tensor((rows, columns), DTYPE, view), to, topology, root=root)


def routed(op: str, tokens: int, columns: int, experts: int, top_k: int) -> Make:
    """Tokens to their experts, or what these made of them back."""

    def make(topology: Topology) -> Spec:
        if op == "moe_dispatch":
            return ts.moe_dispatch(ts.Tensor((tokens, columns), DTYPE, ts.FullRow), experts, top_k, topology)
        weights = ts.Tensor((experts, columns, columns), DTYPE, ts.FullRow)
        if op == "moe_dispatch_gemm":
            return ts.moe_dispatch_gemm(ts.Tensor((tokens, columns), DTYPE, ts.FullRow), weights, top_k, topology)
        rows = ts.Tensor((topology.world * tokens * top_k, columns), DTYPE, ts.FullRow)
        if op == "moe_gemm_combine":
            return ts.moe_gemm_combine(rows, weights, tokens, top_k, topology)
        return ts.moe_combine(rows, tokens, experts, top_k, topology)

    return make


# By name: the operation is what stands before the first point. The first ones matter most: time may run out. Of those
# that end in "rounded", products are rounded before they are summed, as the peers do; of others, sums are in fp32.
TUNED: Mapping[str, Make] = {
    "ag_gemm.mlp_up_8192": product("ag_gemm", 8192, UP, HIDDEN),
    "gemm_rs.mlp_down_8192_rounded": product("gemm_rs", 8192, HIDDEN, UP, DTYPE),
    "gemm_ar.attn_out_512_rounded": product("gemm_ar", 512, HIDDEN, HIDDEN, DTYPE),
    "gemm_rs.attn_out_4096_rounded": product("gemm_rs", 4096, HIDDEN, HIDDEN, DTYPE),
    "gemm_rs.mlp_down_8192": product("gemm_rs", 8192, HIDDEN, UP),
    "ag_gemm.attn_qkv_4096": product("ag_gemm", 4096, QKV, HIDDEN),
    "gemm_ar.mlp_down_64": product("gemm_ar", 64, HIDDEN, UP),
    "all_reduce.hidden_64": moved("all_reduce", 64, HIDDEN),
    "all_reduce.hidden_4096": moved("all_reduce", 4096, HIDDEN),
    "gemm_rs.attn_out_4096": product("gemm_rs", 4096, HIDDEN, HIDDEN),
    "gemm_ar.attn_out_512": product("gemm_ar", 512, HIDDEN, HIDDEN),
    "all_gather.hidden_4096": moved("all_gather", 4096, HIDDEN),
    "reduce_scatter.hidden_4096": moved("reduce_scatter", 4096, HIDDEN),
}
ROWS, COLUMNS = 128, 2048  # a rank's rows of a small tensor


def checked(topology: Topology) -> tuple[dict[str, Spec], dict[str, str]]:
    """A small spec of every operation that has kernels, and why the others have none."""
    world, found, without = topology.world, dict[str, Spec](), dict[str, str]()
    for operation in OPERATIONS:
        op = operation.name
        if not operation.kernels:
            without[op] = operation.remedy or "no kernels"
        elif op in (*VIEWS, *ALONG, "summa"):
            _add(found, without, op, product(op, ROWS * world, 256 * world, 512 * world), topology)
        elif op in (*MOVES, "shift"):
            _add(found, without, op, moved(op, ROWS * world, COLUMNS), topology)
        elif op in ROUTED:
            _add(found, without, op, routed(op, ROWS * world, COLUMNS, 4 * world, 2), topology)
        else:
            without[op] = "has kernels, but no small shape stands in several/workloads.py"
    return found, without


def tuned(topology: Topology, wanted: str = "", small: bool = False) -> tuple[dict[str, Spec], dict[str, str]]:
    """The specs of TUNED whose names contain `wanted`, and why others are left out. `small`: at a fraction of the size."""
    found, without = dict[str, Spec](), dict[str, str]()
    if small:
        specs, _ = checked(topology)
        return {f"{op}.small": spec for op, spec in specs.items() if wanted in op}, {}
    for name, make in TUNED.items():
        if any(word in name for word in wanted.split(",")):
            _add(found, without, name, make, topology)
    return found, without


def _add(found: dict[str, Spec], without: dict[str, str], name: str, make: Make, topology: Topology) -> None:
    try:
        spec = make(topology)
    except TilescaleError as error:
        without[name] = str(error)
        return
    if spec.without_kernels:
        without[name] = spec.without_kernels
    else:
        found[name] = spec
