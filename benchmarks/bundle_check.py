"""An exported bundle, loaded in fresh rank processes that share a GPU: the bits of the tuned kernel, and its time?

    python benchmarks/bundle_check.py BUNDLE NAME [-o benchmarks/results/bundle.json]

Every rank, in its share of the GPU, holds the loaded operation and the tuned schedule emitted and compiled anew. They
get the same inputs; outputs are compared bit for bit, with fp64 besides, and timed in turn (CALLS calls on end, maximum
over ranks).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import common

CALLS, ROUNDS, CHECKED = 20, 15, 3
ENVIRONMENT = {"CUDA_DEVICE_MAX_CONNECTIONS": "8", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NCCL_NVLS_ENABLE": "0"}


def rank_main(bundle: str, name: str, meeting: str, rank: int, world: int) -> None:
    import torch
    import torch.distributed as dist

    import tilescale as ts
    from tilescale.codegen.cache import Binary
    from tilescale.codegen.compile import Compiler, Source
    from tilescale.codegen.emit import emit
    from tilescale.deploy import bundle as bundles
    from tilescale.deploy.launch import PreparedOperation
    from tilescale.deploy.library import TorchLibrary
    from tilescale.deploy.modules import Modules
    from tilescale.runtime.gpu_driver import RankDriver
    from tilescale.spec.result import EPSILON

    torch.cuda.set_device(0)
    torch.zeros(1, device="cuda")
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    entry = next(e for e in bundles.read(bundle).manifest.operations if e.name == name)
    spec, schedule = entry.variants[0].spec, entry.variants[0].schedule
    driver = RankDriver(0, rank, world, spec.topology.sm_share, 0)
    stream = driver.create_stream()
    external = torch.cuda.ExternalStream(stream)
    loaded = ts.load(bundle, find=lambda ordinal: driver)[name]

    program = emit(spec, schedule)
    with Compiler(1) as compiler:
        made = compiler.compile([Source(k.text, k.entry, k.arch) for k in program.kernels])
    binaries = {k.digest: b.cubin for k, b in zip(program.kernels, made, strict=True) if isinstance(b, Binary)}

    def exchange(mine: bytes) -> list[bytes]:
        answers: list[Any] = [None] * world
        dist.all_gather_object(answers, mine)
        return answers

    tuned = PreparedOperation(
        spec, program, rank, driver, exchange, Modules(driver, binaries), library=TorchLibrary(torch)
    )

    def inputs(call: int, of: int) -> list[Any]:
        generator = torch.Generator().manual_seed(1000 * call + of)
        a = torch.randn(spec.inputs[0].local_shape(of, world), generator=generator).bfloat16()
        k, n = spec.inputs[1].local_shape(of, world)
        col = spec.inputs[1].order == "col"
        b = torch.randn((n, k) if col else (k, n), generator=generator).bfloat16()
        return [a, b.t() if col else b]

    equal, right = True, True
    with torch.cuda.stream(external):
        for call in range(CHECKED):
            a, b = (t.cuda() for t in inputs(call, rank))
            b = b if spec.inputs[1].order == "row" else b.t().contiguous().t()
            shape = spec.output.local_shape(rank, world)
            outs = [torch.full(shape, float("nan"), device="cuda", dtype=torch.bfloat16) for _ in range(2)]
            loaded(a, b, out=outs[0])
            tuned({"a": a.data_ptr(), "b": b.data_ptr(), "out": outs[1].data_ptr()}, stream)
            external.synchronize()
            equal &= torch.equal(outs[0], outs[1])
            whole = torch.cat([inputs(call, r)[0] for r in range(world)]).cuda().double()
            reference = whole @ b.double()
            bound = EPSILON["bfloat16"] / 2 * reference.abs() + 2.0**-23 * b.shape[0] * (whole.abs() @ b.double().abs())
            right &= bool(((outs[0].double() - reference).abs() <= bound).all())
        samples: dict[str, list[float]] = {"loaded": [], "tuned": []}
        for number in range(ROUNDS + 1):
            for which in ("loaded", "tuned") if number % 2 else ("tuned", "loaded"):
                dist.barrier()
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                for i in range(CALLS + 2):
                    if i == 2:
                        start.record(external)  # two calls to get in step
                    if which == "loaded":
                        loaded(a, b, out=outs[0])
                    else:
                        tuned({"a": a.data_ptr(), "b": b.data_ptr(), "out": outs[1].data_ptr()}, stream)
                end.record(external)
                external.synchronize()
                if number:
                    samples[which].append(start.elapsed_time(end) * 1000 / CALLS)
        tuned.check(stream)
    facts = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "driver": driver.facts().driver}
    same = bundles.read(bundle).manifest is not None and program.digest == entry.variants[0].program_digest
    print(
        json.dumps(
            {
                "rank": rank,
                "equal": equal,
                "right": right,
                "same_program": same,
                "samples_us": samples,
                "environment": facts,
                "spec": spec.label,
                "schedule": schedule.label,
            }
        ),
        flush=True,
    )
    dist.barrier()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle")
    parser.add_argument("name")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--meeting", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank is not None:
        rank_main(given.bundle, given.name, given.meeting, given.rank, given.ranks)
        return 0
    from tilescale.runtime.mps import MpsDaemon

    with MpsDaemon() as daemon, tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            __file__,
            given.bundle,
            given.name,
            "--ranks",
            str(given.ranks),
            "--meeting",
            f"{folder}/meeting",
        ]
        ranks = [
            subprocess.Popen(
                [*command, "--rank", str(r)],
                env={**os.environ, **ENVIRONMENT, **daemon.environment},
                stdout=subprocess.PIPE,
                text=True,
            )
            for r in range(given.ranks)
        ]
        try:
            said = [process.communicate(timeout=150)[0].strip().splitlines() for process in ranks]
        finally:
            for process in ranks:
                process.kill()
                process.wait()
    rows = [json.loads(lines[-1]) for lines in said]
    samples = {
        which: [max(r["samples_us"][which][i] for r in rows) for i in range(ROUNDS)] for which in ("loaded", "tuned")
    }
    medians = {which: statistics.median(values) for which, values in samples.items()}
    result = {
        **common.header("bundle"),
        "environment": rows[0]["environment"],
        "spec": rows[0]["spec"],
        "schedule": rows[0]["schedule"],
        "same_bits": all(r["equal"] for r in rows),
        "right_against_fp64": all(r["right"] for r in rows),
        "same_program": all(r["same_program"] for r in rows),
        "loaded_us": medians["loaded"],
        "tuned_us": medians["tuned"],
        "ratio": medians["loaded"] / medians["tuned"],
        "samples_us": samples,
        "rank_samples_us": [r["samples_us"] for r in rows],
    }
    if given.output:
        given.output.write_text(json.dumps(result, indent=1) + "\n")
    print({k: v for k, v in result.items() if "samples" not in k})
    return 0


if __name__ == "__main__":
    sys.exit(main())
