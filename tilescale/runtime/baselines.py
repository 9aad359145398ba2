"""Baselines by name: what a finished kernel is compared with, in the same session and in turn with it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilescale.errors import RunnerError, nearest
from tilescale.runtime.measure import Samples
from tilescale.schedules.ragged import ragged
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import Space
from tilescale.spec.contraction import in_blocks
from tilescale.spec.op import Spec
from tilescale.spec.result import ONE_BYTE, kind_of

Round = Mapping[str, Samples]  # of a race: samples of every rank by name

# name -> what it is
NAMES = {
    "unfused": "communicate by peer copies, whose fastest way counts (pushed or pulled, one shot or two), and one library "
               "product before or after; epilogues of a product by torch",
    "compute_only": "the library product alone, its operand gathered already, nothing summed over ranks",
    "torch.symm_mem": "torch's symmetric memory: fused operators, or collectives by copies (ranks that share a GPU)",
    "torch.symm_mem.one_shot": "the same, where every rank reads the addends of all, behind a library product",
    "torch.symm_mem.two_shot": "the same, where every rank sums a part and sends it to all",
    "nccl+cublas": "NCCL, and one library product before or after (ranks with GPUs of their own)",
}
# by kind of move (see spec/result.py)
SYMM_MEM: dict[str, tuple[str, ...]] = {
    "gather": ("torch.symm_mem",),
    "reduce_scatter": ("torch.symm_mem", "torch.symm_mem.one_shot"),
    "all_reduce": ("torch.symm_mem.one_shot", "torch.symm_mem.two_shot"),
}


@dataclass(frozen=True)
class Timing:
    """What was timed under a name; `message` says why there are no samples, where there are none. As Measurement."""

    name: str
    status: str
    source: str
    samples_us: Samples = ()
    message: str = ""
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    @property
    def calls_us(self) -> tuple[float, ...]:
        """The value of each sample: the slowest rank's time, microseconds."""
        return tuple(max(call) for call in zip(*self.samples_us, strict=True))

    @property
    def value_us(self) -> float:
        """Median over samples of the maximum over ranks, microseconds; nan unless ok."""
        return statistics.median(self.calls_us) if self.ok else math.nan


def _symmetric(spec: Spec) -> tuple[str, ...]:
    """What torch's symmetric memory offers: of gathers, those of the rows of the first operand."""
    moves = spec.operation.moves
    rows = not moves or moves[0].kind != "gather" or (moves[0].operand, moves[0].dim) == (0, 0)
    return SYMM_MEM.get(kind_of(spec), ()) if rows else ()


def names_for(spec: Spec) -> tuple[str, ...]:
    """The baselines that make sense for a spec."""
    if ragged(spec):
        return ("unfused",)  # libraries exchange rows whose number the host knows, and wait for it
    if spec.attribute("scales") == "block":
        return ()  # libraries take these scales in layouts of their own
    if spec.operation.compute == "gemm" and spec.inputs[0].dtype in ONE_BYTE:  # without schedules of library products
        moves = spec.topology.kind == "real" and not spec.local and not spec.then
        return ("compute_only", "nccl+cublas") if moves else ("compute_only",)
    if spec.then:
        return _behind_epilogues(spec)
    if spec.local:
        return ("compute_only",)
    own = ("unfused", "compute_only") if spec.operation.compute == "gemm" else ("unfused",)
    if in_blocks(spec):
        return own  # libraries gather one operand
    if spec.topology.kind == "scale_model":
        return own  # a peer's copies are not charged to the link clock
    return (*own, "nccl+cublas") if spec.topology.kind == "real" else (*own, *_symmetric(spec))


def _behind_epilogues(spec: Spec) -> tuple[str, ...]:
    """Those that apply the epilogues too, and the product alone."""
    if spec.operation.compute != "gemm":
        return ("unfused",)
    charged = spec.topology.kind == "scale_model" and not spec.local  # as above
    lacking = spec.inputs[0].dtype in ONE_BYTE or (charged and by_library(spec))
    return ("compute_only",) if lacking else ("unfused", "compute_only")


def by_library(spec: Spec) -> bool:
    """Whether `unfused` is a path of library calls: where epilogues follow a product itself, which no schedule leaves to
    the library. Sums over ranks apply theirs behind library products."""
    return bool(spec.then) and kind_of(spec) not in ("reduce_scatter", "all_reduce")


def check_names(spec: Spec, names: tuple[str, ...]) -> None:
    """RunnerError for a name that is unknown, or that would compare what cannot be compared."""
    for name in names:
        if name not in NAMES:
            raise RunnerError("a baseline is known", name, nearest(name, NAMES))
        if name == "nccl+cublas" and spec.topology.kind != "real":
            raise RunnerError("NCCL needs a GPU a rank", spec.topology.name, "use torch.symm_mem or unfused")
        if spec.then and name not in names_for(spec):
            raise RunnerError("what is compared does the same work, epilogues too",
                              f"{name} for {spec.label}", "compare with " + ", ".join(names_for(spec)))
        if ragged(spec) and name != "unfused":
            raise RunnerError("what is compared needs no number of rows on the host", f"{name} for {spec.label}",
                              "compare with unfused")
        if not name.startswith("torch.symm_mem"):
            continue
        if spec.topology.kind == "scale_model":
            raise RunnerError("what is compared is charged to the same links; torch's copies are not",
                              spec.topology.name, "compare on Topology.shared_gpu, or with unfused")
        offered = _symmetric(spec)
        if name not in offered:
            raise RunnerError(f"torch's symmetric memory has this for {spec.op}: {', '.join(offered) or 'nothing'}", name,
                              "use one of these, or unfused")


def unfused_schedules(spec: Spec) -> tuple[Schedule, ...]:
    """The schedules behind `unfused`, whose fastest is the baseline: of each algorithm but rings and each direction, copies
    by the most blocks there are, and the library; a generated product where the library cannot take what was gathered as
    one matrix."""
    found: tuple[Schedule, ...] = ()
    for compute in ("library", "generated") if spec.operation.compute == "gemm" else ("generated",):
        limits: dict[str, list[str | int]] = {"transport": ["peer_copy"], "overlap": ["none"], "compute": [compute]}
        found = found or Space(spec, {name: tuple(values) for name, values in limits.items()}).schedules
    plain: dict[tuple[str, str], Schedule] = {}
    for schedule in sorted(found, key=lambda each: (each.num_comm_blocks, each.digest)):
        if schedule.algorithm != "ring":
            plain[schedule.algorithm, schedule.direction] = schedule
    if not plain:
        raise RunnerError("the space holds an unfused schedule", spec.label, "choose another baseline")
    return tuple(plain[key] for key in sorted(plain))


def fastest_of(rounds: Sequence[Round], names: Sequence[str]) -> str:
    """Of what was timed under `names` in all rounds, that with the smallest median of the slowest rank's times."""
    return min(names, key=lambda name: statistics.median(
        max(call) for each in rounds for call in zip(*each[name], strict=True)))
