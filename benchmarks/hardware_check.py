"""Every generated kernel family on one GPU, ranks as threads of this process: right on exact integers, and how long.

    python benchmarks/hardware_check.py [-o FILE]

Three calls each. Library products are no kernel family: check_runner.py checks schedules with them, in rank processes.
The shapes are those that the emulator runs (smaller tables, the same binaries) and one large one a family. Times are of
ranks that share a GPU without a barrier before each sample: for orientation only, and so they are not stored as measured.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # streams of several ranks must not queue behind each other
os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")  # nothing is loaded while kernels wait for each other

import common
import torch

from tilescale.codegen.cache import Binary
from tilescale.codegen.compile import Compiler, Source
from tilescale.codegen.emit import emit
from tilescale.deploy.cuda_driver import CudaDriver
from tilescale.deploy.launch import PreparedOperation
from tilescale.deploy.modules import Modules
from tilescale.runtime.scaled import scaled
from tilescale.schedules.lower import lower
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec, matmul, redistribute
from tilescale.spec.tensor import Tensor
from tilescale.spec.topology import Topology
from tilescale.spec.views import FullCol, FullRow, Replicate

CALLS = 3
TIME_LIMIT_S = 2.0
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32, "int32": torch.int32}


class Peers(CudaDriver):
    """Ranks are threads of one process, so a handle is an address."""

    def export_memory(self, address: int) -> bytes:
        return address.to_bytes(8, "little")

    def open_memory(self, handle: bytes) -> int:
        return int.from_bytes(handle[:8], "little")

    def close_memory(self, address: int) -> None:
        pass


class Meeting:
    """An exchange between threads."""

    def __init__(self, world: int) -> None:
        self.barrier, self.slots = threading.Barrier(world, timeout=60), [b""] * world

    def of(self, rank: int) -> Any:
        def exchange(mine: bytes) -> Sequence[bytes]:
            self.slots[rank] = mine
            self.barrier.wait()
            answers = list(self.slots)
            self.barrier.wait()
            return answers

        return exchange


def prepared(spec: Spec, program: Any, binaries: dict[str, bytes]) -> list[PreparedOperation]:
    meeting, made = Meeting(spec.world), [None] * spec.world
    failures: list[BaseException] = []

    def make(rank: int) -> None:
        try:
            driver = Peers(0)
            made[rank] = PreparedOperation(
                spec,
                program,
                rank,
                driver,
                meeting.of(rank),
                Modules(driver, binaries),
                time_limit_s=TIME_LIMIT_S,
            )
        except BaseException as error:  # noqa: BLE001 (raised again by the caller)
            failures.append(error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=make, args=(rank,)) for rank in range(spec.world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return made


def integers(shape: Sequence[int], dtype: str, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(-2, 3, tuple(shape), device="cuda", generator=generator).to(DTYPES[dtype])


def run(spec: Spec, schedule: Schedule, plan: Any, compiler: Compiler, timed: bool) -> dict[str, Any]:
    """Three calls, checked; with `timed` also a rough time."""
    program = emit(spec, schedule, plan)
    binaries = {}
    found = compiler.compile([Source(k.text, k.entry, k.arch) for k in program.kernels])
    for kernel, binary in zip(program.kernels, found, strict=True):
        if not isinstance(binary, Binary):
            return {"status": "compile_error", "message": str(binary)}
        binaries[kernel.digest] = binary.cubin
    operations = prepared(spec, program, binaries)
    streams = [torch.cuda.Stream() for _ in range(spec.world)]
    generator = torch.Generator("cuda").manual_seed(0)
    wrong = 0
    a, b, out = spec.inputs[0], spec.inputs[1] if len(spec.inputs) > 1 else None, spec.output
    result: dict[str, Any] = {}
    try:
        for _ in range(CALLS):
            shards = [integers(a.local_shape(r, spec.world), a.dtype, generator) for r in range(spec.world)]
            weights = []
            outputs = []
            for r in range(spec.world):
                if b is not None:
                    k, n = b.local_shape(r, spec.world)
                    weights.append(integers((n, k) if b.order == "col" else (k, n), b.dtype, generator))
                shape = out.local_shape(r, spec.world)
                outputs.append(torch.full(shape, 77, device="cuda").to(DTYPES[out.dtype]))
            for r, operation in enumerate(operations):
                place = operation.operand("a")
                if place is not None:
                    flat = shards[r].contiguous().view(torch.uint8).flatten()

                    class Memory:
                        __cuda_array_interface__ = {
                            "shape": (flat.numel(),),
                            "typestr": "|u1",
                            "data": (place, False),
                            "version": 3,
                        }

                    torch.as_tensor(Memory(), device="cuda").copy_(flat)
            torch.cuda.synchronize()
            operands = []
            for r, operation in enumerate(operations):
                values = {"a": operation.operand("a") or shards[r].data_ptr(), "out": outputs[r].data_ptr()}
                if b is not None:
                    values["b"] = weights[r].data_ptr()
                operands.append(values)
            for r, operation in enumerate(operations):
                operation(operands[r], streams[r].cuda_stream)
            for r, operation in enumerate(operations):
                operation.check(streams[r].cuda_stream)
            whole = torch.cat(shards).double()
            for r in range(spec.world):
                reference = whole
                if b is not None:
                    reference = whole @ (weights[r].double().T if b.order == "col" else weights[r].double())
                wrong += int((outputs[r] != reference.to(DTYPES[out.dtype])).sum())
        result = {"status": "ok" if wrong == 0 else "wrong_result", "wrong": wrong}
        if timed and wrong == 0:
            repeats = 10
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(repeats):
                for r, operation in enumerate(operations):
                    operation(operands[r], streams[r].cuda_stream)
            torch.cuda.synchronize()
            result["rough_us"] = round((time.perf_counter() - start) / repeats * 1e6, 1)
    except Exception as error:  # noqa: BLE001 (a row says what failed, and the others go on)
        result = {"status": "failed", "message": f"{type(error).__name__}: {error}"[:400]}
    torch.cuda.synchronize()
    threads_close(operations)
    return result


def threads_close(operations: list[PreparedOperation]) -> None:
    """Closing is collective, so every rank does it in a thread of its own."""
    threads = [threading.Thread(target=operation.close) for operation in operations]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def families() -> dict[str, tuple[Spec, Schedule]]:
    topology = Topology.scale_model("8xH200-NVSwitch", ranks=4)

    def product(order: str = "col", dtype: str = "bfloat16", out: str | None = None, inputs: str = "ordinary") -> Spec:
        return matmul(
            Tensor((4096, 8192), dtype, FullRow),
            Tensor((8192, 10240), dtype, FullCol, order=order),
            out=FullCol,
            topology=topology,
            out_dtype=out,
            inputs=inputs,
        )

    def gather(shape: tuple[int, ...] = (4096, 8192), dtype: str = "bfloat16", inputs: str = "ordinary") -> Spec:
        return redistribute(Tensor(shape, dtype, FullRow), Replicate, topology=topology, inputs=inputs)

    fused = Schedule(
        overlap="fused",
        compute="generated",
        chunk_rows=256,
        depth=2,
        num_comm_blocks=4,
        block_m=128,
        block_n=256,
        block_k=64,
        num_stages=4,
        raster_group=8,
    )
    small = replace(fused, block_m=64, block_n=128, num_stages=3)
    copy = Schedule(overlap="fused", compute="generated", chunk_rows=256, depth=2, num_comm_blocks=4)
    none = {"overlap": "none", "chunk_rows": 0, "depth": 1}
    found: dict[str, tuple[Spec, Schedule]] = {}
    for transport in ("peer_copy", "tma", "copy_engine"):
        blocks = {"num_comm_blocks": 0} if transport == "copy_engine" else {}
        for direction in ("push", "pull"):
            base = {"transport": transport, "direction": direction, **blocks}
            name = f"{transport} {direction}"
            found[f"ag_gemm fused {name}"] = (product(), replace(fused, **base))
            found[f"ag_gemm chunked {name}"] = (product(), replace(small, **base, overlap="chunked"))
            found[f"ag_gemm none {name}"] = (product(), replace(fused, **base, **none))
            found[f"all_gather none {name}"] = (gather(), replace(copy, **base, **none))
            if transport != "copy_engine" or direction == "push":
                found[f"all_gather fused {name}"] = (gather(), replace(copy, **base))
    found["ag_gemm row-major B"] = (product("row"), fused)
    found["ag_gemm row-major B small"] = (product("row"), small)
    found["ag_gemm fp16 to fp32"] = (product(dtype="float16", out="float32"), small)
    found["ag_gemm symmetric pull tma"] = (
        product(inputs="symmetric"),
        replace(fused, direction="pull", transport="tma"),
    )
    found["all_gather odd bytes"] = (gather((4092, 3)), copy)
    found["all_gather int32 symmetric pull"] = (
        gather((4096, 64), "int32", "symmetric"),
        replace(copy, direction="pull"),
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    rows = {}
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    with Compiler(workers=8) as compiler:
        for name, (spec, schedule) in families().items():
            if arguments.only not in name:
                continue
            small = scaled(spec, schedule)
            row = {"small": run(small.spec, small.schedule, small.plan, compiler, False)}
            if row["small"]["status"] in ("ok", "wrong_result"):
                row["large"] = run(spec, schedule, lower(spec, schedule), compiler, True)
            rows[name] = row
            print(f"{name:44s} {row}", flush=True)
            if arguments.output:
                arguments.output.write_text(
                    json.dumps({**common.header("hardware_check"), "rows": rows}, indent=1) + "\n"
                )
    good = sum(all(part["status"] == "ok" for part in row.values()) and len(row) == 2 for row in rows.values())
    print(f"{good} of {len(rows)} families right")


if __name__ == "__main__":
    main()
