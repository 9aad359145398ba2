"""torch.library operators of loaded operations, with fake implementations, so that torch.compile sees through them.

    tilescale::call(Tensor[] inputs, str key) -> Tensor
    tilescale::call_out(Tensor[] inputs, Tensor(a!) out, str key) -> ()

`key` names a loaded operation; it is new with every load, so a graph compiled for one bundle is not used for another.
Importing this module imports torch and defines both.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from tilescale.errors import BundleError


class Callable(Protocol):
    """What an operator dispatches to."""

    def run(self, inputs: Sequence[Any], out: Any) -> Any: ...

    def empty_output(self, inputs: Sequence[Any]) -> Any: ...


_LOADED: weakref.WeakValueDictionary[str, Callable] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count()


def enrol(operation: Callable, label: str) -> str:
    """Make an operation known to the operators for as long as it lives; returns its key."""
    key = f"{label}#{next(_NUMBERS)}"
    _LOADED[key] = operation
    return key


def _find(key: str) -> Callable:
    operation = _LOADED.get(key)
    if operation is None:
        raise BundleError("a compiled call has its bundle loaded", key, "keep the loaded operations, and compile again")
    return operation


@torch.library.custom_op("tilescale::call", mutates_args=(), schema="(Tensor[] inputs, str key) -> Tensor")
def call(inputs: Sequence[Any], key: str) -> Any:
    """The operation's result in a new tensor."""
    return _find(key).run(inputs, None)


@torch.library.custom_op("tilescale::call_out", mutates_args=("out",),
                         schema="(Tensor[] inputs, Tensor(a!) out, str key) -> ()")
def call_out(inputs: Sequence[Any], out: Any, key: str) -> None:
    """The operation's result in `out`."""
    _find(key).run(inputs, out)


@call.register_fake
def _fake_call(inputs: Sequence[Any], key: str) -> Any:
    return _find(key).empty_output(inputs)


@call_out.register_fake
def _fake_call_out(inputs: Sequence[Any], out: Any, key: str) -> None:
    return None
