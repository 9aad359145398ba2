"""The caller's tensors, checked against a declaration before anything is launched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilescale.errors import BundleError
from tilescale.spec.declaration import Spec
from tilescale.spec.mesh import mesh_ranks
from tilescale.spec.tensor import Tensor
from tilescale.spec.views import as_view

ADDRESS_ALIGNMENT = 16  # of tensor maps and of the widest accesses


@dataclass(frozen=True)
class Local:
    """A rank's part of a declared tensor: shape and element strides as the declaration has them."""

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def local_of(name: str, tensor: Tensor, rank: int, world: int) -> Local:
    shape = tensor.local_shape(rank, world)
    strides = contiguous(shape) if tensor.order == "row" else turned(contiguous(turned(shape)))
    return Local(name, shape, strides, tensor.dtype)


def turned(sizes: Sequence[int]) -> tuple[int, ...]:
    """Sizes or strides of a matrix, or of each of a stack, with rows and columns exchanged."""
    return (*sizes[:-2], sizes[-1], sizes[-2])


def local_inputs(spec: Spec, rank: int) -> tuple[Local, ...]:
    """What a rank passes, in order: the inputs, and the operands beside them."""
    return tuple(local_of(operand.name, operand.tensor, rank, spec.world) for operand in spec.operands)


def local_outputs(spec: Spec, rank: int) -> tuple[Local, ...]:
    """All that a rank receives, in the order of Spec.outputs."""
    return tuple(local_of(name, tensor, rank, spec.world) for name, tensor in spec.outputs)


def dtype_name(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.")


def as_declared(value: Any, local: Local) -> Any:
    """The tensor as the matrix that was declared, a view of the same memory.

    A column-major B (K, N) may also be given as torch.nn.Linear holds it: (N, K) and contiguous; those of experts (experts,
    K, N) as (experts, N, K). Of a square one only its strides tell, so w is then passed as `w.t()` (of experts, `w.mT`).
    Raises BundleError for another dtype, shape or memory order.
    """
    if dtype_name(value) != local.dtype:
        raise BundleError(f"{local.name} is {local.dtype}", dtype_name(value), "convert it, or tune for that type")
    shape = tuple(value.shape)
    if shape != local.shape and has_shape(value, local) and value.is_contiguous():
        return value.t() if value.ndim == 2 else value.transpose(-2, -1)
    if shape != local.shape:
        raise BundleError(f"{local.name} has the shape it was tuned for: {local.shape}", shape, "see `shapes`")
    if not _strides_fit(shape, tuple(value.stride()), local.strides):
        order = "column" if local.strides != contiguous(local.shape) else "row"
        view = "w.t()" if value.ndim == 2 else "w.mT"
        remedy = f"pass {view} of a Linear's weight" if order == "column" else "pass .contiguous()"
        raise BundleError(f"{local.name} is {order}-major: strides {local.strides}", tuple(value.stride()), remedy)
    return value


def has_shape(value: Any, local: Local) -> bool:
    """Whether the shape is that of the declared matrix, or of a column-major one as a Linear's weight."""
    shape = tuple(value.shape)
    return shape == local.shape or (local.strides != contiguous(local.shape) and shape == turned(local.shape))


def _strides_fit(shape: Sequence[int], found: Sequence[int], wanted: Sequence[int]) -> bool:
    """Strides of dimensions of size 1 say nothing."""
    return all(size == 1 or have == want for size, have, want in zip(shape, found, wanted, strict=True))


def address_of(value: Any, name: str) -> int:
    """Where a tensor on a GPU starts; BundleError where kernels could not read it there."""
    if value.device.type != "cuda":
        raise BundleError(f"{name} is on the GPU", str(value.device), "move it with .cuda()")
    address = int(value.data_ptr())
    if address % ADDRESS_ALIGNMENT:
        remedy = "pass .clone() of a slice"
        raise BundleError(f"{name} starts at a multiple of {ADDRESS_ALIGNMENT} bytes", hex(address), remedy)
    return address


def unwrap(value: Any, declared: Tensor, name: str) -> Any:
    """The local tensor of a DTensor whose placement is the declared view; other tensors as they are."""
    if not is_dtensor(value):
        return value
    if len(value.placements) != 1:
        remedy = "pass a submesh, or .to_local()"
        raise BundleError(f"{name} is on a mesh of one dimension", f"{len(value.placements)} dimensions", remedy)
    view = Tensor(declared.shape, declared.dtype, as_view(value.placements[0]), declared.order).view
    if view != declared.view:
        remedy = "redistribute it, or declare that view"
        raise BundleError(f"{name} is placed as {declared.view.label}", view.label, remedy)
    return value.to_local()


def check_mesh(mesh: Any, ranks: Sequence[int], name: str) -> None:
    """BundleError unless the mesh of a DTensor has the ranks of the operation in their order: shards follow that."""
    found = tuple(mesh_ranks(mesh))
    if mesh.ndim == 1 and found != tuple(ranks):
        raise BundleError(f"{name} was loaded on ranks {list(ranks)}, in this order", f"a DTensor on {list(found)}",
                          "load it with group=mesh, the mesh of the tensor")


def is_dtensor(value: Any) -> bool:
    """By name, so that asking loads nothing of torch.distributed.tensor."""
    return type(value).__name__ == "DTensor"


def check_no_gradient(torch: Any, values: Sequence[Any]) -> None:
    """BundleError where a result without a gradient would be taken for one with it."""
    if torch.is_grad_enabled() and any(value.requires_grad for value in values):
        raise BundleError("operations of a bundle have no backward", "an input requires a gradient",
                          "call them under torch.no_grad() or torch.inference_mode()")
