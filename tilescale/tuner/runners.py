"""Where times come from when the caller names no runner."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tilescale.errors import RunnerError, TopologyError
from tilescale.runtime.runner import Runner
from tilescale.spec.op import Spec
from tilescale.spec.topology import Topology

if TYPE_CHECKING:
    from tilescale.runtime.replay import RecordedSpace


@dataclass(frozen=True)
class Choice:
    """A runner, and in words what it stands for."""

    runner: Runner
    note: str


def gpu_note() -> str:
    """In a sentence, whether a GPU is at hand."""
    model, problem = _at_hand()
    return problem or (f"a GPU is at hand ({model})" if model else "no GPU is at hand")


def _at_hand() -> tuple[str, str]:
    """The model of the GPU at hand ("" for none), and in words why it cannot be described."""
    from tilescale.spec import detect

    try:
        return detect.model_at_hand() or "", ""
    except TopologyError as error:
        return "", f"a GPU is at hand, but no topology describes it ({error.actual})"


REMEDY = (
    "`tilescale space RECIPE --record` records predicted times where tune finds them; or pass runner=. "
    "space, verify, emulate, emit and predict work without times"
)


def choose(spec: Spec, spaces: Path | None = None) -> Choice:
    """The runner for this machine and spec: its GPUs where they are those of the topology, else a recorded space.

    `spaces`: a folder of recorded spaces that is looked at before the user's and the shipped ones. Raises RunnerError
    where there are no times.
    """
    from tilescale.runtime.replay import ReplayRunner

    runner, note = _gpu_runner(spec)
    if runner is not None:
        return Choice(runner, note)
    space = _recorded(spec, spaces)
    if space is None:
        raise no_times([spec], REMEDY)
    replay = ReplayRunner(space)
    rows = f"{len(space.rows)} schedules, recorded {space.created}"
    if replay.source == "predicted":
        return Choice(replay, f"{note}: times are predicted by the analytic model ({rows})")
    return Choice(replay, f"{note}: times are replayed from a recording ({space.source}, {rows})")


def without_times(specs: Iterable[Spec], spaces: Path | None = None) -> list[Spec]:
    """Those of `specs` that neither the GPUs at hand nor a recording gives times for."""
    return [spec for spec in specs if not fits(spec.topology)[0] and _recorded(spec, spaces) is None]


def no_times(specs: Sequence[Spec], remedy: str) -> RunnerError:
    """The error for specs without times."""
    names = ", ".join(f"{spec.label} on {spec.topology.name} (digest {spec.digest})" for spec in specs)
    note = fits(specs[0].topology)[1]
    return RunnerError("tuning needs times", f"{note}, and no space is recorded of {names}", remedy)


def _recorded(spec: Spec, spaces: Path | None) -> RecordedSpace | None:
    from tilescale.runtime import replay

    folders = [replay.user_folder(), replay.SHIPPED]
    return replay.find_recorded(spec, folders if spaces is None else [spaces, *folders])


def fits(topology: Topology) -> tuple[bool, str]:
    """Whether the GPUs at hand are those of a topology, and in words what is at hand."""
    from tilescale.spec import detect

    note = gpu_note()
    model = _at_hand()[0]
    if not model:
        return False, note
    if model != topology.gpu.model:
        return False, f"{note}, and {topology.name} asks for {topology.gpu.model}"
    wanted, found = topology.ranks if topology.kind == "real" else 1, len(detect.devices())
    if found < wanted:
        return False, f"{note}: {found} of the {wanted} that {topology.name} asks for"
    return True, note


def _gpu_runner(spec: Spec) -> tuple[Runner | None, str]:
    """A runner on the GPUs at hand, or None where they are not those of the topology; and a note on either."""
    topology = spec.topology
    good, note = fits(topology)
    if not good:
        return None, note
    from tilescale.runtime.gpu_runner import GpuRunner

    how = "one a rank" if topology.kind == "real" else f"shared by {topology.ranks} ranks"
    return GpuRunner(topology), f"{note}: times are {topology.source.replace('_', ' ')} on it, {how}"
