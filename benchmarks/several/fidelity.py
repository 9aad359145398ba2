"""How true the scale model is: schedules of a space recorded in it, measured again where ranks have GPUs of their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from several.statistic import finite, spearman
from tilescale.runtime.measure import Measurement
from tilescale.runtime.replay import SHIPPED, SUFFIX, RecordedSpace
from tilescale.schedules.constraints import first_broken
from tilescale.spec.op import Spec
from tilescale.spec.topology import Topology

LEAST = 50


def recorded(world: int, folder: Path = SHIPPED) -> RecordedSpace | None:
    """The largest space of the scale model on so many ranks; products before copies."""
    found = [RecordedSpace.load(path) for path in sorted(folder.glob(f"*-measured_scale_model{SUFFIX}"))]
    mine = [space for space in found if space.spec.world == world]
    return max(mine, key=lambda space: (space.spec.operation.compute == "gemm", len(space.rows)), default=None)


def on(space: RecordedSpace, topology: Topology) -> Spec:
    """The same work on another topology."""
    return dataclasses.replace(space.spec, topology=topology)


def chosen(space: RecordedSpace, spec: Spec, count: int) -> list[Measurement]:
    """`count` good rows that are feasible for `spec` too, evenly spread from the fastest to the slowest."""
    rows = sorted((row for row in space.rows if row.ok and first_broken(spec, row.schedule) is None),
                  key=lambda row: (row.value_us, row.schedule.digest))
    if len(rows) <= count:
        return rows
    return [rows[round(place * (len(rows) - 1) / (count - 1))] for place in range(count)]


def score(model: Sequence[Measurement], real: Sequence[Measurement]) -> dict[str, Any]:
    """Rank correlation of the two times; what choosing by the scale model costs; how much of its best is best here too."""
    pairs = [(one.value_us, other.value_us) for one, other in zip(model, real, strict=False) if other.ok]
    if len(pairs) < 3:
        return {"schedules": len(pairs)}
    by_model, by_real = sorted(pairs), sorted(pairs, key=lambda pair: pair[1])
    half = sorted(pairs)[: len(pairs) // 2]
    top = max(1, len(pairs) // 8)
    return {
        "schedules": len(pairs),
        "enough": len(pairs) >= LEAST,
        "spearman": finite(spearman([one for one, _ in pairs], [other for _, other in pairs])),
        "spearman_faster_half": finite(spearman([one for one, _ in half], [other for _, other in half])),
        "chosen_over_best": round(by_model[0][1] / by_real[0][1], 4),
        "best_of_models_first_over_best": round(min(other for _, other in by_model[:top]) / by_real[0][1], 4),
        "models_first": top,
        "shared_of_first": round(len(set(by_model[:top]) & set(by_real[:top])) / top, 4),
    }
