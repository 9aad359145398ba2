"""The callables of a loaded bundle: the right variant for the tensors at hand, or the library, or a refusal."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilescale.deploy import tensors
from tilescale.deploy.driver import Matrix
from tilescale.deploy.launch import PreparedOperation
from tilescale.deploy.library import Unfused, tensor_at
from tilescale.deploy.manifest import OperationEntry, Variant
from tilescale.deploy.members import Members
from tilescale.errors import BundleError
from tilescale.spec.result import kind_of
from tilescale.spec.routed import is_routed
from tilescale.spec.views import PartialView

LIBRARY = "library"


class LibraryFallback(UserWarning):
    """An operation runs as unfused library calls instead of the kernels of its bundle."""


@dataclass(frozen=True)
class Serving:
    """One tuned variant with its kernels, ready to run."""

    variant: Variant
    prepared: PreparedOperation


class Operation:
    """One operation of a bundle on this rank: `out = operation(a, b, out=None)`.

    Operands beside the inputs follow them, in the order of `names`, or come by name: `operation(a, b, bias=bias)`.
    Takes this rank's tensors as declared (a column-major B also as a Linear's weight, (N, K)), or DTensors placed as
    declared, and returns the like. Shapes that were tuned run the bundle's kernels. For others, and where `reason` says
    why kernels cannot run here, `on_mismatch` decides: "error" raises BundleError before anything is enqueued,
    "library" runs torch.distributed and torch.mm, with one warning an operation.
    """

    def __init__(
        self, torch: Any, entry: OperationEntry, servings: Sequence[Serving], rank: int, world: int, group: Any,
        on_mismatch: str, reason: str = "", members: Members | None = None,
    ) -> None:
        self.name, self.rank, self.reason = entry.name, rank, reason
        self._torch, self._servings = torch, tuple(servings)
        self._spec, self._world = entry.variants[0].spec, world
        self._members = members
        collectives = members.distributed if members is not None else None
        self._unfused = Unfused(torch, self._spec, group, collectives) if on_mismatch == LIBRARY else None
        self._warned = False
        self.key = ""

    @property
    def shapes(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Local shapes of the inputs that were tuned, one tuple a variant."""
        inputs = (tensors.local_inputs(serving.variant.spec, self.rank) for serving in self._servings)
        return tuple(tuple(local.shape for local in each) for each in inputs)

    @property
    def schedule_id(self) -> str:
        """Digest of what runs: of the first variant's schedule, or "library"."""
        return self._servings[0].variant.schedule_digest if self._servings else LIBRARY

    @property
    def names(self) -> tuple[str, ...]:
        """What a call takes, in order."""
        return tuple(operand.name for operand in self._spec.operands)

    def __call__(self, *inputs: Any, out: Any = None, **extras: Any) -> Any:
        torch = self._torch
        if extras:
            inputs = self._in_order(inputs, extras)
        if torch.compiler.is_compiling():
            if self._spec.results:
                wrote = ", ".join(result.name for result in self._spec.results)
                raise BundleError("a compiled call writes its output alone", f"{self.name} writes {wrote} too",
                                  "call it outside of torch.compile")
            if out is None:
                return torch.ops.tilescale.call(list(inputs), self.key)
            torch.ops.tilescale.call_out(list(inputs), out, self.key)
            return out
        return self.run(inputs, out)

    def _in_order(self, inputs: Sequence[Any], extras: dict[str, Any]) -> tuple[Any, ...]:
        """All operands in order, where some came by name."""
        rest = self.names[len(inputs):]
        if sorted(extras) != sorted(rest):
            taken = f"{self.name} takes {', '.join(self.names)}"
            given = f"{len(inputs)} in order, and {', '.join(sorted(extras))}"
            raise BundleError(taken, given, "pass each once; those by name come last")
        return (*inputs, *(extras[name] for name in rest))

    def run(self, inputs: Sequence[Any], out: Any = None) -> Any:
        """What a call does outside of torch.compile."""
        spec, torch = self._spec, self._torch
        if len(inputs) != len(spec.operands):
            raise BundleError(f"{self.name} takes {len(spec.operands)} tensors: {', '.join(self.names)}", len(inputs),
                              "pass those of this rank")
        mesh = next((value.device_mesh for value in inputs if tensors.is_dtensor(value)), None)
        if mesh is not None and self._members is not None:
            tensors.check_mesh(mesh, self._members.ranks, self.name)
        local = [tensors.unwrap(v, each.tensor, each.name) for v, each in zip(inputs, spec.operands, strict=True)]
        tensors.check_no_gradient(torch, local)
        target = None if out is None else tensors.unwrap(out, spec.output, "out")
        result = self._dispatch(local, target)
        return out if out is not None else result if mesh is None else self._wrap(result, mesh, local)

    def empty_output(self, inputs: Sequence[Any]) -> Any:
        """A tensor like the result of a call with these inputs, with nothing in it; works on fake and meta tensors."""
        serving = self._serving(inputs)
        dtype = getattr(self._torch, self._spec.output.dtype)
        if serving is not None:
            return inputs[0].new_empty(tensors.local_output(serving.variant.spec, self.rank).shape, dtype=dtype)
        shapes = [tuple(value.shape) for value in self._as_declared(inputs)]
        return inputs[0].new_empty(self._library(inputs).shape(shapes, self._world), dtype=dtype)

    def symmetric_input(self) -> Any:
        """The memory that peers read the first operand from, as a tensor to write to; for inputs="symmetric"."""
        for serving in self._servings:
            address = serving.prepared.operand(self.names[0])
            if address is not None:
                local = tensors.local_inputs(serving.variant.spec, self.rank)[0]
                rows, columns = local.shape[0], tensors.contiguous(local.shape)[0]
                matrix = Matrix(address, rows, columns, (columns, 1), local.dtype)
                return tensor_at(self._torch, matrix).view(local.shape)
        raise BundleError(f"{self.name} reads an operand of its peers in place", "it does not", "pass any tensor")

    # -- dispatch ------------------------------------------------------------------------------------------------------
    def _serving(self, inputs: Sequence[Any]) -> Serving | None:
        for serving in self._servings:
            tuned = tensors.local_inputs(serving.variant.spec, self.rank)
            if all(tensors.has_shape(value, local) for value, local in zip(inputs, tuned, strict=True)):
                return serving
        return None

    def _dispatch(self, inputs: Sequence[Any], out: Any) -> Any:
        serving = self._serving(inputs)
        if serving is None:
            return self._run_library(inputs, out)
        spec, torch = serving.variant.spec, self._torch
        given = [tensors.as_declared(v, local)
                 for v, local in zip(inputs, tensors.local_inputs(spec, self.rank), strict=True)]
        operands = {n: tensors.address_of(v, n) for n, v in zip(self.names, given, strict=True)}
        local = tensors.local_output(spec, self.rank)
        if out is None:
            out = torch.empty(local.shape, dtype=getattr(torch, local.dtype), device=given[0].device)
        operands["out"] = tensors.address_of(tensors.as_declared(out, local), "out")
        serving.prepared(operands, int(torch.cuda.current_stream(given[0].device).cuda_stream))
        return out

    def _run_library(self, inputs: Sequence[Any], out: Any) -> Any:
        library, given = self._library(inputs), self._as_declared(inputs)
        if not self._warned:
            self._warned = True
            warnings.warn(f"{self.name} runs as library calls: {self._why(inputs)}", LibraryFallback, stacklevel=5)
        shape = tuple(library.shape([value.shape for value in given], self._world))
        local = tensors.Local("out", shape, tensors.contiguous(shape), self._spec.output.dtype)
        if out is None:
            out = given[0].new_empty(shape, dtype=getattr(self._torch, local.dtype))
        library(given, tensors.as_declared(out, local))
        return out

    def _why(self, inputs: Sequence[Any]) -> str:
        return self.reason or f"local shapes {' '.join(str(tuple(value.shape)) for value in inputs)} were not tuned"

    def _library(self, inputs: Sequence[Any]) -> Unfused:
        """The path without kernels. Raises BundleError where the caller wants none, saying why it would be taken."""
        if self._unfused is None:
            known = "; ".join(" ".join(map(str, shapes)) for shapes in self.shapes)
            raise BundleError(f"{self.name} runs kernels tuned for local shapes {known}", self._why(inputs),
                              'tune and export these shapes, or load with on_mismatch="library"')
        return self._unfused

    def _as_declared(self, inputs: Sequence[Any]) -> list[Any]:
        """Inputs of any size, as declared: the first fixes K; a column-major second may come as (N, K)."""
        found = list(inputs)
        for value, operand in zip(inputs, self._spec.operands, strict=True):
            name, declared = operand.name, operand.tensor
            if tensors.dtype_name(value) != declared.dtype:
                raise BundleError(f"{name} is {declared.dtype}", tensors.dtype_name(value), "convert it")
            if len(value.shape) != declared.ndim:
                raise BundleError(f"{name} has {declared.ndim} dimensions", len(value.shape), "reshape it")
        if self._spec.operation.compute == "gemm":
            k, b = inputs[0].shape[1], inputs[1]
            as_weight = self._spec.inputs[1].order == "col" and b.shape[0] != k and b.shape[1] == k
            found[1] = b.t() if as_weight else b
            if found[1].shape[0] != k:
                raise BundleError(f"a has as many columns as b has rows: {k}", found[1].shape[0], "pass such tensors")
        return found

    def _wrap(self, result: Any, mesh: Any, inputs: Sequence[Any]) -> Any:
        """The local result as a DTensor placed as declared. Shards of a sum may be uneven: the sum says how large it is."""
        from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

        output, dim = self._spec.output, self._spec.output.shard_dim
        if dim is None:
            placement = Partial() if isinstance(output.view, PartialView) else Replicate()
            return DTensor.from_local(result, mesh, [placement], run_check=False)
        if is_routed(self._spec) or kind_of(self._spec) != "reduce_scatter":
            return DTensor.from_local(result, mesh, [Shard(dim)], run_check=False)
        shape = list(result.shape)
        shape[dim] = inputs[0].shape[dim]
        return DTensor.from_local(result, mesh, [Shard(dim)], run_check=False, shape=self._torch.Size(shape),
                                  stride=tensors.contiguous(shape))

    # -- life ----------------------------------------------------------------------------------------------------------
    def check(self) -> None:
        """Wait for the calls on the current stream, and raise OperationFailed where one failed on this rank."""
        for serving in self._servings:
            serving.prepared.check(int(self._torch.cuda.current_stream().cuda_stream))

    def recording(self) -> Any:
        """Around the capture of a CUDA graph: see PreparedOperation.recording. For operations of one variant."""
        if len(self._servings) != 1:
            raise BundleError("a recording is of one variant with kernels", len(self._servings), "export it alone")
        return self._servings[0].prepared.recording()

    def renew(self) -> None:
        """New workspaces after a failure, collectively."""
        for serving in self._servings:
            serving.prepared.renew()

    def close(self) -> None:
        """Collective."""
        for serving in self._servings:
            serving.prepared.close()
