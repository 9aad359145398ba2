"""Record a space whose times come from the analytic model: `python -m tilescale.tuner.record_space RECIPE`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from tilescale.errors import TilescaleError
from tilescale.runtime.measure import Measurement
from tilescale.runtime.replay import RecordedSpace
from tilescale.schedules.space import Space
from tilescale.spec.op import Spec
from tilescale.tuner.prior import Predictor, Prior, analytic
from tilescale.tuner.recipe import read


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


def main(arguments: list[str] | None = None) -> int:
    """The module as a command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tilescale.tuner.record_space", description=__doc__)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--workload", help="record this one only")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the recorded spaces")
    options = parser.parse_args(arguments)
    try:
        recipe = read(options.recipe)
        specs = {options.workload: recipe.spec(options.workload)} if options.workload else recipe.specs
        for name, spec in specs.items():
            space = record(spec)
            print(f"{name}: {len(space.rows)} schedules, predicted: {space.save(options.output)}")
    except TilescaleError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
