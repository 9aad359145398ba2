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
    from tilescale.spec import detect

    try:
        model = detect.model_at_hand()
    except TopologyError as error:
        return f"a GPU is at hand, but no topology describes it ({error.actual})"
    return f"a GPU is at hand ({model})" if model else "no GPU is at hand"


def choose(spec: Spec) -> Choice:
    """The runner for this machine and spec: a recorded space replayed.

    Measuring on a GPU is not built, and where there is one, the note says so. Raises RunnerError without a recording.
    """
    from tilescale.runtime.replay import ReplayRunner, find_recorded

    gpu = gpu_note()
    if not gpu.startswith("no GPU"):
        gpu += "; measuring on it is not built yet"
    space = find_recorded(spec)
    if space is None:
        raise RunnerError(
            f"tuning {spec.label} on {spec.topology.name} needs times",
            f"{gpu}, and no space of this spec (digest {spec.digest}) is recorded",
            "space, verify, emulate, emit and predict work without times; `tilescale space --record` records a space "
            "of predicted times; or pass runner=",
        )
    runner = ReplayRunner(space)
    rows = f"{len(space.rows)} schedules, recorded {space.created}"
    if runner.source == "predicted":
        return Choice(runner, f"{gpu}: times are predicted by the analytic model ({rows})")
    return Choice(runner, f"{gpu}: times are replayed from a recording ({space.source}, {rows})")
