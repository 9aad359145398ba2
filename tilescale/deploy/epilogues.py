"""Epilogues by torch: what library paths do after a product or a sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilescale.spec.declaration import Spec


class TorchMath:
    """The functions that epilogues are made of (see spec/epilogue.py), on tensors of one floating type."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def exp(self, x: Any) -> Any:
        return self._torch.exp(x)

    def erf(self, x: Any) -> Any:
        return self._torch.erf(x)

    def sqrt(self, x: Any) -> Any:
        return self._torch.sqrt(x)

    def mean(self, x: Any) -> Any:
        return self._torch.mean(x, -1, keepdim=True)


def finished(torch: Any, spec: Spec, x: Any, extras: Sequence[Any]) -> Any:
    """``x`` (fp32) behind the epilogues of ``spec``, in fp32. ``extras``: tensors of Spec.extras on this rank."""
    return both(torch, spec, x, extras)[0]


def both(torch: Any, spec: Spec, x: Any, extras: Sequence[Any]) -> tuple[Any, list[Any]]:
    """The same, and what the epilogues hand out besides: a tensor each of Spec.aside."""
    at, others = len(spec.operation.extras(spec)), []
    for epilogue in spec.epilogues:
        count = len(epilogue.extras(spec))
        own = [extra.to(x.dtype) for extra in extras[at : at + count]]
        if epilogue.aside is not None:
            others.append(epilogue.aside.apply(TorchMath(torch), x, own))
        x = epilogue.apply(TorchMath(torch), x, own)
        at += count
    return x, others
