"""Many schedules of every local product: what the cost model of products is fitted to.

    python benchmarks/products_tried.py [-m M ...] [--count N] [--seconds S]

Of each product the schedules that the cost model ranks first, the best of every kind (shared contractions, shared tiles,
turns, clusters), and others at random among those that it expects within half as much again of the best.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import common
import products
import written

import tilescale as ts
from tilescale.runtime.gpu_runner import GpuRunner
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import Space
from tilescale.spec.op import Spec
from tilescale.tuner.prior import Prior

NAME = "products_tried"
FIRST, NEAR = 6, 1.5


def chosen(spec: Spec, count: int) -> tuple[Schedule, ...]:
    """The schedules to measure, the same ones every time."""
    prior = Prior(spec, Space(spec, products.SPACE).schedules)
    ranked = prior.ranked
    near = [s for s in ranked if prior.us(s) < NEAR * prior.us(ranked[0])]
    kinds: dict[tuple[object, ...], Schedule] = {}
    for s in near:
        kinds.setdefault((s.stream_k, s.consumers, s.split_k, s.cluster_m), s)
    others = random.Random(count).sample(near, min(len(near), count))
    return tuple(dict.fromkeys([*ranked[:FIRST], *kinds.values(), *others]))[:count]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", type=int, nargs="+", default=[512, 4096])
    parser.add_argument("--count", type=int, default=48, help="schedules of a product")
    parser.add_argument("--seconds", type=float, default=300.0, help="no product is begun after so many")
    parser.add_argument("-o", "--output", type=Path, default=products.RESULTS / f"{NAME}.json")
    given = parser.parse_args()
    found = written.Written(given.output, common.header(NAME), products.KEYS,
                            finished=lambda row: "tried_us" in row, summary=lambda rows: {"products": len(rows)})
    topology, began = ts.Topology.detect().with_ranks(1), time.monotonic()
    work = [(layer, m, products.declare(m, layer, topology)) for m, layer in product(given.m, products.layers())
            if (layer.name, m, layer.n, layer.k) not in found.done]
    with GpuRunner(topology, bounds=products.BOUNDS) as runner, ProcessPoolExecutor() as pool:
        ahead = [pool.submit(chosen, spec, given.count) for *_, spec in work]
        for (layer, m, spec), schedules in zip(work, ahead, strict=True):
            if time.monotonic() - began > given.seconds:
                print(f"stopped: {given.seconds:g} s are over")
                break
            found.add(row(runner, layer, m, spec, schedules.result()))
            print(layer.name, m, flush=True)
        for future in ahead:
            future.cancel()


def row(runner: GpuRunner, layer: products.Layer, m: int, spec: Spec, schedules: tuple[Schedule, ...]) -> dict[str, Any]:
    theirs = runner.baselines(spec, (products.PEER,))[products.PEER].samples_us[0]
    tried = {one.schedule.label: round(statistics.median(one.calls_us), 2)
             for one in runner.measure(spec, schedules) if one.ok}
    return {"layer": layer.name, "m": m, "n": layer.n, "k": layer.k, "theirs_us": round(statistics.median(theirs), 2),
            "tried_us": tried}


if __name__ == "__main__":
    common.run(main)
