"""Baselines by name: what a finished kernel is compared with, in the same session and in turn with it."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from tilescale.errors import RunnerError, nearest
from tilescale.runtime.measure import Samples
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import Space
from tilescale.spec.op import Spec

# name -> what it is
NAMES = {
    "unfused": "gather by peer copies, then one library product",
    "compute_only": "the library product alone, its operand gathered already",
    "torch.symm_mem": "torch's symmetric memory operators (ranks that share a GPU)",
    "nccl+cublas": "NCCL, then one library product (ranks with GPUs of their own)",
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


def names_for(spec: Spec) -> tuple[str, ...]:
    """The baselines that make sense for a spec."""
    multiplies = spec.operation.compute == "gemm"
    peers = "nccl+cublas" if spec.topology.kind == "real" else "torch.symm_mem"
    if spec.topology.kind == "scale_model":
        peers = ""  # a peer's copies are not charged to the link clock
    return tuple(name for name in ("unfused", "compute_only" if multiplies else "", peers) if name)


def check_names(spec: Spec, names: tuple[str, ...]) -> None:
    """RunnerError for a name that is unknown, or that would compare what cannot be compared."""
    for name in names:
        if name not in NAMES:
            raise RunnerError("a baseline is known", name, nearest(name, NAMES))
        if name == "nccl+cublas" and spec.topology.kind != "real":
            raise RunnerError("NCCL needs a GPU a rank", spec.topology.name, "use torch.symm_mem or unfused")
        if name == "torch.symm_mem" and spec.topology.kind == "scale_model":
            raise RunnerError("what is compared is charged to the same links; torch's copies are not",
                              spec.topology.name, "compare on Topology.shared_gpu, or with unfused")


def unfused_schedule(spec: Spec) -> Schedule:
    """The schedule behind `unfused`: copies by the most blocks there are, then the library."""
    compute = "library" if spec.operation.compute == "gemm" else "generated"
    limits: dict[str, list[str | int]] = {
        "transport": ["peer_copy"], "direction": ["push"], "overlap": ["none"], "compute": [compute]}
    found = Space(spec, {name: tuple(values) for name, values in limits.items()}).schedules
    if not found:
        raise RunnerError("the space holds an unfused schedule", spec.label, "choose another baseline")
    return max(found, key=lambda schedule: (schedule.num_comm_blocks, schedule.digest))
