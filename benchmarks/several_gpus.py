"""Everything that only several GPUs can show, in one command: links, right results, tuned times, peers, predictions.

    benchmarks/several_gpus.sh -o DIR                # all GPUs that are visible; at most 9 minutes
    benchmarks/several_gpus.sh -o DIR --shared 2     # ranks share one GPU: the same, of its memory
    python benchmarks/several_gpus.py -o DIR --fake 2 --short   # no GPU: made-up times, to try the script
    python benchmarks/several_gpus.py --predict      # write predictions down, before workloads first run

Parts, each with its share of --seconds, chosen with --only: links (calibration), check (every operation that has kernels,
against fp64), predictions (those of benchmarks/predictions), fidelity (a recorded space of the scale model, on real
links), tune (workloads of a model, on top of what the parts before have measured, then raced with the peers: NCCL with
cuBLAS, torch's symmetric memory).
DIR gets several_gpus.json, links.json, topology.toml and perf.db as results come, so a run that is ended loses nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import statistics
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import common
import links
from several import fidelity, predictions, workloads
from several.statistic import finite

import perfdb
import tilescale as ts
from tilescale.runtime import baselines, fake_links
from tilescale.runtime.clocks import nvml_uuid
from tilescale.runtime.fake import FakeRunner
from tilescale.runtime.gpu_runner import GpuRunner
from tilescale.runtime.link_job import LARGE_BYTES
from tilescale.runtime.links import LinkProbe
from tilescale.runtime.sampling import Bounds
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import Space
from tilescale.spec.op import Spec
from tilescale.spec.operation import OPERATIONS
from tilescale.spec.topology import Topology
from tilescale.tuner import records
from tilescale.tuner.record_space import sample
from tilescale.tuner.revision import revision
from tilescale.tuner.store import Store

# Part: its share of the time. What one leaves goes to those that follow.
SHARES = {"links": 0.12, "check": 0.15, "predictions": 0.14, "fidelity": 0.13, "tune": 0.46}
QUICK = Bounds(minimum=6, maximum=20, batch=6, target=0.01)
ROUNDS = 10  # of a race; a GPU at its power cap changes its pace from one to the next
GRACE_S = 5.0


def predicted_us(spec: Spec, schedule: Schedule) -> float:
    return ts.predict(spec, schedule).us


class FakeGpus(FakeRunner):
    """Predicted times as if measured, and peers that take a third longer than the first schedule."""

    def __init__(self) -> None:
        super().__init__(predicted_us, noise=0.01, processes=False)

    def race(self, spec: Spec, schedules: Sequence[Schedule], names: Sequence[str], rounds: int) -> list[dict[str, Any]]:
        found = {m.schedule.digest: m.samples_us for m in self.measure(spec, schedules)}
        slower = tuple(tuple(1.33 * us for us in rank) for rank in found[schedules[0].digest])
        return [{**found, **dict.fromkeys(names, slower)}] * rounds

    def baselines(self, spec: Spec, names: Sequence[str]) -> dict[str, baselines.Timing]:
        return {name: baselines.Timing(name, "ok", self.source, ((1.0,),) * spec.world) for name in names}


class Run:
    """One run: what is chosen, what is found, and when it must end."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.folder = given, given.output
        self.folder.mkdir(parents=True, exist_ok=True)
        self.topology = topology_of(given)
        self.deadline = time.monotonic() + given.seconds
        self.only = [part for part in SHARES if not given.only or part in given.only.split(",")]
        self.result: dict[str, Any] = {
            **common.header("several_gpus"), "topology": self.topology.name, "world": self.topology.world,
            "parts": {part: {"status": "not reached"} for part in self.only}}
        self._runner: Any = None

    # -- running -------------------------------------------------------------------------------------------------------
    def save(self) -> None:
        aside = self.folder / "several_gpus.json.new"
        aside.write_text(json.dumps(self.result, indent=1) + "\n")
        aside.replace(self.folder / "several_gpus.json")

    def run(self) -> int:
        try:
            for part in self.only:
                with self.part(part) as row:
                    getattr(self, part)(row)
        finally:
            self.close()
            self.save()
        print("\n".join(table(self.result)), flush=True)
        return 0 if all(row["status"] == "ok" for row in self.result["parts"].values()) else 1

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[dict[str, Any]]:
        """A part within its share of what is left; one that fails or is late leaves the others their time."""
        left = self.only[self.only.index(name) :]
        limit = max(1.0, self.deadline - time.monotonic()) * SHARES[name] / sum(SHARES[each] for each in left)

        def late(*_: object) -> None:
            raise TimeoutError(f"{name} took longer than {limit:.0f} s")

        row = self.result["parts"][name] = {"status": "running"}
        start, self.part_ends = time.monotonic(), time.monotonic() + limit
        signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, limit + GRACE_S)  # for a part that does not keep to its time
        try:
            yield row
            row["status"] = "failed" if row.get("wrong") else "ok"
        except Exception as error:  # noqa: BLE001 - the other parts are wanted all the same
            row.update(status="failed", error=f"{type(error).__name__}: {error}"[:1500])
            traceback.print_exc()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            row["wall_s"] = round(time.monotonic() - start, 1)
            self.save()
            print(f"-- {name}: {row['status']}, {row['wall_s']} s {row.get('error', '')[:300]}", flush=True)

    @property
    def late(self) -> bool:
        return time.monotonic() > self.part_ends

    @property
    def runner(self) -> Any:
        """Started when first asked for, and kept: ranks take seconds to start."""
        if self._runner is None:
            if self.given.fake:
                self._runner = FakeGpus()
            else:
                self._runner = GpuRunner(self.topology, bounds=QUICK, gpus=gpus_of(self.given))
                facts = self._runner.start()
                self.result["uuids"] = [nvml_uuid(each.uuid) for each in facts]
                self.result["environment"] |= self._runner.environment
            self.result["source"] = self._runner.source
        return self._runner

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    # -- parts ---------------------------------------------------------------------------------------------------------
    def links(self, row: dict[str, Any]) -> None:
        worker = {"worker": fake_links.WORKER} if self.given.fake else {}
        with LinkProbe(self.topology, large_bytes=LARGE_BYTES >> 3 * self.given.short, gpus=gpus_of(self.given),
                       **worker) as probe:

            def save(rows: links.Rows) -> None:
                (self.folder / "links.json").write_text(json.dumps(links.result(probe, rows), indent=1) + "\n")

            rows = links.measure(probe, save, self.part_ends - time.monotonic() - 5.0)
            found = links.result(probe, rows)
            row.update({key: found[key] for key in ("source", "uuids", "link", "best")})
            links.keep(probe, rows, self.folder / "perf.db")
            if self.topology.kind == "real":
                links.write_topology(self.topology, rows, self.folder / "topology.toml")
                # What follows expects the links that were found: rates are no part of a topology's identity.
                self.topology = links.calibrated(self.topology, rows)
            print("\n".join(links.table(found)), flush=True)

    def check(self, row: dict[str, Any]) -> None:
        specs, row["without_kernels"] = workloads.checked(self.topology)
        row["ops"], row["wrong"] = {}, []
        for at, (op, spec) in enumerate(specs.items()):
            left = (self.part_ends - time.monotonic()) / (len(specs) - at)
            row["ops"][op] = self.checked(spec, row["wrong"], time.monotonic() + left)
            self.save()

    def checked(self, spec: Spec, wrong: list[str], ends: float) -> dict[str, Any]:
        """Schedules of every kind, each right on three calls against fp64 before it is timed."""
        found: dict[str, Any] = {"label": spec.label, "seen": 0, "right": 0, "not_reached": 0, "us": []}
        kinds = sample(Space(spec), 4 if self.given.short else 40)
        for start in range(0, len(kinds), 8):
            if start and time.monotonic() > ends:  # some of every operation, also where little time is left
                found["not_reached"] = len(kinds) - start
                break
            for m in self.runner.measure(spec, kinds[start : start + 8]):
                found["seen"] += 1
                found["right"] += m.ok
                found["us"].append([m.schedule.label, finite(m.value_us) if m.ok else f"{m.status}: {m.message[:200]}"])
                if not m.ok:
                    wrong.append(f"{spec.label}: {m.schedule.label}: {m.status}: {m.message[:200]}")
        return found

    def tune(self, row: dict[str, Any]) -> None:
        specs, row["without_kernels"] = workloads.tuned(self.topology, self.given.workloads, self.given.short)
        row["workloads"] = {}
        for at, (name, spec) in enumerate(specs.items()):
            left = (self.part_ends - time.monotonic()) / (len(specs) - at)
            entry = row["workloads"][name] = {"label": spec.label}
            if left < 3.0 and not self.given.fake:
                entry["error"] = "no time was left"
                continue
            try:
                self.tuned(name, spec, entry, left)
            except TimeoutError:
                raise
            except Exception as error:  # noqa: BLE001 - the other workloads are wanted all the same
                entry["error"] = f"{type(error).__name__}: {error}"[:800]
            self.save()
            print(name, {key: value for key, value in entry.items() if "samples" not in key and key != "first"}, flush=True)

    def tuned(self, name: str, spec: Spec, entry: dict[str, Any], seconds: float) -> None:
        found = ts.tune(spec, trials=8 if self.given.short else self.given.trials, seconds=0.6 * seconds,
                        db=self.folder / "perf.db", runner=self.runner, command=common.command())
        good = sorted((t for t in found.rows if t.value_us is not None), key=lambda t: t.value_us)
        entry |= {
            "candidates": len(found.rows), "right": len(good), "best": found.best.label, "best_us": round(found.best_us, 2),
            "reason": found.reason, "first": [[t.schedule.label, round(t.value_us, 2)] for t in good[:8]],
            "best_of_kind": {kind: next((round(t.value_us, 2) for t in good if t.schedule.compute == kind), None)
                             for kind in ("generated", "library")}}
        finalists = dict.fromkeys([found.best, *(next((t.schedule for t in good if t.schedule.compute == kind), found.best)
                                                 for kind in ("generated", "library"))])
        self.raced(spec, list(finalists), entry)

    def raced(self, spec: Spec, finalists: Sequence[Schedule], entry: dict[str, Any]) -> None:
        """The best of each kind in turn with the peers that can run here. Ours is the fastest finalist of the race; a
        ratio above 1 is slower than that: the median of the ratios of each round. Races are long: a GPU that reaches its
        power cap is slower than in a search."""
        names = [name for name in baselines.NAMES if self.sensible(spec, name)]
        timings = self.runner.baselines(spec, names)
        entry["cannot_run"] = {name: timing.message[:300] for name, timing in timings.items() if not timing.ok}
        able = [name for name in names if timings[name].ok]
        rounds = self.runner.race(spec, finalists, able, ROUNDS)
        shown = {schedule.digest: schedule.label for schedule in finalists} | {name: name for name in able}
        calls = {said: [[max(call) for call in zip(*each[name], strict=True)] for each in rounds]
                 for name, said in shown.items()}
        medians = {said: statistics.median(us for each in found for us in each) for said, found in calls.items()}
        ours = min((schedule.label for schedule in finalists), key=medians.__getitem__)
        entry["raced"] = ours
        entry["raced_us"] = {"tilescale": round(medians[ours], 2)} | {said: round(us, 2) for said, us in medians.items()}
        entry["over_ours"] = {name: round(statistics.median(
            statistics.median(theirs) / statistics.median(mine)
            for theirs, mine in zip(calls[name], calls[ours], strict=True)), 4) for name in able}
        entry["raced_samples_us"] = {
            said: [[round(us, 2) for us in each] for each in found] for said, found in calls.items()}

    def sensible(self, spec: Spec, name: str) -> bool:
        if name == "compute_only" and spec.operation.compute != "gemm":
            return False
        try:
            baselines.check_names(spec, (name,))
        except ts.TilescaleError:
            return False
        return True

    def predictions(self, row: dict[str, Any]) -> None:
        if self.given.short:  # its workloads are smaller than those that were written down
            entries: Mapping[str, Any] = predictions.predicted(self.topology, 4, small=True)
        else:
            entries = predictions.read(self.given.predictions).get(str(self.topology.world), {})
        specs, _ = workloads.tuned(self.topology, self.given.workloads, self.given.short)
        row["workloads"], pairs = {}, []
        known = [name for name in specs if name in entries]
        for at, name in enumerate(known):
            ends = time.monotonic() + (self.part_ends - time.monotonic()) / (len(known) - at)
            mine = self.measured(specs[name], predictions.schedules(entries[name]), ends)
            pairs += mine
            row["workloads"][name] = {
                **{key: entries[name][key] for key in ("digest", "written") if key in entries[name]},
                **predictions.score(mine), "rows": [[entry["label"], entry["us"], round(us, 2)] for entry, us in mine]}
            row["all"] = predictions.score(pairs)
            self.save()

    def measured(self, spec: Spec, wanted: Sequence[tuple[Schedule, Mapping[str, Any]]], ends: float
                 ) -> list[tuple[Mapping[str, Any], float]]:
        """Rows with the times that were measured, as far as time allows."""
        found: list[tuple[Mapping[str, Any], float]] = []
        for start in range(0, len(wanted), 8):
            if time.monotonic() > ends:
                break
            part = wanted[start : start + 8]
            answers = self.kept(spec, [schedule for schedule, _ in part])
            found += [(entry, m.value_us) for (_, entry), m in zip(part, answers, strict=True) if m.ok]
        return found

    def kept(self, spec: Spec, schedules: Sequence[Schedule]) -> list[Any]:
        """Measurements, each of them a trial in the database too, where a search finds it again."""
        found = self.runner.measure(spec, schedules)
        with perfdb.open_database(self.folder / "perf.db", create=True) as db:
            session = db.start_session(seed=0, command=common.command(), revision=revision())
            store = Store(db, records.key_of(spec, self.runner), session, resume=False)
            for number, measurement in enumerate(found):
                store.keep(measurement, number, predicted_us(spec, measurement.schedule))
            db.end_session(session, "complete")
        return list(found)

    def fidelity(self, row: dict[str, Any]) -> None:
        space = fidelity.recorded(self.topology.world)
        if space is None:
            row["left_out"] = f"no space of the scale model is recorded for {self.topology.world} ranks"
            return
        spec = fidelity.on(space, self.topology)
        wanted = fidelity.chosen(space, spec, fidelity.LEAST if self.given.short else 64)
        row |= {"space": space.file_name, "recorded": space.created, "label": spec.label}
        model: list[Any] = []
        real: list[Any] = []
        for start in range(0, len(wanted), 8):
            if self.late:
                break
            # Spread over the whole range even where time runs out.
            part = wanted[start // 8 :: -(-len(wanted) // 8)]
            model += part
            real += self.kept(spec, [one.schedule for one in part])
            row |= fidelity.score(model, real)
            row["rows"] = [[one.schedule.label, finite(one.value_us), finite(other.value_us) if other.ok else other.status]
                           for one, other in zip(model, real, strict=True)]
            self.save()


# -- what is said ------------------------------------------------------------------------------------------------------
def table(result: Mapping[str, Any]) -> list[str]:
    parts = result["parts"]
    lines = [f"{result['topology']}: {len(set(result.get('uuids', [])))} GPUs, {result.get('source', '')}"]
    for op, entry in parts.get("check", {}).get("ops", {}).items():
        seen, missed = entry["seen"], entry["not_reached"]
        lines.append(f"check {op:15s} {entry['right']:3d} of {seen:3d} right, {missed} not reached")
    for name, entry in parts.get("tune", {}).get("workloads", {}).items():
        ratios = "  ".join(f"{peer} {ratio:.2f}" for peer, ratio in entry.get("over_ours", {}).items())
        ours = entry.get("raced_us", {}).get("tilescale", 0.0)
        lines.append(f"{name:24s} {ours:9.1f} us  {ratios}  {entry.get('error', '')[:90]}")
    if "all" in parts.get("predictions", {}):
        lines.append(f"predictions {parts['predictions']['all']}")
    if "spearman" in parts.get("fidelity", {}):
        said = {key: value for key, value in parts["fidelity"].items() if key != "rows"}
        lines.append(f"scale model {said}")
    return lines + [f"{name:12s} {row['status']:12s} {row.get('wall_s', 0)} s {row.get('error', '')[:120]}"
                    for name, row in parts.items()]


def gpus_of(given: argparse.Namespace) -> list[str] | None:
    return given.gpus.split(",") if given.gpus else None


def topology_of(given: argparse.Namespace) -> Topology:
    if given.fake:
        return Topology.named(predictions.MACHINE, given.fake)
    if given.shared:
        return Topology.shared_gpu(given.shared)
    topology = Topology.detect()
    gpus = gpus_of(given)
    ranks = len(gpus) if gpus else given.ranks
    return topology.with_ranks(ranks) if ranks else topology


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path("several_gpus"))
    parser.add_argument("--seconds", type=float, default=500.0, help="of all parts; starting and ending come on top")
    parser.add_argument("--only", default="", help=f"parts, joined by commas: {', '.join(SHARES)}")
    parser.add_argument("--workloads", default="", help="words in names of workloads, joined by commas")
    parser.add_argument("--trials", type=int, default=64, help="candidates a workload")
    parser.add_argument("--ranks", type=int, help="the first so many GPUs; all that are visible by default")
    parser.add_argument("--gpus", help="UUIDs of the ranks' GPUs, in order")
    parser.add_argument("--shared", type=int, metavar="RANKS")
    parser.add_argument("--fake", type=int, metavar="RANKS")
    parser.add_argument("--short", action="store_true", help="small shapes and few candidates")
    parser.add_argument("--predictions", type=Path, default=predictions.FOLDER)
    parser.add_argument("--predict", nargs="?", const="2,4,8", metavar="WORLDS", help="add to --predictions, and end")
    given = parser.parse_args(arguments)
    unknown = [part for part in filter(None, given.only.split(",")) if part not in SHARES]
    if unknown:
        parser.error(f"--only takes {', '.join(SHARES)}; got: {', '.join(unknown)}")
    if given.workloads and not any(word in name for word in given.workloads.split(",") for name in
                                   (*workloads.TUNED, *(f"{operation.name}.small" for operation in OPERATIONS))):
        parser.error(f"--workloads takes words of {', '.join(workloads.TUNED)}; got: {given.workloads}")
    if given.predict:
        worlds = [int(word) for word in given.predict.split(",")]
        print(predictions.write(given.predictions, worlds) or "every workload that has kernels is predicted")
        return 0
    return Run(given).run()


if __name__ == "__main__":
    common.run(main)
