"""The link clock of the scale model on one GPU: do puts take what it says, do senders share a receiver, are signals free?

    python benchmarks/link_clock.py [-o benchmarks/results/link_clock.json]

Ranks are threads of one process (threads.py). Every row is a median over samples, all of which are stored;
`ratio` is measured over modelled time.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import common
import torch
from threads import prepared, threads_close

from tilescale.codegen.cache import Binary
from tilescale.codegen.compile import Compiler, Source
from tilescale.codegen.emit import emit, link_fs_per_byte
from tilescale.schedules.lower import lower
from tilescale.schedules.plan import Copy, Launch, Plan, Role, Signal, Step, Wait
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec, redistribute
from tilescale.spec.tensor import Tensor
from tilescale.spec.topology import Topology
from tilescale.spec.views import FullRow, Replicate

PUT_BYTES = 64 << 20
SAMPLES = 11
SLEEP_CYCLES = 2_000_000  # about a millisecond


def gather(ranks: int) -> Spec:
    """Every rank's shard is PUT_BYTES."""
    rows = PUT_BYTES // 8192 // 2 * ranks
    return redistribute(
        Tensor((rows, 8192), "bfloat16", FullRow),
        Replicate,
        topology=Topology.scale_model("8xH200-NVSwitch", ranks=ranks),
    )


def only_copies(plan: Plan, keep: Callable[[int, Step], bool]) -> Plan:
    """The plan with nothing but the copies that `keep(rank, step)` accepts, so that each launch ends by itself."""

    def role(rank: int, found: Role) -> Role:
        return replace(found, steps=tuple(s for s in found.steps if isinstance(s, Copy) and keep(rank, s)))

    def launches(rank: int, found: tuple[Launch, ...]) -> tuple[Launch, ...]:
        edited = [replace(launch, roles=tuple(role(rank, r) for r in launch.roles)) for launch in found]
        kept = tuple(launch for launch in edited if any(launch.steps))
        return kept or (next(launch for launch in edited if launch.agent == "blocks"),)

    return replace(plan, ranks=tuple(launches(rank, found) for rank, found in enumerate(plan.ranks)))


def elapsed_us(
    spec: Spec, schedule: Schedule, plan: Plan, compiler: Compiler, active: Sequence[int]
) -> list[list[float]]:
    """Samples a rank: microseconds from when the first of the active ranks begins to when its own launches end."""
    program = emit(spec, schedule, plan)
    found = compiler.compile([Source(k.text, k.entry, k.arch) for k in program.kernels])
    binaries = {k.digest: b.cubin for k, b in zip(program.kernels, found, strict=True) if isinstance(b, Binary)}
    operations = prepared(spec, program, binaries)
    shards = [
        torch.randn(spec.inputs[0].local_shape(r, spec.world), device="cuda").bfloat16() for r in range(spec.world)
    ]
    outs = [torch.empty(spec.inputs[0].sizes, device="cuda", dtype=torch.bfloat16) for _ in range(spec.world)]
    streams = [torch.cuda.Stream() for _ in range(spec.world)]
    samples: list[list[float]] = [[] for _ in range(spec.world)]
    for i in range(SAMPLES + 1):
        torch.cuda.synchronize()
        events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in streams]
        for stream in streams:
            with torch.cuda.stream(stream):
                torch.cuda._sleep(SLEEP_CYCLES)  # everything is enqueued before anything starts
        for r, operation in enumerate(operations):
            events[r][0].record(streams[r])
            operation({"a": shards[r].data_ptr(), "out": outs[r].data_ptr()}, streams[r].cuda_stream)
            events[r][1].record(streams[r])
        torch.cuda.synchronize()
        if i:
            first = events[0][0]
            begins = [first.elapsed_time(begin) * 1000 for begin, _ in events]
            for r, (_, end) in enumerate(events):
                samples[r].append(first.elapsed_time(end) * 1000 - min(begins[r] for r in active))
    threads_close(operations)
    return samples


def row(name: str, samples: list[float], modelled_us: float) -> dict[str, Any]:
    median = statistics.median(samples)
    return {
        "case": name,
        "median_us": round(median, 2),
        "modelled_us": round(modelled_us, 2),
        "ratio": round(median / modelled_us, 4),
        "samples_us": [round(s, 2) for s in samples],
    }


def measure(compiler: Compiler) -> list[dict[str, Any]]:
    rows = []
    for transport, blocks in (("peer_copy", 4), ("peer_copy", 8), ("tma", 4), ("tma", 8), ("copy_engine", 0)):
        schedule = Schedule(transport=transport, overlap="none", compute="generated", num_comm_blocks=blocks)
        for ranks in (2, 4):
            spec = gather(ranks)
            plan = lower(spec, schedule)
            us = PUT_BYTES * link_fs_per_byte(spec) / 1e9

            def one(rank: int, step: Step) -> bool:
                return isinstance(step, Copy) and rank == 0 and step.dst.rank == 1

            def two(rank: int, step: Step) -> bool:
                return isinstance(step, Copy) and rank in (1, 2) and step.dst.rank == 0

            name = f"{transport} {blocks} blocks w{ranks}"
            alone = elapsed_us(spec, schedule, only_copies(plan, one), compiler, [0])[0]
            rows.append(row(f"put of 64 MB, {name}", alone, us))
            if ranks == 4:
                found = elapsed_us(spec, schedule, only_copies(plan, two), compiler, [1, 2])
                both = [max(pair) for pair in zip(found[1], found[2], strict=True)]
                rows.append(row(f"two senders into one receiver, {name}", both, 2 * us))
            print(rows[-1]["case"], rows[-1]["median_us"], rows[-1]["modelled_us"], rows[-1]["ratio"], flush=True)
    return rows


def signal_delay(compiler: Compiler) -> dict[str, Any]:
    """A signal sent behind the link's back: rank 1 waits for a signal while 64 MB to it are under way."""
    spec = gather(2)
    schedule = Schedule(overlap="fused", compute="generated", chunk_rows=0, depth=1, num_comm_blocks=4)
    plan = lower(spec, replace(schedule, chunk_rows=spec.inputs[0].local_shape(0, 2)[0]))
    base = plan.ranks[0][0]
    put = next(s for s in base.steps if isinstance(s, Copy) and s.dst.rank == 1)
    sender = replace(base, roles=(Role("put", "blocks", 4, (put,)), Role("signal", "blocks", 1, (Signal(1, 0),))))
    waiter = replace(base, roles=(Role("wait", "blocks", 1, (Wait(0, 1),)),))
    samples = elapsed_us(spec, schedule, replace(plan, ranks=((sender,), (waiter,))), compiler, [1])
    us = PUT_BYTES * link_fs_per_byte(spec) / 1e9
    return row("a signal beside a put of 64 MB (ratio to the put)", samples[1], us)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    torch.zeros(1, device="cuda")
    with Compiler(workers=4) as compiler:
        rows = measure(compiler)
        rows.append(signal_delay(compiler))
        print(rows[-1]["case"], rows[-1]["median_us"], rows[-1]["ratio"], flush=True)
    result = {**common.header("link_clock"), "rows": rows}
    if arguments.output:
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    worst = max(abs(r["ratio"] - 1) for r in rows[:-1])
    print(f"largest deviation from the model: {worst:.1%}")


if __name__ == "__main__":
    main()
