"""The derivation table as data: which operation the views of a declaration ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilescale.errors import SpecError
from tilescale.spec.operation import OPERATIONS, Move, Operation
from tilescale.spec.tensor import Tensor
from tilescale.spec.views import Shard

__all__ = ["OPERATIONS", "TABLE", "Move", "Operation", "Rule", "derive", "pattern"]


@dataclass(frozen=True)
class Rule:
    """``declaration`` of inputs with views ``sources`` and an output with view ``target`` is operation ``op``."""

    declaration: str
    sources: tuple[str, ...]
    target: str
    op: str

    @property
    def label(self) -> str:
        return f"{self.declaration} {', '.join(self.sources)} -> {self.target}: {self.op}"


TABLE = (
    Rule("matmul", ("FullRow", "FullCol"), "FullCol", "ag_gemm"),
    Rule("matmul", ("FullCol", "FullRow"), "FullRow", "gemm_rs"),
    Rule("matmul", ("FullCol", "FullRow"), "Replicate", "gemm_ar"),
    Rule("matmul", ("FullRow", "FullRow"), "FullRow", "weight_gather_gemm"),
    Rule("matmul", ("FullCol", "FullCol"), "FullCol", "ag_gemm_k"),
    Rule("matmul", ("Block", "Block"), "Block", "summa"),
    # No communication: a local GEMM of what each rank holds.
    Rule("matmul", ("Replicate", "Replicate"), "Replicate", "gemm"),
    Rule("matmul", ("FullRow", "Replicate"), "FullRow", "gemm"),
    Rule("matmul", ("Replicate", "FullCol"), "FullCol", "gemm"),
    Rule("matmul", ("FullCol", "FullRow"), "Partial", "gemm"),
    Rule("matmul", ("Partial", "Replicate"), "Partial", "gemm"),
    Rule("matmul", ("Replicate", "Partial"), "Partial", "gemm"),
    Rule("redistribute", ("Shard",), "Replicate", "all_gather"),
    Rule("redistribute", ("Partial",), "Shard", "reduce_scatter"),
    Rule("redistribute", ("Partial",), "Replicate", "all_reduce"),
    Rule("redistribute", ("Shard",), "Shard", "all_to_all"),
    Rule("redistribute from one rank", ("Replicate",), "Replicate", "broadcast"),
    Rule("shift", ("Shard",), "Shard", "shift"),
    Rule("moe_dispatch", ("FullRow",), "FullRow", "moe_dispatch"),
    Rule("moe_combine", ("FullRow",), "FullRow", "moe_combine"),
    Rule("moe_dispatch_gemm", ("FullRow", "FullRow"), "FullRow", "moe_dispatch_gemm"),
    Rule("moe_gemm_combine", ("FullRow", "FullRow"), "FullRow", "moe_gemm_combine"),
)


def pattern(tensor: Tensor, any_dim: bool = False) -> str:
    """The word of the table for a tensor's view; with ``any_dim`` every Shard is "Shard"."""
    view = tensor.view
    if isinstance(view, Shard) and any_dim:
        return "Shard"
    return view.bare().label


def derive(declaration: str, inputs: Sequence[Tensor], output: Tensor) -> str:
    """Name of the operation; SpecError says what the table offers for these views instead."""
    rules = [rule for rule in TABLE if rule.declaration == declaration]
    any_dim = any("Shard" in (*rule.sources, rule.target) for rule in rules)
    sources = tuple(pattern(tensor, any_dim) for tensor in inputs)
    target = pattern(output, any_dim)
    for rule in rules:
        if (rule.sources, rule.target) == (sources, target):
            return rule.op
    raise SpecError(
        f"the views of a {declaration} are those of a known operation",
        f"{', '.join(t.view.label for t in inputs)} -> {output.view.label}",
        _offer(rules, sources, target),
    )


def _offer(rules: list[Rule], sources: tuple[str, ...], target: str) -> str:
    same_inputs = [rule for rule in rules if rule.sources == sources]
    if same_inputs:
        choices = ", ".join(f"{rule.target} ({rule.op})" for rule in same_inputs)
        return f"with these inputs the output may be {choices}"
    same_output = [rule for rule in rules if rule.target == target]
    if same_output:
        choices = " or ".join(f"{' x '.join(rule.sources)} ({rule.op})" for rule in same_output)
        return f"with this output the inputs may be {choices}"
    return "known: " + "; ".join(rule.label for rule in rules)
