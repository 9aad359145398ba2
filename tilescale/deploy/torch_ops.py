"""torch.library operators of loaded operations, with fake implementations, so that torch.compile sees through them.

    tilescale::call(Tensor[] inputs, str key) -> Tensor
    tilescale::call_several(Tensor[] inputs, str key) -> Tensor[]
    tilescale::call_out(Tensor[] inputs, Tensor(a!) out, str key) -> ()
    tilescale::call_several_out(Tensor[] inputs, Tensor(a!)[] outs, str key) -> ()

`key` names a loaded operation; it is new with every load, so a graph compiled for one bundle is not used for another.
Importing this module imports torch and defines them.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from tilescale.errors import BundleError


class Loaded(Protocol):
    """What an operator dispatches to."""

    def run(self, inputs: Sequence[Any], out: Any) -> Any: ...

    def empty_output(self, inputs: Sequence[Any]) -> Any: ...

    def empty_outputs(self, inputs: Sequence[Any]) -> list[Any]: ...


_LOADED: weakref.WeakValueDictionary[str, Loaded] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count()


def enrol(operation: Loaded, label: str) -> str:
    """Make an operation known to the operators for as long as it lives; returns its key."""
    key = f"{label}#{next(_NUMBERS)}"
    _LOADED[key] = operation
    return key


def _find(key: str) -> Loaded:
    operation = _LOADED.get(key)
    if operation is None:
        raise BundleError("a compiled call has its bundle loaded", key, "keep the loaded operations, and compile again")
    return operation


def _call(inputs: Sequence[Any], key: str) -> Any:
    return _find(key).run(inputs, None)


def _fake_call(inputs: Sequence[Any], key: str) -> Any:
    return _find(key).empty_output(inputs)


def _call_several(inputs: Sequence[Any], key: str) -> list[Any]:
    return list(_find(key).run(inputs, None))


def _fake_call_several(inputs: Sequence[Any], key: str) -> list[Any]:
    return _find(key).empty_outputs(inputs)


def _call_out(inputs: Sequence[Any], out: Any, key: str) -> None:
    _find(key).run(inputs, out)


def _fake_call_out(inputs: Sequence[Any], out: Any, key: str) -> None:
    return None


def _call_several_out(inputs: Sequence[Any], outs: Sequence[Any], key: str) -> None:
    _find(key).run(inputs, tuple(outs))


call = torch.library.custom_op(
    "tilescale::call", _call, mutates_args=(), schema="(Tensor[] inputs, str key) -> Tensor")
call.register_fake(_fake_call)
call_several = torch.library.custom_op(
    "tilescale::call_several", _call_several, mutates_args=(), schema="(Tensor[] inputs, str key) -> Tensor[]")
call_several.register_fake(_fake_call_several)
call_out = torch.library.custom_op(
    "tilescale::call_out", _call_out, mutates_args=("out",), schema="(Tensor[] inputs, Tensor(a!) out, str key) -> ()")
call_out.register_fake(_fake_call_out)
call_several_out = torch.library.custom_op(
    "tilescale::call_several_out", _call_several_out, mutates_args=("outs",),
    schema="(Tensor[] inputs, Tensor(a!)[] outs, str key) -> ()")
call_several_out.register_fake(_fake_call_out)
