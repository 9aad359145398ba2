"""What dispatch and combine of expert parallelism share, alone and with the products of the experts: rules of a
declaration, operands, sizes, how tokens are routed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilescale.errors import SpecError
from tilescale.spec.operand import Operand
from tilescale.spec.ops._counts import count_attribute, largest
from tilescale.spec.tensor import Tensor
from tilescale.spec.views import FullRow

if TYPE_CHECKING:
    from tilescale.spec.declaration import Spec

MAX_TOP_K = 32
PLACES = 2**32 - 1  # of a token's row: expert and number in one
ROUTINGS = ("uniform", "histogram", "trace")


def tokens_of(spec: Spec) -> Tensor:
    """The tensor whose rows are tokens: the input of a dispatch, the output of a combine."""
    return spec.output if combines(spec) else spec.inputs[0]


def rows_of(spec: Spec) -> Tensor:
    """The tensor whose rows are those of experts: on every rank as many as all tokens could send there."""
    return spec.inputs[0] if combines(spec) else spec.output


def combines(spec: Spec) -> bool:
    """Whether rows come back from experts, rather than go there."""
    return spec.operation.moves[0].kind == "combine"


def multiplies(spec: Spec) -> bool:
    """Whether experts multiply their rows by matrices of their own, the second input."""
    return spec.operation.compute == "gemm"


def check_experts(spec: Spec) -> None:
    """Experts lie evenly on the ranks, a token goes to at most all of them, a rank has room for all rows, and the routing
    is one of ROUTINGS."""
    experts, top_k = count_attribute(spec, "experts"), count_attribute(spec, "top_k")
    if experts % spec.world:
        raise SpecError("experts lie evenly on the ranks", f"{experts} over {spec.world}", "use another world")
    if top_k > experts:
        raise SpecError("top_k is at most the number of experts", f"top_k={top_k}, experts={experts}",
                        f"use 1 to {experts}")
    if spec.dims:
        raise SpecError("sizes of dispatch and combine are numbers", ", ".join(map(str, spec.dims)),
                        "declare the most tokens, and pass -1 as the experts of those that a call lacks")
    wanted = spec.world * tokens_of(spec).sizes[0] * top_k
    if rows_of(spec).sizes[0] != wanted:
        raise SpecError("every rank has room for the rows of all tokens: world * tokens * top_k rows in all",
                        rows_of(spec).sizes[0], f"declare {wanted} rows")
    check_routing(str(spec.attribute("routing")), experts)


def check_routing(routing: str, experts: int) -> None:
    """"uniform", "histogram:" with a weight an expert, or "trace:" with a file and the digest of what it holds."""
    kind, _, rest = routing.partition(":")
    if kind not in ROUTINGS or (kind == "uniform") == bool(rest):
        raise SpecError("routing is uniform, histogram:WEIGHTS or trace:FILE#DIGEST", repr(routing),
                        "for example histogram:4,2,1,1")
    if kind == "histogram":
        weights = histogram_of(routing)
        if len(weights) != experts:
            raise SpecError("a histogram has a weight for every expert", f"{len(weights)} weights, {experts} experts",
                            f"give {experts} weights")
        if min(weights) < 0 or not sum(weights):
            raise SpecError("weights of a histogram are not negative, and one is above 0",
                            min(weights) if sum(weights) else "no weight above 0", "count the rows of each expert")
    if kind == "trace" and not all(rest.rpartition("#")[::2]):
        raise SpecError("a trace is named by its file and a digest of what it holds: trace:FILE#DIGEST", repr(routing),
                        "see docs/ops/moe_dispatch.md")


def histogram_of(routing: str) -> tuple[int, ...]:
    """The weights of a "histogram:" routing. Raises SpecError."""
    try:
        return tuple(int(part) for part in routing.partition(":")[2].split(","))
    except ValueError:
        raise SpecError("weights of a histogram are integers", repr(routing), "for example histogram:4,2,1,1") from None


def shares_of(spec: Spec) -> tuple[float, ...]:
    """Of all rows, those of the experts of each rank: as the histogram has it, else alike."""
    routing, experts = str(spec.attribute("routing")), count_attribute(spec, "experts")
    weights = histogram_of(routing) if routing.startswith("histogram:") else (1,) * experts
    local = experts // spec.world
    return tuple(sum(weights[rank * local:(rank + 1) * local]) / sum(weights) for rank in range(spec.world))


def moe_limits(spec: Spec) -> str:
    """Why kernels cannot route this, and what to do instead; "" where they can."""
    if spec.inputs[0].order != "row":
        return 'kernels route rows of row-major tensors: declare it with order="row", or pass .contiguous() of torch'
    experts, top_k = count_attribute(spec, "experts"), count_attribute(spec, "top_k")
    if top_k > MAX_TOP_K:
        return f"kernels route tokens to at most {MAX_TOP_K} experts: use torch.distributed.all_to_all_single"
    if experts // spec.world * largest(tokens_of(spec).sizes[0], spec.world) * top_k >= PLACES:
        return "places of rows have 32 bits: route fewer tokens at once"
    return ""


def indices_of(spec: Spec) -> Operand:
    """The experts of each token; what is no expert stands for none."""
    shape = (tokens_of(spec).shape[0], count_attribute(spec, "top_k"))
    return Operand("indices", Tensor(shape, "int32", FullRow), values="routing")


def weights_of(spec: Spec) -> Operand:
    """A weight for each expert of each token."""
    shape = (tokens_of(spec).shape[0], count_attribute(spec, "top_k"))
    return Operand("weights", Tensor(shape, "float32", FullRow))


def counts_of(spec: Spec) -> Operand:
    """On every rank: rows of each of its experts (columns) from each source (rows)."""
    shape = (spec.world * spec.world, count_attribute(spec, "experts") // spec.world)
    return Operand("counts", Tensor(shape, "int32", FullRow), values="counts")


def uniform_bytes(spec: Spec, each: int) -> int:
    """Bytes a rank exchanges where tokens meet all ranks alike, of ``each`` rows a token; the real number is known on the
    device alone."""
    tokens = tokens_of(spec)
    routed = largest(tokens.sizes[0], spec.world) * each * tokens.sizes[1] * tokens.itemsize
    return routed * (spec.world - 1) // spec.world
