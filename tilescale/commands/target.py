"""What a command works on: the workloads of a recipe, or a quick declaration by options."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilescale.commands.output import UsageError, reported
from tilescale.errors import nearest, printable

if TYPE_CHECKING:
    from tilescale.schedules.space import Space
    from tilescale.spec.op import Spec
    from tilescale.spec.topology import Topology

DEFAULT_TOPOLOGY = "scale_model:8xH200-NVSwitch"
DEFAULT_RANKS = 4
DEFAULT_DTYPE = "bfloat16"

Shape = Annotated[str | None, typer.Option("--shape", help="With --op: MxNxK, or RxC of a tensor.")]
OPS_HELP = "Instead of a recipe: ag_gemm, gemm_rs, gemm_ar, gemm, all_gather, all_reduce, ..."
Op = Annotated[str | None, typer.Option("--op", help=OPS_HELP)]
Dtype = Annotated[str | None, typer.Option("--dtype", help=f"With --op; {DEFAULT_DTYPE} if left out.")]
Ranks = Annotated[int | None, typer.Option("--ranks", min=1, help=f"With --op; {DEFAULT_RANKS} if left out.")]
TopologyName = Annotated[
    str | None, typer.Option("--topology", help=f"NAME, scale_model:NAME, shared_gpu or FILE.toml; {DEFAULT_TOPOLOGY}.")
]
Workload = Annotated[str | None, typer.Option("--workload", "-w", help="One workload of the recipe.")]
RecipeFile = Annotated[Path | None, typer.Argument(help="A recipe (TOML).", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
ScheduleText = Annotated[
    str | None,
    typer.Option("--schedule", "-s", help="The start of a digest, or knob=value,knob=value; what is left out is free."),
]


@dataclass(frozen=True)
class Declared:
    """A quick declaration, as options give it."""

    op: str | None = None
    shape: str | None = None
    dtype: str | None = None
    ranks: int | None = None
    topology: str | None = None

    @property
    def element(self) -> str:
        return self.dtype or DEFAULT_DTYPE


@dataclass(frozen=True)
class Target:
    """A named spec, with the recipe's restriction of its space."""

    name: str
    spec: Spec
    restrict: dict[str, Sequence[str | int]] = field(default_factory=dict)

    @functools.cached_property
    def space(self) -> Space:
        from tilescale.schedules.space import Space

        return Space(self.spec, self.restrict)


def takes_targets(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose first parameter is its targets: gives it the options that name them, and reports its errors."""
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    keyword = inspect.Parameter.KEYWORD_ONLY
    options = {
        "recipe": RecipeFile,
        "workload": Workload,
        "op": Op,
        "shape": Shape,
        "dtype": Dtype,
        "ranks": Ranks,
        "topology": TopologyName,
    }
    shared = [
        inspect.Parameter(name, keyword, default=None, annotation=hint)
        for name, hint in options.items()
    ]

    @functools.wraps(command)
    def run(*, recipe: Path | None, workload: str | None, **rest: Any) -> None:
        declared = Declared(**{name: rest.pop(name) for name in ("op", "shape", "dtype", "ranks", "topology")})
        with reported():
            command(_named(recipe, workload, declared, rest), **rest)

    signature = inspect.Signature([*shared, *(parameter.replace(kind=keyword) for parameter in own)])
    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    return run


def _named(recipe: Path | None, workload: str | None, declared: Declared, options: dict[str, Any]) -> tuple[Target, ...]:
    """The targets of a command line whose command may go over worlds and shipped recipes, or need none at all."""
    if options.get("replay") is not None:
        others = {"RECIPE": recipe, "--workload": workload, "--op": declared.op, "--worlds": options.get("worlds")}
        for name, value in others.items():
            if value is not None:
                raise UsageError("--replay takes all from its file", f"{name} {value}", f"leave {name} out")
        return ()
    if options.get("worlds") is None and not (options.get("everything") and recipe is None and declared.op is None):
        return targets_of(recipe, workload, declared)
    from tilescale.commands.worlds import targets_on

    return targets_on(recipe, workload, declared, options.get("worlds"))


def no_declaration(declared: Declared) -> None:
    """Raises UsageError where options declare what a recipe does."""
    for name in ("shape", "dtype", "ranks", "topology"):
        if getattr(declared, name) is not None:
            raise UsageError(f"--{name} goes with --op", getattr(declared, name), "the recipe says it")


def targets_of(recipe: Path | None, workload: str | None, declared: Declared) -> tuple[Target, ...]:
    """The targets that a command line names. Raises UsageError, RecipeError and the errors of declarations."""
    if (recipe is None) == (declared.op is None):
        raise UsageError("a command works on a recipe or on --op with --shape", recipe and "both", "give one of them")
    if recipe is None:
        if workload is not None:
            raise UsageError("--workload chooses from a recipe", workload, "leave it out with --op")
        spec = declare(declared)
        return (Target(spec.op, spec),)
    from tilescale.tuner.recipe import read

    no_declaration(declared)
    read_recipe = read(recipe)
    restrict: dict[str, Sequence[str | int]] = dict(read_recipe.restrict)
    name = None if workload is None else printable(workload)
    specs = read_recipe.specs if name is None else {name: read_recipe.spec(name)}
    return tuple(Target(name, spec, restrict) for name, spec in specs.items())


def declare(declared: Declared) -> Spec:
    """The spec of a quick declaration."""
    import tilescale as ts

    if declared.shape is None:
        raise UsageError("--op needs --shape", "none", "such as --shape 4096x10240x8192")
    sizes = _sizes(declared.shape)
    topology = topology_named(declared.topology or DEFAULT_TOPOLOGY, declared.ranks)
    moved = {"all_gather": (ts.FullRow, ts.Replicate), "reduce_scatter": (ts.Partial, ts.FullRow),
             "all_reduce": (ts.Partial, ts.Replicate), "all_to_all": (ts.FullRow, ts.FullCol),
             "broadcast": (ts.Replicate, ts.Replicate), "shift": (ts.FullRow, ts.FullRow)}
    if declared.op in moved:
        view, to = moved[declared.op]
        tensor = ts.Tensor(sizes, declared.element, view)
        if declared.op == "shift":
            return ts.shift(tensor, 1, topology)
        return ts.redistribute(tensor, to, topology, root=0 if declared.op == "broadcast" else None)
    from tilescale.tuner.models import ALONG, VIEWS

    if str(declared.op).startswith("moe_"):
        raise UsageError("--op declares what needs no more than sizes", declared.op,
                         "declare it in a recipe, as recipes/moe_*")
    if declared.op is None or declared.op not in {*VIEWS, *ALONG, "summa"}:
        raise UsageError("--op is known", declared.op, nearest(declared.op, sorted([*VIEWS, *ALONG, *moved, "summa"])))
    if len(sizes) != 3:
        raise UsageError("--shape of a matmul is MxNxK", declared.shape, "such as 4096x10240x8192")
    m, n, k = sizes
    if declared.op in (*ALONG, "summa"):
        view, *orders = ALONG.get(declared.op, (ts.Block, "row", "row"))
        left, right = (ts.Tensor(size, declared.element, view, order)
                       for size, order in zip(((m, k), (k, n)), orders, strict=True))
        return ts.matmul(left, right, view, topology)
    a, b, out = VIEWS[declared.op]
    return ts.matmul(ts.Tensor((m, k), declared.element, a), ts.Tensor((k, n), declared.element, b, "col"), out, topology)


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split("x"))
    except ValueError:
        raise UsageError("--shape is sizes joined by x", repr(text), "such as 4096x10240x8192") from None


def topology_named(text: str, ranks: int | None) -> Topology:
    """The topology that an option names: NAME, scale_model:NAME, shared_gpu or a TOML file."""
    from tilescale.spec.topology import Topology

    if text == "shared_gpu":
        return Topology.shared_gpu(DEFAULT_RANKS if ranks is None else ranks)
    if text.startswith("scale_model:"):
        return Topology.scale_model(text.removeprefix("scale_model:"), DEFAULT_RANKS if ranks is None else ranks)
    topology = Topology.load(text) if text.endswith(".toml") else Topology.named(text)
    return topology if ranks is None else topology.with_ranks(ranks)


def single(targets: Sequence[Target]) -> Target:
    """The one target of a command that works on one."""
    if len(targets) != 1:
        names = ", ".join(target.name for target in targets)
        raise UsageError("this command works on one workload", f"{len(targets)}", f"choose with --workload: {names}")
    return targets[0]
