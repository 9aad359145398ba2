"""Calibrates the links between GPUs: latency and rate of every pair, transport, direction and block count, and flags.

    python benchmarks/links.py [-o links.json] [--toml FILE] [--db perf.db] [--ranks N] [--gpus UUID,UUID]
    python benchmarks/links.py --shared 2      # ranks share one GPU: of its memory, labelled measured_shared_gpu
    python benchmarks/links.py --fake 2        # made-up times of ranks without a GPU, to try the script

Copies are made by the kernels that schedules use, and are checked before they are timed. `--toml` writes the topology of
this machine with the measured rate and latency, for Topology.load; real links alone are written. `--db` adds a row a case
to a performance database. The result is saved as it grows.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import common

import perfdb
from tilescale import canon
from tilescale.codegen.nvrtc_worker import nvrtc_version
from tilescale.runtime import fake_links
from tilescale.runtime.clocks import nvml_uuid, power_cap_w
from tilescale.runtime.link_job import LARGE_BYTES, PING, Row, cases, measured_link
from tilescale.runtime.links import LinkProbe
from tilescale.spec import catalog
from tilescale.spec.topology import Topology
from tilescale.tuner.revision import revision

Rows = list[Row]


def measure(probe: LinkProbe, save: Callable[[Rows], None], seconds: float = 300.0) -> Rows:
    """All pairs, then all ranks at once; `save` gets the rows so far. Stops after `seconds` with what there is."""
    deadline = time.monotonic() + seconds
    rows: Rows = []
    probe.start()
    wanted = cases(probe.topology.sm_share, probe.large_bytes)
    pairs = list(itertools.permutations(range(probe.topology.world), 2))
    for source, target in sorted(pairs, key=lambda pair: (pair[1] - pair[0]) % probe.topology.world):
        if time.monotonic() > deadline:
            break
        probe.check(source, target)
        rows += [probe.ping(source, target), *probe.copies(source, target, wanted)]
        save(rows)
    rows += probe.together([case for case in wanted if not case.small])
    save(rows)
    return rows


def as_json(row: Row) -> dict[str, Any]:
    """A row of the result."""
    found = {"from": row.source, "to": row.target, **canon.encode(row.case), "us": round(row.us, 3)}
    if row.case.transport == PING:
        found = {"from": row.source, "to": row.target, "transport": PING, "round_trip_us": round(row.us, 3)}
    elif not row.case.small:
        found["gbps"] = round(row.gbps, 1)
    return {**found, "samples_us": [[round(us, 3) for us in samples] for samples in row.samples_us]}


def result(probe: LinkProbe, rows: Rows) -> dict[str, Any]:
    """What is written: who was measured, what, and the link that comes of it."""
    described = probe.topology.link
    measured = measured_link(described, rows)
    uuids = [facts.uuid if facts.uuid.startswith("fake") else nvml_uuid(facts.uuid) for facts in probe.facts]
    return {
        **common.header("links"),
        "source": source_of(probe),
        "topology": probe.topology.name,
        "uuids": uuids,
        "distinct_gpus": len(set(uuids)),
        "link": {"described": canon.encode(described), "measured": canon.encode(measured)},
        "best": best(rows),
        "rows": [as_json(row) for row in rows],
    }


def source_of(probe: LinkProbe) -> str:
    """Made-up times are a model's."""
    return "predicted" if probe.facts and probe.facts[0].uuid.startswith("fake") else probe.source


def best(rows: Sequence[Row]) -> dict[str, Any]:
    """By transport and direction: the slowest pair's best rate, with the blocks it took; all at once; a small copy."""
    found: dict[str, Any] = {}
    kinds = sorted({(row.case.transport, row.case.direction) for row in rows if row.case.transport != PING})
    for transport, direction in kinds:
        mine = [row for row in rows if (row.case.transport, row.case.direction) == (transport, direction)]
        pairs: dict[tuple[int, int], Row] = {}
        for row in mine:
            pair = (row.source, row.target)
            if not row.case.small and (pair not in pairs or row.gbps > pairs[pair].gbps):
                pairs[pair] = row
        alone = [row for pair, row in pairs.items() if pair[0] >= 0]
        entry = found[f"{direction} {transport}"] = {}
        if alone:
            slowest = min(alone, key=lambda row: row.gbps)
            entry |= {"gbps": round(slowest.gbps, 1), "blocks": slowest.case.blocks}
        if (-1, -1) in pairs:
            entry["all_at_once_gbps"] = round(pairs[-1, -1].gbps, 1)
        small = [row.us for row in mine if row.case.small]
        if small:
            entry["small_us"] = round(max(small), 2)
    trips = [row.us for row in rows if row.case.transport == PING]
    return {**found, "round_trip_us": [round(min(trips), 3), round(max(trips), 3)] if trips else []}


def write_topology(topology: Topology, rows: Rows, path: Path) -> None:
    """The topology with what was measured, as Topology.load reads it."""
    found = calibrated(topology, rows)
    comment = "The link between GPUs was measured by benchmarks/links.py: rate of the best put, latency of a flag."
    path.write_text(catalog.text_of(catalog.TopologyFile(found.name, found.ranks, found.gpu, found.levels), comment))


def calibrated(topology: Topology, rows: Rows) -> Topology:
    """The topology with the link that was measured."""
    link = measured_link(topology.link, rows)
    levels = tuple(
        dataclasses.replace(level, link=link) if level.name == "node" else level for level in topology.levels
    )
    return dataclasses.replace(topology, levels=levels)


def keep(probe: LinkProbe, rows: Rows, path: Path) -> int:
    """A trial a row in a performance database."""
    topology, first, world = probe.topology, probe.facts[0], probe.topology.world
    machine = perfdb.TopologyKey(
        topology.digest, topology.name, topology.kind, world, topology.gpu.model, canon.dumps(topology))
    environment = perfdb.EnvironmentKey(
        first.gpu, topology.gpu.arch, round(power_cap_w(first.uuid)), first.driver, nvrtc_version(),
        gpu_count=len({facts.uuid for facts in probe.facts}))
    with perfdb.open_database(path, create=True) as db:
        session = db.start_session(seed=0, command=common.command(), revision=revision())
        for row in rows:
            db.record(trial(row, world, machine, environment, source_of(probe), session))
        db.end_session(session, "complete")
    return len(rows)


def trial(row: Row, world: int, machine: Any, environment: Any, source: str, session: int) -> perfdb.TrialRecord:
    way = f"rank {row.source} to rank {row.target}" if row.source >= 0 else "every rank to every other"
    op = f"link_{row.case.direction}" if row.case.transport != PING else "link_flag"
    digest = canon.digest([op, row.source, row.target, world, row.case.size_bytes])
    workload = perfdb.WorkloadKey(digest, op, str(row.case.size_bytes), "uint8", world, way, 0, row.case.size_bytes)
    schedule = perfdb.ScheduleKey(canon.digest(row.case), row.case.label, canon.dumps(row.case))
    samples = row.samples_us if len(row.samples_us) == world else ()
    conditions = "{}" if samples else json.dumps({"samples_us": row.samples_us[0]})
    return perfdb.TrialRecord(workload, machine, environment, schedule, source, "ok", row.us, samples, session_id=session,
                              conditions=conditions)


def table(found: dict[str, Any]) -> list[str]:
    """For a reader."""
    lines = [f"{'copy':18s} {'GB/s':>7s} {'blocks':>6s} {'all at once':>11s} {'4 KB, us':>8s}"]
    for name, entry in found["best"].items():
        if isinstance(entry, dict):
            lines.append(f"{name:18s} {entry.get('gbps', 0):7.1f} {entry.get('blocks', 0):6d} "
                         f"{entry.get('all_at_once_gbps', 0):11.1f} {entry.get('small_us', 0):8.2f}")
    low, high = found["best"]["round_trip_us"] or (0.0, 0.0)
    lines.append(f"flag there and back: {low:.2f} to {high:.2f} us; {found['distinct_gpus']} GPUs; {found['source']}")
    return lines


def probe_of(given: argparse.Namespace) -> LinkProbe:
    large = given.bytes
    if given.fake:
        return LinkProbe(Topology.named("8xH200-NVSwitch", given.fake), large_bytes=large, worker=fake_links.WORKER)
    if given.shared:
        return LinkProbe(Topology.shared_gpu(given.shared), large_bytes=large)
    topology = Topology.detect()
    gpus = given.gpus.split(",") if given.gpus else None
    ranks = len(gpus) if gpus else given.ranks
    return LinkProbe(topology.with_ranks(ranks) if ranks else topology, large_bytes=large, gpus=gpus)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--toml", type=Path)
    parser.add_argument("--db", type=Path)
    parser.add_argument("--ranks", type=int, help="the first so many GPUs; all that are visible by default")
    parser.add_argument("--gpus", help="UUIDs of the ranks' GPUs, in order")
    parser.add_argument("--shared", type=int, metavar="RANKS")
    parser.add_argument("--fake", type=int, metavar="RANKS")
    parser.add_argument("--bytes", type=int, default=LARGE_BYTES, help="of the copies that are timed for their rate")
    parser.add_argument("--seconds", type=float, default=300.0)
    given = parser.parse_args(arguments)
    with probe_of(given) as probe:

        def save(rows: Rows) -> None:
            if given.output:
                given.output.write_text(json.dumps(result(probe, rows), indent=1) + "\n")

        rows = measure(probe, save, given.seconds)
        if given.db:
            keep(probe, rows, given.db)
        if given.toml and probe.topology.kind == "real":
            write_topology(probe.topology, rows, given.toml)
        print("\n".join(table(result(probe, rows))))
    return 0


if __name__ == "__main__":
    common.run(main)
