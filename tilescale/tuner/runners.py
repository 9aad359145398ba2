"""Where times come from when the caller names no runner."""

from __future__ import annotations

from dataclasses import dataclass

from tilescale.errors import RunnerError, TopologyError
from tilescale.runtime.runner import Runner
from tilescale.spec.op import Spec


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


def choose(spec: Spec) -> Choice:
    """The runner for this machine and spec: its GPUs where they are those of the topology, else a recorded space.

    Raises RunnerError without either.
    """
    from tilescale.runtime.replay import ReplayRunner, find_recorded

    runner, note = _gpu_runner(spec)
    if runner is not None:
        return Choice(runner, note)
    space = find_recorded(spec)
    if space is None:
        raise RunnerError(
            f"tuning {spec.label} on {spec.topology.name} needs times",
            f"{note}, and no space of this spec (digest {spec.digest}) is recorded",
            "space, verify, emulate, emit and predict work without times; `tilescale space --record` records a space "
            "of predicted times; or pass runner=",
        )
    replay = ReplayRunner(space)
    rows = f"{len(space.rows)} schedules, recorded {space.created}"
    if replay.source == "predicted":
        return Choice(replay, f"{note}: times are predicted by the analytic model ({rows})")
    return Choice(replay, f"{note}: times are replayed from a recording ({space.source}, {rows})")


def _gpu_runner(spec: Spec) -> tuple[Runner | None, str]:
    """A runner on the GPUs at hand, or None where they are not those of the topology; and a note on either."""
    from tilescale.spec import detect

    note, topology = gpu_note(), spec.topology
    model = _at_hand()[0]
    if not model:
        return None, note
    if model != topology.gpu.model:
        return None, f"{note}, and {topology.name} asks for {topology.gpu.model}"
    wanted, found = topology.ranks if topology.kind == "real" else 1, len(detect.devices())
    if found < wanted:
        return None, f"{note}: {found} of the {wanted} that {topology.name} asks for"
    from tilescale.runtime.gpu_runner import GpuRunner

    how = "one a rank" if topology.kind == "real" else f"shared by {topology.ranks} ranks"
    return GpuRunner(topology), f"{note}: times are {topology.source.replace('_', ' ')} on it, {how}"
