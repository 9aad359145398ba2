"""The proof before launch, in numbers: speed of the verifier, schedules proved, mutants caught, false alarms.

    python benchmarks/proof/bench_proof.py              everything
    python benchmarks/proof/bench_proof.py --sample 20  every 20th schedule and text mutant

It takes about an hour of two cores. Parts that have ended are kept in --keep FOLDER, so that a run that was interrupted
goes on behind them: a part counts as long as nothing that it depends on has changed.

The last line of stdout is one JSON object. `mutants` are those that change behaviour; `equivalent` come on top, and are
listed with their reasons in --list FILE. `emulated_gemm_rs_s` (one call of the 512x128x256 gemm_rs on 4 ranks) and
`candidate_compile_s` (the slowest of its kernels) are seconds of one core, the best of a few: the machine may be shared.
Exit 1 where anything was missed, refused or raised a false alarm.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("benchmarks", "tests/proof", "tests/schedules", "tests/codegen", "tests")
sys.path[:0] = [str(ROOT / folder) for folder in FOLDERS]

import common  # noqa: E402
from families import FUSED, SCHEDULES, product  # noqa: E402
from reduce_plans import gemm_rs  # noqa: E402
from runs import PLANS, RUNS  # noqa: E402
from suite import RULED, Score, all_text_mutants, false_alarms, plan_mutants, score_plans, score_texts  # noqa: E402
from support import ag_gemm  # noqa: E402

from tilescale.canon import digest_bytes  # noqa: E402
from tilescale.codegen.emit import emit  # noqa: E402
from tilescale.codegen.host.build import build_candidate, build_runtime  # noqa: E402
from tilescale.commands.worlds import shipped, targets_for  # noqa: E402
from tilescale.runtime.emulate import Conditions, emulate, prepare  # noqa: E402
from tilescale.runtime.emulator_library import run_job  # noqa: E402
from tilescale.schedules.lower import lower  # noqa: E402
from tilescale.schedules.plan import Plan  # noqa: E402
from tilescale.schedules.proof_cache import ProofCache  # noqa: E402
from tilescale.schedules.space import space  # noqa: E402
from tilescale.schedules.verify import verify  # noqa: E402
from tilescale.spec.topology import Topology  # noqa: E402

WORLDS = (2, 3, 4, 6, 8)
CHUNK = 10  # text mutants a task
SCORING = ROOT / "tests" / "proof" / "suite.py"
REPEATS = 5


def say(text: str) -> None:
    print(text, flush=True)


def fastest(work: Callable[[], object]) -> float:
    """Seconds of the best of a few runs: the machine may be shared."""
    found = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return min(found)


def proved(plan: Plan, calls: int) -> None:
    """Prove `plan` anew; RuntimeError where it cannot be."""
    proof = verify(plan, calls, cache=None)
    if not proof.ok:
        raise RuntimeError(str(proof))


def largest_gather() -> Plan:
    """The plan with the most steps of the 8192x28672x8192 ag_gemm on 8 ranks."""
    spec = ag_gemm((8192, 28672, 8192), 8)
    plans = (lower(spec, schedule) for schedule in space(spec, {"block_m": [64], "block_n": [128], "num_stages": [3]}))
    return max(plans, key=lambda plan: sum(1 for _ in plan.steps_of(0)))


def prove(recipe: Path, world: int, every: int) -> tuple[str, int, list[str]]:
    """Prove every `every`th schedule of a recipe on `world` ranks: what was done, how many proved, counterexamples."""
    cache, count, failed, labels = ProofCache(), 0, [], []
    for target in targets_for(recipe, world):
        for schedule in target.space.schedules[::every]:
            proof = verify(lower(target.spec, schedule), cache=cache)
            count += proof.ok
            if not proof.ok:
                failed.append(f"{target.name}, {schedule.label}: {proof}")
        labels.append(target.name)
    return f"{recipe}: {', '.join(labels)}; {len(cache.known)} protocols", count, failed


def judge_plans() -> dict[str, Any]:
    """The score of all plan mutants."""
    score = Score()
    score_plans(score, plan_mutants())
    return as_json(score)


def judge_texts(first: int, every: int) -> dict[str, Any]:
    """The score of text mutants number `first` * CHUNK and on."""
    score = Score()
    score_texts(score, all_text_mutants()[::every][first * CHUNK : (first + 1) * CHUNK])
    return as_json(score)


def as_json(score: Score) -> dict[str, Any]:
    return {name: dict(value) if isinstance(value, Counter) else value for name, value in vars(score).items()}


def merge(total: Score, part: dict[str, Any]) -> None:
    for name, value in part.items():
        if isinstance(value, dict):
            getattr(total, name).update(value)
        elif isinstance(value, list):
            getattr(total, name).extend(map(tuple, value) if name == "equivalent" else value)
        else:
            setattr(total, name, getattr(total, name) + value)


def sources() -> bytes:
    """Digest of the package: what every proof and every emulation depends on."""
    paths = sorted(path for path in (ROOT / "tilescale").rglob("*") if path.suffix in (".py", ".cuh", ".hpp", ".cpp"))
    return digest_bytes(b"".join(path.read_bytes() for path in paths)).encode()


def tests() -> bytes:
    """Digest of all tests, which plan mutants depend on."""
    paths = sorted(path for path in (ROOT / "tests").rglob("*") if path.is_file() and path.parent.name != "__pycache__")
    return digest_bytes(b"".join(path.read_bytes() for path in paths)).encode()


def on_texts(first: int, every: int) -> bytes:
    """What the score of text mutants number `first` * CHUNK and on depends on, beside the package."""
    chosen = all_text_mutants()[::every][first * CHUNK : (first + 1) * CHUNK]
    names = sorted({*RULED, *(name for mutant in chosen for name in mutant.runs)})
    run = [(name, RUNS[name], PLANS.get(name)) for name in names]
    return repr((SCORING.read_bytes(), chosen, run)).encode()


class Kept:
    """Results of parts that have ended, one file each, named by what was done and what that depended on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / sources().decode()
        self.folder.mkdir(parents=True, exist_ok=True)

    def of(self, pool: Executor, work: Callable[..., Any], *given: Any, on: bytes = b"") -> Callable[[], Any]:
        """The result of `work(*given)`: what is kept, or what the pool finds, which is then kept. `on`: what it depends
        on beside the package."""
        named = [os.path.relpath(each, ROOT) if isinstance(each, Path) else each for each in given]
        path = self.folder / f"{digest_bytes(repr((work.__name__, named)).encode() + on)}.json"
        if path.exists():
            return lambda: json.loads(path.read_text())
        future = pool.submit(work, *given)
        future.add_done_callback(lambda done: self._keep(path, done))
        return future.result

    @staticmethod
    def _keep(path: Path, done: Future[Any]) -> None:
        if not done.cancelled() and done.exception() is None:
            aside = path.with_suffix(".part")
            aside.write_text(json.dumps(done.result()))
            aside.replace(path)


def emulation_times() -> tuple[float, float]:
    """Seconds of one core that a call of the 4-rank gemm_rs takes to emulate, and its slowest kernel to compile."""
    spec, built, ran = product((512, 128, 256), 4, on=Topology.shared_gpu(ranks=4)), [], []
    for kernel in emit(spec, FUSED).kernels:
        best = []
        for _ in range(REPEATS):
            with tempfile.TemporaryDirectory() as folder:
                build_runtime(Path(folder))
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                build_candidate(kernel.text, (), Path(folder))
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                best.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        built.append(min(best))
    for seed in range(REPEATS):
        run = prepare(spec, FUSED, seed, "random", conditions=Conditions(calls=1))
        start = time.process_time()
        report = run_job(run.job)
        ran.append(time.process_time() - start)
        if not report.ok or run.judge(report):
            raise RuntimeError("the gemm_rs that is timed is emulated wrong")
    return min(ran), max(built)


def emulated() -> tuple[int, list[str]]:
    """Families whose emitted text is emulated right, with conformance, and what the others report."""
    runs = {name: emulate(spec, schedule, seed) for seed, (name, (spec, schedule)) in enumerate(SCHEDULES.items())}
    return sum(run.ok for run in runs.values()), [f"{name}: {run.report}" for name, run in runs.items() if not run.ok]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sample", type=int, default=1, metavar="N", help="every Nth schedule and text mutant only")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--recipes", type=Path, default=ROOT / "recipes")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", default=ROOT / "build" / "proof", help="parts that ended")
    parser.add_argument("--list", type=Path, metavar="FILE", help="write the equivalent mutants with their reasons")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the figures with command and version")
    options = parser.parse_args()
    kept = Kept(options.keep)
    try:
        return measure(options, kept)
    except KeyboardInterrupt:
        parts = len(list(kept.folder.glob("*.json")))
        print(f"interrupted; {parts} parts are kept: the same command goes on behind them", file=sys.stderr)
        return 130


def measure(options: argparse.Namespace, kept: Kept) -> int:
    """All figures, printed and written; the exit code."""
    plan = gemm_rs(8, 8, 16)
    gemm_rs_s = fastest(lambda: proved(plan, 2))
    say(f"gemm_rs, 8 ranks x 8 blocks x 16 tiles x 2 calls: {gemm_rs_s:.3f} s")
    gather = largest_gather()
    ag_gemm_s = fastest(lambda: proved(gather, 3))
    steps = sum(1 for _ in gather.steps_of(0))
    say(f"ag_gemm 8192x28672x8192 on 8 ranks, its largest plan ({steps} steps a rank): {ag_gemm_s:.3f} s")

    score = Score()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TILESCALE_CACHE"] = cache  # thousands of mutants leave nothing behind
        emulation_s, compile_s = emulation_times()
        say(f"gemm_rs 512x128x256 on 4 ranks: {emulation_s:.3f} s a call emulated, {compile_s:.3f} s a kernel compiled")
        count, failed = run_pool(kept, options.recipes, options.sample, options.jobs, score)
        families, wrong = emulated()
        alarms = [*false_alarms(), *wrong]
    report(score, failed, alarms)
    if options.list:
        rows = sorted(f"{name}\n    {reason}\n" for name, reason in score.equivalent)
        options.list.write_text(f"# {len(rows)} of {score.mutants} mutants change nothing\n\n" + "\n".join(rows))
    equivalent = len(score.equivalent)
    figures = {
        "gemm_rs_w8_s": round(gemm_rs_s, 3),
        "ag_gemm_w8_s": round(ag_gemm_s, 3),
        "schedules_proved": count,
        "schedules_failed": len(failed),
        "mutants": score.mutants - equivalent,
        "mutants_caught": score.caught,
        "equivalent": equivalent,
        "false_alarms": len(alarms),
        "emulated_families": families,
        "emulated_gemm_rs_s": round(emulation_s, 3),
        "candidate_compile_s": round(compile_s, 3),
    }
    if options.output:
        options.output.write_text(json.dumps({
            **common.header("proof"), "sample": options.sample, "load": os.getloadavg(), **figures,
            "kinds": len(score.kinds), "caught_by": dict(score.caught_by.most_common()),
            "missed": score.missed,
        }, indent=1) + "\n")
    say(json.dumps(figures))
    return 1 if failed or alarms or score.missed else 0


def run_pool(kept: Kept, recipes: Path, every: int, jobs: int, score: Score) -> tuple[int, list[str]]:
    """Proofs of all recipes and worlds, and all mutants, side by side; schedules proved, and what was not."""
    count, failed = 0, list[str]()
    texts = -(-len(all_text_mutants()[::every]) // CHUNK)
    pool = ProcessPoolExecutor(jobs)
    try:
        plans = kept.of(pool, judge_plans, on=tests())
        proofs = [kept.of(pool, prove, recipe, world, every, on=recipe.read_bytes())
                  for world in reversed(WORLDS) for recipe in shipped(recipes)]
        judged = [kept.of(pool, judge_texts, first, every, on=on_texts(first, every)) for first in range(texts)]
        for proof in proofs:
            what, number, bad = proof()
            count, failed = count + number, failed + bad
            say(f"proved {number}, refused {len(bad)}: {what}")
        merge(score, plans())
        say(f"plan mutants: {score.caught} of {score.mutants} caught, {len(score.equivalent)} equivalent")
        for at, part in enumerate(judged, 1):
            merge(score, part())
            say(f"text mutants: {at} of {len(judged)} parts judged, {len(score.missed)} mutants missed so far")
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return count, failed


def report(score: Score, failed: list[str], alarms: list[str]) -> None:
    total = score.mutants
    say(
        f"{total} mutants of {len(score.kinds)} kinds: {score.caught} caught, {len(score.equivalent)} equivalent "
        f"({100 * len(score.equivalent) / max(1, total):.1f} %), {len(score.missed)} missed"
    )
    for name, number in score.caught_by.most_common():
        say(f"  {number:5d} by {name}")
    for title, lines in (("missed", score.missed), ("refused", failed), ("false alarm", alarms)):
        for line in lines:
            say(f"{title}: {line}")


if __name__ == "__main__":
    raise SystemExit(main())
