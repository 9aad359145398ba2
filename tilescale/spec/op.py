"""Declarations: functions that take tensors and views and return the operation these ask for.

Keyword arguments of all: ``topology`` (a Topology, or a torch DeviceMesh over the GPUs at hand); ``inputs``
("ordinary": staging into peer-visible memory is part of the operation; "symmetric": the caller has done it);
``deterministic`` (the same bits every call); ``then`` (epilogues). All raise SpecError, naming the rule, the values and
the remedy, for a declaration that cannot be met.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tilescale.errors import SpecError
from tilescale.spec.declaration import Attribute, Spec
from tilescale.spec.derive import derive
from tilescale.spec.epilogue import EPILOGUES
from tilescale.spec.ranks import resolve
from tilescale.spec.scales import kind_of_scales
from tilescale.spec.tensor import Dim, Tensor, as_dtype
from tilescale.spec.views import BlockView, PartialView, ReplicateView, Shard, View, as_view

__all__ = ["Spec", "linear", "matmul", "moe_combine", "moe_dispatch", "moe_dispatch_gemm", "moe_gemm_combine",
           "redistribute", "shift"]

FP8 = ("float8_e4m3fn", "float8_e5m2")
# The default output dtype of inputs that are too narrow to hold a product.
WIDE = {"float8_e4m3fn": "bfloat16", "float8_e5m2": "bfloat16", "int8": "int32"}
WITH_PARTIALS = ("gemm_rs", "gemm_ar")
WITH_SCALES = ("gemm", "ag_gemm", "gemm_rs", "gemm_ar")
FACTORS = ("bfloat16", "float16", "float32", *FP8, "int8")


def matmul(
    a: Tensor,
    b: Tensor | Sequence[Tensor],
    out: object,
    topology: object,
    *,
    out_dtype: object = None,
    inputs: str = "ordinary",
    deterministic: bool = False,
    then: Sequence[str] = (),
    algorithm: str | None = None,
    partial_dtype: object = None,
    scales: object = None,
    gathered: bool = False,
) -> Spec:
    """C = A B with A (M, K), B (K, N), and ``out`` the view of C (M, N), which is row-major.

    ``out_dtype``: that of A by default (bfloat16 for fp8, int32 for int8); products accumulate in fp32 (int32).
    ``algorithm``: for Block views "summa" (default) or "cannon" (square mesh). ``partial_dtype``: for gemm_rs and
    gemm_ar, a type that the product of every rank may be rounded to before products are summed, which sends fewer bytes;
    None: sums over ranks are in fp32 and rounded once. ``scales``: of float8 operands, "tensor", "rowcol" or "block", or
    the shapes of scale_a and scale_b (see scales.py); the fp32 product is scaled before it is rounded or sent.
    ``gathered``: for ag_gemm, return all of A too, behind C.

    ``b`` may be several matrices (qkv, gate and up) of an ag_gemm: then a rank holds its columns of each side by side, as
    one tensor, and a call returns a product for each, columns of one output.
    """
    several = tuple(b) if isinstance(b, Sequence) else ()
    a, b = _matrix("A", a), _side_by_side(several) if isinstance(b, Sequence) else _matrix("B", b)
    _check_factors(a, b)
    dtype = WIDE.get(a.dtype, a.dtype) if out_dtype is None else as_dtype(out_dtype)
    c = Tensor((a.shape[0], _columns(b, then)), dtype, as_view(out))
    attributes: dict[str, Attribute] = {} if algorithm is None else {"algorithm": algorithm}
    if partial_dtype is not None:
        attributes["partial_dtype"] = as_dtype(partial_dtype)
    if scales is not None:
        attributes["scales"] = kind_of_scales(a, b, scales)
    if not isinstance(gathered, bool):
        raise SpecError("gathered is True or False", repr(gathered), "leave it out for False")
    if gathered:
        attributes["gathered"] = 1
    if several:
        attributes["columns"] = ",".join(str(each.shape[1]) for each in several)
    spec = _declare("matmul", (a, b), c, topology, inputs, deterministic, then, attributes)
    if algorithm is not None and spec.op != "summa":
        raise SpecError("algorithm goes with Block views: summa or cannon", f"{spec.op}, algorithm={algorithm!r}",
                        "leave it out: how others are carried out is a knob of their schedules")
    if partial_dtype is not None and spec.op not in WITH_PARTIALS:
        raise SpecError(f"partial_dtype goes with {' and '.join(WITH_PARTIALS)}, which sum products over ranks",
                        f"{spec.op}, partial_dtype={attributes['partial_dtype']}", "leave it out")
    if scales is not None and spec.op not in WITH_SCALES:
        raise SpecError(f"scales go with {', '.join(WITH_SCALES)}", f"{spec.op}, scales={attributes['scales']}",
                        "scale the output with torch")
    if scales is not None and several:
        raise SpecError("scales go with one B", f"{len(several)} matrices, scales={attributes['scales']}",
                        "declare a product for each")
    if gathered and spec.op != "ag_gemm":
        raise SpecError("gathered goes with ag_gemm, which gathers rows of A", spec.op, "leave it out")
    if several:
        _check_several(spec, several)
    return spec


def linear(
    x: Tensor,
    w: Tensor,
    out: object,
    topology: object,
    *,
    out_dtype: object = None,
    inputs: str = "ordinary",
    deterministic: bool = False,
    then: Sequence[str] = (),
    partial_dtype: object = None,
    scales: object = None,
    gathered: bool = False,
) -> Spec:
    """y = x w^T with x (M, K) and w as torch.nn.Linear holds it: (N, K), row-major.

    Sharded on N, ``Shard(0)``, w is B (K, N) with view FullCol and order "col": nothing is copied.
    """
    w = _matrix("w", w)
    b = Tensor((w.shape[1], w.shape[0]), w.dtype, _flipped(w), "row" if w.order == "col" else "col")
    return matmul(x, b, out, topology, out_dtype=out_dtype, inputs=inputs, deterministic=deterministic, then=then,
                  partial_dtype=partial_dtype, scales=scales, gathered=gathered)


def redistribute(
    tensor: Tensor,
    to: object,
    topology: object,
    *,
    transpose: Sequence[int] | None = None,
    root: int | None = None,
    out_dtype: object = None,
    inputs: str = "ordinary",
    deterministic: bool = False,
    then: Sequence[str] = (),
) -> Spec:
    """The same tensor under another view.

    ``transpose``: for Shard(i) -> Shard(j), a permutation of the dimensions applied on the way; ``to`` is then the view
    of the permuted tensor. ``root``: the one rank that holds a Replicate tensor, which makes it a broadcast.
    """
    _tensor("the tensor", tensor)
    _same_dtype(tensor, out_dtype)
    view = as_view(to)
    shape, attributes = tensor.shape, dict[str, Attribute]()
    if transpose is not None:
        order = _permutation(transpose, tensor.ndim)
        shape = tuple(tensor.shape[dim] for dim in order)
        attributes["transpose"] = ",".join(map(str, order))
    output = Tensor(shape, tensor.dtype, view, tensor.order)
    declaration = "redistribute"
    if root is not None:
        declaration, attributes["root"] = "redistribute from one rank", root
    elif transpose is None:
        _refuse_nothing_to_do(tensor, output)
    spec = _declare(declaration, (tensor,), output, topology, inputs, deterministic, then, attributes)
    if transpose is not None and spec.op != "all_to_all":
        raise SpecError("transpose goes with Shard(i) -> Shard(j)", spec.op, "transpose with torch before or after")
    return spec


def shift(
    tensor: Tensor,
    k: int,
    topology: object,
    *,
    inputs: str = "ordinary",
    deterministic: bool = False,
) -> Spec:
    """Rank r receives the shard of rank r - k modulo the world. Shards are even; k is no multiple of the world."""
    _tensor("the tensor", tensor)
    return _declare("shift", (tensor,), tensor, topology, inputs, deterministic, (), {"k": k})


def moe_dispatch(
    tokens: Tensor,
    experts: int,
    top_k: int,
    topology: object,
    *,
    routing: str = "uniform",
    inputs: str = "ordinary",
    deterministic: bool = False,
) -> Spec:
    """Send each row of ``tokens`` (T, hidden; FullRow) to the ranks of its ``top_k`` of ``experts`` experts.

    Callers also pass ``indices`` (T, top_k; int32), the experts of each token; -1 stands for none. On every rank the output
    has room for T * top_k rows, since all tokens may go to one rank: the first ones hold the tokens of its experts, by
    expert, then by source, then in the order of the source; how many there are is known on the device alone. They are told
    in ``counts`` (world, experts / world; int32): of every source, rows for each expert of this rank.

    ``routing``: the skew to tune for, part of the workload: "uniform", "histogram:" with an integer weight for every
    expert, or "trace:" with a recorded trace (see ``spec/ops/_moe.py``).
    """
    tokens = _matrix("tokens", tokens)
    output = Tensor((_rows_of_experts(tokens, top_k, topology), tokens.shape[1]), tokens.dtype, tokens.view)
    attributes: dict[str, Attribute] = {"experts": experts, "top_k": top_k, "routing": routing}
    return _declare("moe_dispatch", (tokens,), output, topology, inputs, deterministic, (), attributes)


def moe_dispatch_gemm(
    tokens: Tensor,
    weights: Tensor,
    top_k: int,
    topology: object,
    *,
    out_dtype: object = None,
    routing: str = "uniform",
    inputs: str = "ordinary",
    deterministic: bool = False,
    then: Sequence[str] = (),
    scales: object = None,
) -> Spec:
    """``moe_dispatch``, and the product of every row with the matrix of its expert: ``weights`` (experts, K, N; FullRow)
    are those of all experts, ``tokens`` (T, K; FullRow). Products accumulate in fp32 and are rounded once, to
    ``out_dtype`` (that of the tokens by default, bfloat16 for fp8). With order "col" each matrix lies as a Linear holds it,
    (N, K), as those of fp8 must.

    Callers pass ``indices``, and receive ``counts``, as of ``moe_dispatch``; the output (world * T * top_k, N) has the
    products in the places of the rows of ``moe_dispatch``. ``then``: epilogues of the products, before they are rounded:
    silu, gelu, bias (a row of numbers an expert), swiglu (the columns of gate and of up in turn; half as many come out).
    ``scales``: of float8 operands, "tensor", "rowcol" or "block", or the shapes of scale_a and scale_b (see scales.py): of
    tokens where these lie, whose scales travel with them, of the weights for every expert.
    """
    tokens, weights = _matrix("tokens", tokens), _matrices(weights)
    dtype = WIDE.get(tokens.dtype, tokens.dtype) if out_dtype is None else as_dtype(out_dtype)
    output = Tensor((_rows_of_experts(tokens, top_k, topology), _columns(weights, then)), dtype, tokens.view)
    attributes: dict[str, Attribute] = {"experts": weights.sizes[0], "top_k": top_k, "routing": routing}
    if scales is not None:
        attributes["scales"] = kind_of_scales(tokens, weights, scales)
    return _declare("moe_dispatch_gemm", (tokens, weights), output, topology, inputs, deterministic, then, attributes)


def moe_combine(
    expert_rows: Tensor,
    tokens: int,
    experts: int,
    top_k: int,
    topology: object,
    *,
    routing: str = "uniform",
    inputs: str = "ordinary",
    deterministic: bool = False,
) -> Spec:
    """The way back of ``moe_dispatch``: rows of experts (world * tokens * top_k, hidden; FullRow), where the dispatch has
    put the tokens, are weighted in fp32, summed in the order of a token's experts, and rounded once, into ``tokens`` rows.

    Callers also pass the ``indices`` that the tokens were dispatched with, ``weights`` (tokens, top_k; float32) and the
    ``counts`` of the dispatch. ``routing``: as of ``moe_dispatch``.
    """
    expert_rows = _matrix("expert_rows", expert_rows)
    output = Tensor((tokens, expert_rows.shape[1]), expert_rows.dtype, expert_rows.view)
    attributes: dict[str, Attribute] = {"experts": experts, "top_k": top_k, "routing": routing}
    return _declare("moe_combine", (expert_rows,), output, topology, inputs, deterministic, (), attributes)


def moe_gemm_combine(
    expert_rows: Tensor,
    weights: Tensor,
    tokens: int,
    top_k: int,
    topology: object,
    *,
    out_dtype: object = None,
    partial_dtype: object = None,
    routing: str = "uniform",
    inputs: str = "ordinary",
    deterministic: bool = False,
    scales: object = None,
) -> Spec:
    """The product of every row with the matrix of its expert, and ``moe_combine`` of the products: ``expert_rows`` (world *
    tokens * top_k, K; FullRow) are where a dispatch has put them, ``weights`` (experts, K, N; FullRow) the matrices.

    Products accumulate in fp32, are weighted and summed in fp32 in the order of a token's experts, and rounded once, to
    ``out_dtype`` (that of the rows by default, bfloat16 for fp8). ``partial_dtype``: a type that products may be rounded to
    before they are sent, which takes half of the bytes; None: they are sent in fp32. Callers pass what they pass to
    ``moe_combine``. ``scales``: as of ``moe_dispatch_gemm``, of rows where these lie; products are scaled before they are
    sent.
    """
    expert_rows, weights = _matrix("expert_rows", expert_rows), _matrices(weights)
    dtype = WIDE.get(expert_rows.dtype, expert_rows.dtype) if out_dtype is None else as_dtype(out_dtype)
    output = Tensor((tokens, weights.shape[2]), dtype, expert_rows.view)
    attributes: dict[str, Attribute] = {"experts": weights.sizes[0], "top_k": top_k, "routing": routing}
    if partial_dtype is not None:
        attributes["partial_dtype"] = as_dtype(partial_dtype)
    if scales is not None:
        attributes["scales"] = kind_of_scales(expert_rows, weights, scales)
    return _declare("moe_gemm_combine", (expert_rows, weights), output, topology, inputs, deterministic, (), attributes)


def _declare(
    declaration: str,
    tensors: tuple[Tensor, ...],
    output: Tensor,
    topology: object,
    inputs: str,
    deterministic: bool,
    then: Sequence[str],
    attributes: dict[str, Attribute],
) -> Spec:
    ranks, (*tensors_bare, output) = resolve(topology, (*tensors, output))
    op = derive(declaration, tensors_bare, output)
    _check_then(then)
    pairs = tuple(attributes.items())
    return Spec(op, tuple(tensors_bare), output, ranks, inputs, deterministic, tuple(then), pairs)


def _check_then(then: object) -> None:
    if isinstance(then, str) or not isinstance(then, Sequence) or not all(isinstance(name, str) for name in then):
        remedy = f"write then=[{then!r}]" if isinstance(then, str) else 'such as ["bias", "silu"], or leave it out'
        raise SpecError("then is a sequence of epilogue names", repr(then), remedy)


def _tensor(name: str, value: object) -> Tensor:
    if not isinstance(value, Tensor):
        several = isinstance(value, (tuple, list))
        remedy = "declare one operation for each, or one whose tensors are concatenated" if several else ""
        raise SpecError(f"{name} is a Tensor", type(value).__name__, remedy or "wrap it: Tensor(shape, dtype, view)")
    return value


def _rows_of_experts(tokens: Tensor, top_k: object, topology: object) -> int:
    """Rows that all ranks together have room for: all tokens may go to one of them."""
    if isinstance(top_k, bool) or not isinstance(top_k, int):
        raise SpecError("top_k is a positive integer", repr(top_k), "for example 8")
    return resolve(topology, (tokens,))[0].ranks * tokens.sizes[0] * max(1, top_k)


def _matrices(value: object) -> Tensor:
    tensor = _tensor("weights", value)
    if tensor.ndim != 3:
        raise SpecError("weights are a matrix an expert, (experts, K, N)", tensor.label, "stack those of all experts")
    return tensor


def _matrix(name: str, value: object) -> Tensor:
    tensor = _tensor(name, value)
    if tensor.ndim != 2:
        raise SpecError(f"{name} is a matrix", tensor.label, "flatten the leading dimensions into one")
    return tensor


def _side_by_side(several: tuple[Tensor, ...]) -> Tensor:
    """B of several matrices: their columns behind each other."""
    found = [_matrix(f"B {number}", each) for number, each in enumerate(several)]
    if len(found) < 2:
        raise SpecError("several B are at least two", f"{len(found)}", "give a single B as a Tensor")
    first = found[0]
    for each in found[1:]:
        if (each.shape[0], each.dtype, each.view, each.order) != (first.shape[0], first.dtype, first.view, first.order):
            raise SpecError("several B differ in their columns alone", f"{first.label} and {each.label}",
                            "declare one operation for each")
    if any(isinstance(size, Dim) for each in found for size in each.shape):
        raise SpecError("several B have sizes in numbers", ", ".join(each.label for each in found), "bind their Dims")
    return dataclasses.replace(first, shape=(first.shape[0], sum(each.sizes[1] for each in found)))


def _check_several(spec: Spec, several: tuple[Tensor, ...]) -> None:
    if spec.op != "ag_gemm":
        raise SpecError("several B go with ag_gemm, whose A is gathered once for all", spec.op,
                        "declare one operation for each")
    uneven = [each.label for each in several if each.sizes[1] % spec.world]
    if uneven:
        raise SpecError("every one of several B has as many columns on every rank",
                        f"{', '.join(uneven)} on {spec.world} ranks", "choose sizes that the ranks divide")
    if any(name in EPILOGUES and EPILOGUES[name].halves for name in spec.then):
        raise SpecError("products of several B keep their columns", ", ".join(spec.then),
                        "declare one B whose columns alternate as the epilogue wants them")


def _check_factors(a: Tensor, b: Tensor) -> None:
    for name, tensor in (("A", a), ("B", b)):
        if tensor.dtype not in FACTORS:
            raise SpecError(f"the dtype of {name} can be multiplied", tensor.dtype, "one of " + ", ".join(FACTORS))
    if a.dtype != b.dtype and not (a.dtype in FP8 and b.dtype in FP8):
        raise SpecError("A and B have one dtype", f"{a.dtype} and {b.dtype}", "convert one of them with torch")
    if a.shape[1] != b.shape[0]:
        raise SpecError(
            "the contraction sizes match: A (M, K), B (K, N)",
            f"A {'x'.join(map(str, a.shape))}, B {'x'.join(map(str, b.shape))}",
            "give B as (K, N), or use linear(x, w) for w held as (N, K)",
        )


def _columns(b: Tensor, then: Sequence[str]) -> int | Dim:
    """Columns of the output: those of B, or half of them where an epilogue makes one of two."""
    columns = b.shape[-1]
    _check_then(then)
    halves = any(name in EPILOGUES and EPILOGUES[name].halves for name in then)
    return columns // 2 if halves and not isinstance(columns, Dim) else columns


def _flipped(w: Tensor) -> View:
    if isinstance(w.view, BlockView):
        raise SpecError("w of a linear is not a Block", w.label, "use matmul with B as (K, N)")
    if isinstance(w.view, Shard):
        return dataclasses.replace(w.view, dim=1 - w.view.dim % 2)
    return w.view


def _same_dtype(tensor: Tensor, out_dtype: object) -> None:
    if out_dtype is not None and as_dtype(out_dtype) != tensor.dtype:
        raise SpecError("redistribute keeps the dtype", f"{tensor.dtype} -> {out_dtype}", "convert with torch")


def _permutation(transpose: Sequence[int], ndim: int) -> tuple[int, ...]:
    order = tuple(transpose) if isinstance(transpose, Sequence) else ()
    if any(isinstance(dim, bool) or not isinstance(dim, int) for dim in order) or sorted(order) != list(range(ndim)):
        raise SpecError(f"transpose is a permutation of 0..{ndim - 1}", repr(transpose),
                        f"for example {tuple(reversed(range(ndim)))}")
    return order


def _refuse_nothing_to_do(tensor: Tensor, output: Tensor) -> None:
    source, target = tensor.view, output.view
    if source == target:
        raise SpecError(
            "a redistribute changes the view",
            f"{source.label} -> {target.label}",
            "this needs no communication: use the tensor as it is",
        )
    if isinstance(source, ReplicateView) and not isinstance(target, PartialView):
        raise SpecError(
            "a redistribute moves data between ranks",
            f"{source.label} -> {target.label}",
            "this needs no communication: slice the local tensor; from one rank, give root=",
        )
