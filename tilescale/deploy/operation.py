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
from tilescale.spec.contraction import contracts, gathered_operand
from tilescale.spec.result import kind_of
from tilescale.spec.routed import is_routed
from tilescale.spec.tensor import Tensor
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

    Where the declaration asks for more, `(out, gathered) = operation(a, b)`, and `out=` is as many tensors; likewise
    where an epilogue hands out more: `(out, added) = operation(x, residual, gamma)`. Of several B (side by side in `b`)
    there is a product each: `(first, second) = operation(a, b)`, columns of what `out=` holds.
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
        # What a call asks of the spec, beforehand: torch.compile does not see through its properties.
        self.names = tuple(operand.name for operand in self._spec.operands)  # what a call takes, in order
        self._outputs, self._columns = len(self._spec.outputs), tuple(self._spec.columns)
        self._results = tuple(result.name for result in self._spec.results)
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

    def __call__(self, *inputs: Any, out: Any = None, **extras: Any) -> Any:
        torch = self._torch
        if extras:
            inputs = self._in_order(inputs, extras)
        if torch.compiler.is_compiling():
            if self._outputs > 1:
                return self._parts(self._compiled_several(inputs, out))
            if self._results:
                raise BundleError("a compiled call writes its output alone",
                                  f"{self.name} writes {', '.join(self._results)} too", "call it outside of torch.compile")
            if out is None:
                return self._parts(torch.ops.tilescale.call(list(inputs), self.key))
            torch.ops.tilescale.call_out(list(inputs), out, self.key)
            return self._parts(out)
        return self._parts(self.run(inputs, out))

    def _parts(self, result: Any) -> Any:
        """The products of several B as columns of the output, views of it; before what comes beside it."""
        columns = self._columns
        if not columns:
            return result
        out, beside = (result[0], result[1:]) if isinstance(result, tuple | list) else (result, ())
        return (*self._torch.split(out, self._share(out, columns), -1), *beside)

    def _share(self, out: Any, columns: Sequence[int]) -> list[int]:
        """Columns of each product in an output; of another width than was tuned they keep their proportions."""
        whole, total = out.shape[-1], sum(columns)
        if any(whole * size % total for size in columns):
            raise BundleError(f"columns of {self.name} are shared as {':'.join(map(str, columns))}", whole, "pass such a B")
        return [whole * size // total for size in columns]

    def _compiled_several(self, inputs: Sequence[Any], out: Any) -> Any:
        """A call with several outputs, as torch.compile sees it."""
        calls = self._torch.ops.tilescale
        if out is None:
            return tuple(calls.call_several(list(inputs), self.key))
        if not isinstance(out, tuple | list):
            raise BundleError(f"out is {self._outputs} tensors", "one", "pass them all, in the order of what is returned")
        calls.call_several_out(list(inputs), list(out), self.key)
        return out

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
        if mesh is not None and spec.columns:
            raise BundleError("products of several B are of local tensors", "a DTensor", "pass .to_local()")
        if mesh is not None and self._members is not None:
            tensors.check_mesh(mesh, self._members.ranks, self.name)
        local = [tensors.unwrap(v, each.tensor, each.name) for v, each in zip(inputs, spec.operands, strict=True)]
        tensors.check_no_gradient(torch, local)
        results = self._dispatch(local, None if out is None else self._targets(out))
        if out is not None:
            return out
        if mesh is not None:
            results = [self._wrap(result, tensor, mesh, local)
                       for result, (_, tensor) in zip(results, spec.outputs, strict=True)]
        return tuple(results) if len(results) > 1 else results[0]

    def _targets(self, out: Any) -> list[Any]:
        """The local tensors of what a caller passes as `out`: one, or as many as there are outputs."""
        outputs = self._spec.outputs
        given = tuple(out) if len(outputs) > 1 and isinstance(out, tuple | list) else (out,)
        if len(given) != len(outputs):
            raise BundleError(f"out is {', '.join(name for name, _ in outputs)}", f"{len(given)} tensors", "pass them all")
        return [tensors.unwrap(value, tensor, name) for value, (name, tensor) in zip(given, outputs, strict=True)]

    def empty_output(self, inputs: Sequence[Any]) -> Any:
        """A tensor like the result of a call with these inputs, with nothing in it; works on fake and meta tensors."""
        return self.empty_outputs(inputs)[0]

    def empty_outputs(self, inputs: Sequence[Any]) -> list[Any]:
        """The same for all of Spec.outputs."""
        serving = self._serving(inputs)
        if serving is not None:
            shapes = [local.shape for local in tensors.local_outputs(serving.variant.spec, self.rank)]
        else:
            given = self._as_declared(inputs)
            shapes = self._library_shapes(self._library(inputs), given)
        return [inputs[0].new_empty(shape, dtype=getattr(self._torch, tensor.dtype))
                for shape, (_, tensor) in zip(shapes, self._spec.outputs, strict=True)]

    def symmetric_input(self) -> Any:
        """The memory that peers read what is sent from, as a tensor to write to; for inputs="symmetric"."""
        for serving in self._servings:
            sent = gathered_operand(serving.variant.spec)
            address = serving.prepared.operand(self.names[sent])
            if address is not None:
                local = tensors.local_inputs(serving.variant.spec, self.rank)[sent]
                turned = local.strides != tensors.contiguous(local.shape)
                shape = local.shape[::-1] if turned else local.shape
                rows, columns = shape[0], tensors.contiguous(shape)[0]
                matrix = Matrix(address, rows, columns, (columns, 1), local.dtype)
                found = tensor_at(self._torch, matrix).view(shape)
                return found.t() if turned else found
        raise BundleError(f"{self.name} reads an operand of its peers in place", "it does not", "pass any tensor")

    # -- dispatch ------------------------------------------------------------------------------------------------------
    def _serving(self, inputs: Sequence[Any]) -> Serving | None:
        for serving in self._servings:
            tuned = tensors.local_inputs(serving.variant.spec, self.rank)
            if all(tensors.has_shape(value, local) for value, local in zip(inputs, tuned, strict=True)):
                return serving
        return None

    def _dispatch(self, inputs: Sequence[Any], outs: Sequence[Any] | None) -> Sequence[Any]:
        serving = self._serving(inputs)
        if serving is None:
            return self._run_library(inputs, outs)
        spec, torch = serving.variant.spec, self._torch
        given = [tensors.as_declared(v, local)
                 for v, local in zip(inputs, tensors.local_inputs(spec, self.rank), strict=True)]
        operands = {n: tensors.address_of(v, n) for n, v in zip(self.names, given, strict=True)}
        local = tensors.local_outputs(spec, self.rank)
        if outs is None:
            outs = [torch.empty(each.shape, dtype=getattr(torch, each.dtype), device=given[0].device) for each in local]
        for out, each in zip(outs, local, strict=True):
            operands[each.name] = tensors.address_of(tensors.as_declared(out, each), each.name)
        serving.prepared(operands, int(torch.cuda.current_stream(given[0].device).cuda_stream))
        return outs

    def _run_library(self, inputs: Sequence[Any], outs: Sequence[Any] | None) -> Sequence[Any]:
        library, given = self._library(inputs), self._as_declared(inputs)
        if not self._warned:
            self._warned = True
            warnings.warn(f"{self.name} runs as library calls: {self._why(inputs)}", LibraryFallback, stacklevel=5)
        local = [tensors.Local(name, shape, tensors.contiguous(shape), tensor.dtype) for shape, (name, tensor) in zip(
            self._library_shapes(library, given), self._spec.outputs, strict=True)]
        if outs is None:
            outs = [given[0].new_empty(each.shape, dtype=getattr(self._torch, each.dtype)) for each in local]
        library(given, *(tensors.as_declared(out, each) for out, each in zip(outs, local, strict=True)))
        return outs

    def _library_shapes(self, library: Unfused, given: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Local shapes of all outputs: of the first, of the first operand with the rows of all ranks where that is returned
        too, and of the first again for what epilogues hand out besides."""
        found, spec = tuple(library.shape([value.shape for value in given], self._world)), self._spec
        rows, *rest = given[0].shape
        return [found, *((rows * self._world, *rest) for _ in spec.operation.beside(spec)), *[found] * len(spec.aside)]

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
        if self._spec.operation.compute == "gemm" and not is_routed(self._spec):
            k, b = self._rows_of_b(inputs[0].shape[1]), inputs[1]
            as_weight = self._spec.inputs[1].order == "col" and b.shape[0] != k and b.shape[1] == k
            found[1] = b.t() if as_weight else b
            if found[1].shape[0] != k:
                raise BundleError(f"a has as many columns as b has rows: {k}", found[1].shape[0], "pass such tensors")
        return found

    def _rows_of_b(self, columns: int) -> int:
        """Of this rank, where its A has `columns`: one of them is a shard where the contraction is gathered."""
        if not contracts(self._spec):
            return columns
        return columns // self._world if gathered_operand(self._spec) else columns * self._world

    def _wrap(self, result: Any, output: Tensor, mesh: Any, inputs: Sequence[Any]) -> Any:
        """The local result as a DTensor placed as declared. Shards of a sum may be uneven: the sum says how large it is."""
        from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

        dim = output.shard_dim
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
