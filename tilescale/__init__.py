"""tilescale: declare a distributed GPU operation, get the fastest proven-correct kernel for your shapes on your machine.

Names load on first use, so that `import tilescale` is cheap and loads no torch, CUDA, Optuna, pandas or SQLAlchemy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilescale.codegen.emit import emit
    from tilescale.costmodel.predict import predict
    from tilescale.deploy.load import load
    from tilescale.errors import TilescaleError
    from tilescale.runtime.emulate import emulate
    from tilescale.schedules.lower import lower
    from tilescale.schedules.schedule import Schedule
    from tilescale.schedules.space import space
    from tilescale.schedules.verify import verify
    from tilescale.spec.op import (
        Spec,
        linear,
        matmul,
        moe_combine,
        moe_dispatch,
        moe_dispatch_gemm,
        moe_gemm_combine,
        redistribute,
        shift,
    )
    from tilescale.spec.tensor import Dim, Tensor
    from tilescale.spec.topology import Topology
    from tilescale.spec.views import Block, FullCol, FullRow, Partial, Replica, Replicate, Shard
    from tilescale.tuner.tune import tune

_HOMES = {
    "tilescale.codegen.emit": ("emit",),
    "tilescale.costmodel.predict": ("predict",),
    "tilescale.deploy.load": ("load",),
    "tilescale.errors": ("TilescaleError",),
    "tilescale.runtime.emulate": ("emulate",),
    "tilescale.schedules.lower": ("lower",),
    "tilescale.schedules.schedule": ("Schedule",),
    "tilescale.schedules.space": ("space",),
    "tilescale.schedules.verify": ("verify",),
    "tilescale.spec.op": ("Spec", "linear", "matmul", "moe_combine", "moe_dispatch", "moe_dispatch_gemm",
                          "moe_gemm_combine", "redistribute", "shift"),
    "tilescale.spec.tensor": ("Dim", "Tensor"),
    "tilescale.spec.topology": ("Topology",),
    "tilescale.spec.views": ("Block", "FullCol", "FullRow", "Partial", "Replica", "Replicate", "Shard"),
    "tilescale.tuner.tune": ("tune",),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}

__version__ = "0.1.0"
__all__ = [
    "Block", "Dim", "FullCol", "FullRow", "Partial", "Replica", "Replicate", "Schedule", "Shard", "Spec", "Tensor",
    "TilescaleError", "Topology", "emit", "emulate", "linear", "load", "lower", "matmul", "moe_combine", "moe_dispatch",
    "moe_dispatch_gemm", "moe_gemm_combine", "predict", "redistribute", "shift", "space", "tune", "verify",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'tilescale' has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
