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


class Rank:
    """One rank process: the loaded operation and the tuned schedule, made anew, in its share of the GPU."""

    def __init__(self, bundle: str, name: str, meeting: str, rank: int, world: int) -> None:
        import torch
        import torch.distributed as dist

        import tilescale as ts
        from tilescale.deploy import bundle as bundles
        from tilescale.runtime.gpu_driver import RankDriver

        torch.cuda.set_device(0)
        torch.zeros(1, device="cuda")
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
        self.torch, self.rank, self.world = torch, rank, world
        self.variant = next(e for e in bundles.read(bundle).manifest.operations if e.name == name).variants[0]
        self.spec = self.variant.spec
        self.driver = RankDriver(0, rank, world, self.spec.topology.sm_share, 0)
        self.stream = self.driver.create_stream()
        self.external = torch.cuda.ExternalStream(self.stream)
        self.loaded = ts.load(bundle, find=lambda ordinal: self.driver)[name]
        self.tuned = self.emitted()
        self.samples: dict[str, list[float]] = {"loaded": [], "tuned": []}

    def emitted(self) -> Any:
        """The schedule of the bundle, emitted and compiled here."""
        from tilescale.codegen.cache import Binary
        from tilescale.codegen.compile import Compiler, Source
        from tilescale.codegen.emit import emit
        from tilescale.deploy.launch import PreparedOperation
        from tilescale.deploy.library import TorchLibrary
        from tilescale.deploy.modules import Modules

        self.program = program = emit(self.spec, self.variant.schedule)
        with Compiler(1) as compiler:
            made = compiler.compile([Source(k.text, k.entry, k.arch) for k in program.kernels])
        binaries = {k.digest: b.cubin for k, b in zip(program.kernels, made, strict=True) if isinstance(b, Binary)}
        return PreparedOperation(self.spec, program, self.rank, self.driver, self.exchange, Modules(self.driver, binaries),
                                 library=TorchLibrary(self.torch))

    def exchange(self, mine: bytes) -> list[bytes]:
        answers: list[Any] = [None] * self.world
        self.torch.distributed.all_gather_object(answers, mine)
        return answers

    def inputs(self, call: int, of: int) -> list[Any]:
        """The operands of any rank, on the host."""
        torch, (first, second) = self.torch, self.spec.inputs
        generator = torch.Generator().manual_seed(1000 * call + of)
        a = torch.randn(first.local_shape(of, self.world), generator=generator).bfloat16()
        k, n = second.local_shape(of, self.world)
        col = second.order == "col"
        b = torch.randn((n, k) if col else (k, n), generator=generator).bfloat16()
        return [a, b.t() if col else b]

    def call(self, which: str, a: Any, b: Any, out: Any) -> None:
        if which == "loaded":
            self.loaded(a, b, out=out)
        else:
            self.tuned({"a": a.data_ptr(), "b": b.data_ptr(), "out": out.data_ptr()}, self.stream)

    def checked(self) -> tuple[bool, bool]:
        """Whether both give the same bits, and are right against fp64, on fresh inputs; keeps those of the last call."""
        torch, equal, right = self.torch, True, True
        for call in range(CHECKED):
            a, b = (t.cuda() for t in self.inputs(call, self.rank))
            b = b if self.spec.inputs[1].order == "row" else b.t().contiguous().t()
            shape = self.spec.output.local_shape(self.rank, self.world)
            outs = [torch.full(shape, float("nan"), device="cuda", dtype=torch.bfloat16) for _ in range(2)]
            self.call("loaded", a, b, outs[0])
            self.call("tuned", a, b, outs[1])
            self.external.synchronize()
            equal &= torch.equal(outs[0], outs[1])
            right &= self.right(call, b, outs[0])
        self.last = a, b, outs
        return equal, right

    def right(self, call: int, b: Any, out: Any) -> bool:
        whole = self.torch.cat([self.inputs(call, r)[0] for r in range(self.world)]).cuda().double()
        reference = whole @ b.double()
        rounding = self.torch.finfo(self.torch.bfloat16).eps / 2 * reference.abs()
        bound = rounding + 2.0**-23 * b.shape[0] * (whole.abs() @ b.double().abs())
        return bool(((out.double() - reference).abs() <= bound).all())

    def timed(self) -> None:
        """Rounds in turn; the first is not kept."""
        a, b, outs = self.last
        for number in range(ROUNDS + 1):
            for which in ("loaded", "tuned") if number % 2 else ("tuned", "loaded"):
                us = self.time_of(which, a, b, outs[which == "tuned"])
                if number:
                    self.samples[which].append(us)
        self.tuned.check(self.stream)

    def time_of(self, which: str, a: Any, b: Any, out: Any) -> float:
        torch = self.torch
        torch.distributed.barrier()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        for i in range(CALLS + 2):
            if i == 2:
                start.record(self.external)  # two calls to get in step
            self.call(which, a, b, out)
        end.record(self.external)
        self.external.synchronize()
        return float(start.elapsed_time(end)) * 1000 / CALLS


def rank_main(bundle: str, name: str, meeting: str, rank: int, world: int) -> None:
    one = Rank(bundle, name, meeting, rank, world)
    with one.torch.cuda.stream(one.external):
        equal, right = one.checked()
        one.timed()
    gpu = one.driver.facts()
    said = {
        "rank": rank,
        "equal": equal,
        "right": right,
        "same_program": one.program.digest == one.variant.program_digest,
        "samples_us": one.samples,
        "environment": {"gpu": gpu.name, "uuid": gpu.uuid, "torch": one.torch.__version__, "driver": gpu.driver},
        "spec": one.spec.label,
        "schedule": one.variant.schedule.label,
    }
    print(json.dumps(said), flush=True)
    one.torch.distributed.barrier()


def started(given: argparse.Namespace, folder: str, environment: dict[str, str]) -> list[dict[str, Any]]:
    """What every rank says, each in a process of its own."""
    command = [sys.executable, __file__, given.bundle, given.name, "--ranks", str(given.ranks)]
    command += ["--meeting", f"{folder}/meeting"]
    variables = {**os.environ, **ENVIRONMENT, **environment}
    ranks = [
        subprocess.Popen([*command, "--rank", str(rank)], env=variables, stdout=subprocess.PIPE, text=True)
        for rank in range(given.ranks)
    ]
    try:
        said = [process.communicate(timeout=150)[0].strip().splitlines() for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    return [json.loads(lines[-1]) for lines in said]


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
        rows = started(given, folder, daemon.environment)
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
