"""The value that every room downstream starts from: one operation on given tensors and ranks."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property

from tilescale import canon
from tilescale.errors import SpecError, nearest
from tilescale.spec.epilogue import EPILOGUES, Epilogue
from tilescale.spec.operand import INPUTS, Operand, check_names
from tilescale.spec.operation import OPERATIONS, Operation
from tilescale.spec.tensor import Dim, Tensor
from tilescale.spec.topology import Topology
from tilescale.spec.views import BlockView, PartialView

PLACEMENTS = ("ordinary", "symmetric")
SUMMING = ("reduce_scatter", "all_reduce")  # kinds of moves that add up what ranks have
# Operations with epilogues.
FINISHED = ("gemm", "ag_gemm", "gemm_rs", "gemm_ar", "reduce_scatter", "all_reduce", "moe_dispatch_gemm")
STORED = ("bfloat16", "float16", "float32")  # what kernels round the result of an epilogue to
Attribute = int | str


@dataclass(frozen=True)
class Spec:
    """One operation, derived from a declaration (see op.py, whose functions make it).

    ``placement``: "ordinary" inputs are staged into peer-visible memory as part of the operation; "symmetric" ones lie
    there already. ``deterministic``: the same bits every call. ``then``: names of epilogues. ``attributes``: sorted
    (name, value) pairs of the operation itself, such as ("k", 1) of a shift. Raises SpecError.
    """

    op: str
    inputs: tuple[Tensor, ...]
    output: Tensor
    topology: Topology
    placement: str = "ordinary"
    deterministic: bool = False
    then: tuple[str, ...] = ()
    attributes: tuple[tuple[str, Attribute], ...] = ()

    def __post_init__(self) -> None:
        if self.placement not in PLACEMENTS:
            raise SpecError('inputs is "ordinary" or "symmetric"', repr(self.placement), nearest("", PLACEMENTS))
        if not isinstance(self.deterministic, bool):
            raise SpecError("deterministic is True or False", repr(self.deterministic), "leave it out for False")
        object.__setattr__(self, "attributes", tuple(sorted(self.attributes)))
        object.__setattr__(self, "then", tuple(self.then))
        if not self.inputs:
            raise SpecError("an operation has inputs", "none", "declare its tensors")
        for name in self.then:
            if name not in EPILOGUES:
                raise SpecError("an epilogue is known", repr(name), nearest(name, EPILOGUES.names()))
        operation = self.operation
        bounds = {dim.name: dim for dim in self.dims}
        for dim in self.dims:
            if bounds[dim.name] != dim:
                raise SpecError("a Dim has one range in a declaration", f"{dim} and {bounds[dim.name]}", "use one Dim")
        if operation.moves and self.world < 2:
            raise SpecError(
                f"{self.op} is between at least two ranks",
                f"{self.world} rank of {self.topology.name}",
                "use Topology.shared_gpu(ranks=4) or .scale_model(...) to share one GPU, or torch on one rank",
            )
        operation.check(self)
        for epilogue in self.epilogues:
            check_epilogue(self, epilogue)
        check_names(self.extras)

    @cached_property
    def operation(self) -> Operation:
        """Its entry in the registry of operations."""
        return OPERATIONS[self.op]

    @cached_property
    def epilogues(self) -> tuple[Epilogue, ...]:
        """Those of ``then``, in their order."""
        return tuple(EPILOGUES[name] for name in self.then)

    @cached_property
    def extras(self) -> tuple[Operand, ...]:
        """Operands beside ``inputs``, in the order in which callers pass them: the operation's, then the epilogues'."""
        own = self.operation.extras(self)
        return (*own, *(extra for epilogue in self.epilogues for extra in epilogue.extras(self)))

    @cached_property
    def results(self) -> tuple[Operand, ...]:
        """What is written beside ``output``, into operands that callers pass."""
        return self.operation.results(self)

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """All that a caller passes, by name and in order: ``inputs``, then ``extras``, then ``results``."""
        inputs = (Operand(name, tensor) for name, tensor in zip(INPUTS, self.inputs, strict=False))
        return (*inputs, *self.extras, *self.results)

    @property
    def extended(self) -> bool:
        """Whether a product is more than that of its inputs: it has epilogues, or reads operands beside them."""
        return bool(self.then or self.extras)

    @property
    def world(self) -> int:
        """Number of ranks that take part."""
        return self.topology.ranks

    @property
    def flops(self) -> int:
        """Floating-point operations of the busiest rank; a Dim counts with its upper bound."""
        return self.operation.flops(self)

    @property
    def link_bytes(self) -> int:
        """Bytes that the rank which lacks most must receive over links, at the least."""
        return self.operation.link_bytes(self)

    @property
    def digest(self) -> str:
        """Identity of the work and of the structure it runs on."""
        work = [self.op, self.inputs, self.output, self.placement, self.deterministic, self.then, self.attributes]
        return canon.digest([work, self.topology.digest])

    @property
    def local(self) -> bool:
        """Whether nothing crosses a link: a local GEMM."""
        return not self.operation.moves

    @property
    def without_kernels(self) -> str:
        """Why there are no kernels for it and what to do instead, in a sentence; "" where there are."""
        operation = self.operation
        if not operation.kernels:
            return operation.remedy
        return operation.limits(self) or epilogue_limits(self) or _empty_limits(self)

    @property
    def outputs(self) -> tuple[tuple[str, Tensor], ...]:
        """Names and tensors of what a call returns, in order: the output, "out", and what comes beside it."""
        return (("out", self.output), *self.operation.beside(self), *((each.name, self.output) for each in self.aside))

    @property
    def aside(self) -> tuple[Epilogue, ...]:
        """What epilogues hand out besides: the last of ``outputs``."""
        return tuple(epilogue.aside for epilogue in self.epilogues if epilogue.aside is not None)

    @property
    def columns(self) -> tuple[int, ...]:
        """Columns of each product on a rank, where several B lie side by side; () where there is one."""
        found = self.attribute("columns")
        return tuple(int(size) // self.world for size in str(found).split(",")) if found else ()

    @property
    def kernels(self) -> bool:
        """Whether schedules with kernels exist for it."""
        return not self.without_kernels

    def require_kernels(self) -> None:
        """SpecError with the remedy where there are no kernels; called where a spec is tuned or lowered."""
        if self.without_kernels:
            raise SpecError(f"{self.op} has kernels for this declaration", self.label, self.without_kernels)

    @property
    def mnk(self) -> tuple[int, int, int]:
        """Global (M, N, K) of a matmul, M of all experts where each has a matrix of its own; a Dim counts with its upper
        bound. SpecError for other operations."""
        if self.operation.compute != "gemm":
            raise SpecError("M, N, K are those of a matmul", self.op, "use inputs[0].sizes")
        a, b = self.inputs[0].sizes, self.inputs[1].sizes
        return a[0], b[-1], a[1]

    @property
    def dims(self) -> tuple[Dim, ...]:
        """Sizes known only at run time, without repetition, in order of appearance."""
        return tuple(dict.fromkeys(dim for tensor in (*self.inputs, self.output) for dim in tensor.dims))

    def bind(self, **sizes: int) -> Spec:
        """The spec with its Dims given sizes: ``spec.bind(M=4096)``. SpecError for an unknown name or a bad value."""
        known = [dim.name for dim in self.dims]
        for name in sizes:
            if name not in known:
                raise SpecError("a bound size is a Dim of the declaration", repr(name), nearest(name, known))
        inputs = tuple(tensor.bind(**sizes) for tensor in self.inputs)
        return dataclasses.replace(self, inputs=inputs, output=self.output.bind(**sizes))

    def attribute(self, name: str, default: Attribute | None = None) -> Attribute | None:
        return dict(self.attributes).get(name, default)

    @property
    def label(self) -> str:
        """Short text such as ``ag_gemm 4096x10240x8192 bfloat16 w4`` (M x N x K for a matmul)."""
        first = self.inputs[0]
        shape: tuple[int | Dim, ...] = first.shape
        if self.operation.compute == "gemm":
            shape = (first.shape[0], self.inputs[1].shape[-1], first.shape[1])
        return f"{'+'.join((self.op, *self.then))} {'x'.join(map(str, shape))} {first.dtype} w{self.world}"


def check_epilogue(spec: Spec, epilogue: Epilogue) -> None:
    """SpecError where an epilogue does not apply to the declaration."""
    what = f"{epilogue.name} after {spec.op}"
    sums = any(move.kind in SUMMING for move in spec.operation.moves)
    if spec.operation.compute != "gemm" and not sums:
        raise SpecError("an epilogue follows a product or a sum over ranks", what, "apply it with torch to the output")
    _check_routed(spec, epilogue, what)
    if spec.then.count(epilogue.name) > 1:
        raise SpecError("an epilogue is named once", list(spec.then), "leave one out")
    if isinstance(spec.output.view, PartialView) and not epilogue.linear:
        raise SpecError("an epilogue follows the sum over ranks, unless it only adds a tensor that is a sum as well",
                        f"{what}, output Partial", "sum first: declare the output Replicate or FullRow")
    if isinstance(spec.output.view, BlockView):
        raise SpecError("an epilogue follows a product whose columns are whole, or cut over all ranks",
                        f"{what}, output Block", "apply it with torch to the output")
    epilogue.check(spec)


def _check_routed(spec: Spec, epilogue: Epilogue, what: str) -> None:
    """Of products of experts: those that are sent on are parts of a sum, and where a row lies the device alone knows."""
    kinds = {move.kind for move in spec.operation.moves}
    if "combine" in kinds:
        raise SpecError("an epilogue follows products that are complete, not those that a combine weighs and sums", what,
                        "declare it behind the moe_dispatch_gemm before, or apply it with torch to the output")
    if "dispatch" in kinds and any(extra.rows for extra in epilogue.extras(spec)):
        raise SpecError("an epilogue of products of experts reads no tensor of the shape of the output, whose rows have "
                        "their places on the device alone", what, "apply it with torch to the output")


def epilogue_limits(spec: Spec) -> str:
    """Why kernels have no epilogue for a spec, and what to do instead; "" where they can."""
    if spec.then and spec.attribute("gathered"):
        return "epilogues have no kernels beside gathered=True: leave one of them out, or apply them with torch"
    if spec.then and spec.op not in FINISHED:
        return f"epilogues have kernels after {', '.join(FINISHED)}: apply them with torch to the output"
    if spec.then and spec.output.dtype not in STORED:
        return f"epilogues end in {', '.join(STORED)}: declare out_dtype so, or apply them with torch to the output"
    return ""


def _empty_limits(spec: Spec) -> str:
    """Why there are no kernels where a tensor holds nothing; "" where there are: an operation that gathers or sums up no
    rows does nothing, but ranks still wait for each other in it, as in any other call. One that gathers a contraction, or
    has matrices in blocks, multiplies something."""
    if not any(0 in tensor.sizes for tensor in (*spec.inputs, spec.output)):
        return ""
    gathered = any((move.kind, move.operand, move.dim) == ("gather", 0, 0) for move in spec.operation.moves)
    summed = any(move.kind in ("reduce_scatter", "all_reduce") for move in spec.operation.moves)
    generated = spec.operation.compute == "gemm" and (  # which multiplies something
        spec.inputs[0].itemsize == 1 or (gathered and bool(spec.then)))
    if (gathered or summed) and not generated and all(0 not in sizes for sizes in (
            spec.inputs[0].sizes[1:], spec.output.sizes[1:], *(tensor.sizes for tensor in spec.inputs[1:]))):
        return ""
    filled = "fill an output with zeros" + (f" and apply {', '.join(spec.then)} to them with torch" if spec.then else "")
    return f"kernels move or multiply something: skip the call, and {filled} if only a contraction is empty"
