"""Record a space: `python -m tilescale.tuner.record_space RECIPE -o DIR`.

Times come from the analytic model; with --measure N, from the GPU at hand, for a sample of N schedules that holds every
kind of schedule. What was measured before Ctrl-C is saved.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from pathlib import Path

from tilescale.errors import RunnerError, TilescaleError
from tilescale.runtime.measure import Measurement
from tilescale.runtime.replay import RecordedSpace
from tilescale.runtime.runner import Runner
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import Space
from tilescale.spec.op import Spec
from tilescale.tuner.prior import Predictor, Prior, analytic
from tilescale.tuner.recipe import read
from tilescale.tuner.runners import choose

_BATCH = 16  # schedules a call of the runner, which compiles ahead within one


def record(
    spec: Spec,
    space: Space | None = None,
    predictor: Predictor = analytic,
    progress: Callable[[int, int], None] | None = None,
) -> RecordedSpace:
    """The space of `spec` with predicted times: one sample a rank, all ranks alike, labelled "predicted"."""
    found = space or Space(spec)
    prior = Prior(spec, found.schedules, predictor, progress, exact=found.feasible)  # nothing estimated
    environment = (("arch", spec.topology.gpu.arch), ("gpu", spec.topology.gpu.model), ("model", "analytic"))
    rows = [
        Measurement(schedule, "ok", "predicted", ((time_us,),) * spec.world, environment=environment)
        for schedule, time_us in zip(prior.schedules, prior.times_us, strict=True)
    ]
    return RecordedSpace.of(spec, "predicted", rows)


def sample(space: Space, count: int, seed: int = 0, predictor: Predictor = analytic) -> list[Schedule]:
    """`count` schedules (all, where there are fewer): every kind in turn (transport, direction, overlap, compute), of
    each alternately the one with the best prior and a random one. None is through a switch: a machine has to be asked
    first."""
    prior = Prior(space.spec, space.schedules, predictor)
    expected = {schedule: (time_us, schedule.digest) for schedule, time_us in
                zip(prior.schedules, prior.times_us, strict=True)}
    kinds: dict[tuple[str, ...], list[Schedule]] = {}
    for s in sorted(space.without_multicast, key=expected.__getitem__):
        kinds.setdefault((s.transport, s.direction, s.overlap, s.compute), []).append(s)
    draw = random.Random(seed)
    chosen: list[Schedule] = []
    while kinds and len(chosen) < count:
        for kind in sorted(kinds):
            left = kinds[kind]
            chosen.append(left.pop(0))
            if left:
                chosen.append(left.pop(draw.randrange(len(left))))
            if not left:
                del kinds[kind]
    return chosen[:count]


def measure(spec: Spec, count: int, runner: Runner, progress: Callable[[int, int, Measurement], None] | None = None
            ) -> RecordedSpace:
    """A sample of the space, measured. Ctrl-C ends it early, with what there is."""
    wanted = sample(Space(spec), count)
    rows: list[Measurement] = []
    try:
        for at in range(0, len(wanted), _BATCH):
            for row in runner.measure(spec, wanted[at : at + _BATCH]):
                rows.append(row)
                if progress:
                    progress(len(rows), len(wanted), row)
    except KeyboardInterrupt:
        pass
    return RecordedSpace.of(spec, runner.source, rows)


def main(arguments: list[str] | None = None) -> int:
    """The module as a command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tilescale.tuner.record_space", description=__doc__)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--workload", help="record this one only")
    parser.add_argument("--measure", type=int, default=0, metavar="N", help="measure N schedules on the GPU at hand")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the recorded spaces")
    options = parser.parse_args(arguments)
    try:
        recipe = read(options.recipe)
        specs = {options.workload: recipe.spec(options.workload)} if options.workload else recipe.specs
        for name, spec in specs.items():
            space = _measured(spec, options.measure) if options.measure else record(spec)
            print(f"{name}: {len(space.rows)} schedules, {space.source}: {space.save(options.output)}", flush=True)
    except TilescaleError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _measured(spec: Spec, count: int) -> RecordedSpace:
    choice = choose(spec)
    if choice.runner.source in ("predicted", "replayed"):
        raise RunnerError("--measure needs a GPU of the topology", choice.note, "leave it out to record predicted times")

    def told(done: int, total: int, row: Measurement) -> None:
        if done % 50 == 0 or not row.ok:
            outcome = f"{row.value_us:.1f} us" if row.ok else f"{row.status}: {row.message}"
            print(f"{done} of {total}: {row.schedule.label}: {outcome}", file=sys.stderr, flush=True)

    try:
        return measure(spec, count, choice.runner, told)
    finally:
        choice.runner.close()


if __name__ == "__main__":
    sys.exit(main())
