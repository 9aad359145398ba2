"""`tilescale bench`: a schedule against named baselines on the GPU at hand, in turn, in one session."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from tilescale.commands.bar import Bar
from tilescale.commands.output import UsageError, say, show, show_json, table
from tilescale.commands.selection import best_predicted, select
from tilescale.commands.target import AsJson, ScheduleText, Target, takes_targets
from tilescale.errors import RunnerError

if TYPE_CHECKING:
    from tilescale.runtime.measure import Samples
    from tilescale.schedules.schedule import Schedule
    from tilescale.spec.op import Spec

FORMATS = ("table", "nccl-tests")
OURS = "tilescale"


@dataclass(frozen=True)
class Row:
    """One contestant of one workload; `samples_us` by rank, of all rounds. `message` says why there are none."""

    workload: str
    name: str
    samples_us: Samples
    message: str = ""

    @property
    def calls_us(self) -> tuple[float, ...]:
        """The slowest rank's time of each call."""
        return tuple(max(call) for call in zip(*self.samples_us, strict=True))

    @property
    def value_us(self) -> float | None:
        """The median call."""
        return statistics.median(self.calls_us) if self.calls_us else None


@takes_targets
def bench(
    targets: Sequence[Target],
    schedule: ScheduleText = None,
    against: Annotated[str | None, typer.Option("--against", help="Baselines, joined by commas; all by default.")] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Rounds, each with every contestant.")] = 5,
    output: Annotated[str, typer.Option("--format", help="table or nccl-tests.")] = "table",
    as_json: AsJson = False,
) -> None:
    """Time a schedule against baselines, in turn, in one session on the GPUs at hand.

    The best predicted of the schedules named; see `tune` for a measured choice. --json gives every sample.
    """
    if output not in FORMATS:
        raise UsageError("--format is known", output, "one of " + ", ".join(FORMATS))
    from tilescale.tuner.runners import fits

    for target in targets:
        good, note = fits(target.spec.topology)
        if not good:
            raise RunnerError("bench times schedules on a GPU of the topology", note,
                              "run it where one is; `tilescale explain` and `tilescale tune` work without")
    rows: list[Row] = []
    source = ""
    for target in targets:
        with Bar() as bar:
            chosen = best_predicted(target, select(target, schedule), bar)
        say(f"{target.spec.label}: schedule {chosen.digest} ({chosen.label})")
        found, source = _raced(target, chosen, against, rounds)
        rows += found
        if output == "nccl-tests" and not as_json:
            show("\n".join(nccl_lines(target.spec, found)))
    if as_json:
        show_json({"source": source, "rows": [
            {"workload": row.workload, "name": row.name, "us": row.value_us, "samples_us": row.samples_us,
             "message": row.message} for row in rows]})
    elif output == "table":
        table(["workload", "name", "us", "of tilescale", "samples", "note"], table_rows(rows))
        say(f"source: {source}; the median of calls, each the slowest rank's time")


def _raced(target: Target, schedule: Schedule, against: str | None, rounds: int) -> tuple[list[Row], str]:
    from tilescale.runtime.baselines import names_for
    from tilescale.runtime.gpu_runner import GpuRunner

    names = tuple(filter(None, against.split(","))) if against is not None else names_for(target.spec)
    with GpuRunner(target.spec.topology) as runner:
        timings = runner.baselines(target.spec, names) if names else {}
        missing = {name: timing for name, timing in timings.items() if not timing.ok}
        able = [name for name in names if name not in missing]
        raced = runner.race(target.spec, [schedule], able, rounds)
    rows = [Row(target.name, OURS, _joined(raced, schedule.digest))]
    rows += [Row(target.name, name, _joined(raced, name)) for name in able]
    rows += [Row(target.name, name, (), timing.message) for name, timing in missing.items()]
    return rows, runner.source


def _joined(rounds: Sequence[Mapping[str, Samples]], name: str) -> Samples:
    """The samples of all rounds, by rank."""
    parts = [each[name] for each in rounds]
    return tuple(tuple(value for part in parts for value in part[rank]) for rank in range(len(parts[0])))


def table_rows(rows: Sequence[Row]) -> list[list[object]]:
    """With each time over ours: above 1 is slower than tilescale."""
    ours = {row.workload: row.value_us for row in rows if row.name == OURS}
    found: list[list[object]] = []
    for row in rows:
        base, value = ours.get(row.workload), row.value_us
        ratio = value / base if value and base else None
        found.append([row.workload, row.name, value, ratio, len(row.calls_us), row.message])
    return found


def nccl_lines(spec: Spec, rows: Sequence[Row]) -> list[str]:
    """As nccl-tests prints an all-gather: size, count, type, time, algorithm and bus bandwidth, out of place. The size
    is that of the gathered operand; for a product the time holds the product too."""
    operand = spec.inputs[0]
    count = 1
    for size in operand.sizes:
        count *= size
    total = count * operand.itemsize
    lines = [f"# {spec.label}",
             f"# {'size':>12} {'count':>12} {'type':>9} {'redop':>6} {'root':>5} {'time':>9} {'algbw':>8} {'busbw':>8}",
             f"# {'(B)':>12} {'(elements)':>12} {'':>9} {'':>6} {'':>5} {'(us)':>9} {'(GB/s)':>8} {'(GB/s)':>8}"]
    for row in rows:
        if row.value_us is None:
            lines.append(f"# {row.name}: {row.message}")
            continue
        algorithm = total / row.value_us / 1e3
        bus = algorithm * (spec.world - 1) / spec.world
        lines.append(f"  {total:>12} {count // spec.world:>12} {operand.dtype:>9} {'none':>6} {-1:>5} "
                     f"{row.value_us:>9.2f} {algorithm:>8.2f} {bus:>8.2f}  # {row.name}")
    return lines
