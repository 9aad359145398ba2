"""The emulator: runs a graph of launches on a CPU, with every CUDA thread of every rank a fiber of one seeded process.

`Machine` collects memories and nodes into a `Job`; `run_job` executes it here, `run_isolated` in a process of its own,
where a broken kernel can do no harm. Kernels come from `build_candidate`. What it does not model: weak memory and proxy
fences, timing.
"""

from __future__ import annotations

import pickle
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tilescale.codegen.host.build import build_candidate, build_runtime
from tilescale.errors import EmulationError
from tilescale.runtime.emulator_job import (
    ADVERSARIES,
    FORMATS,
    MEMORY_KINDS,
    CallerReads,
    CallerWrites,
    CopyEngine,
    Job,
    Kernel,
    LibraryGemm,
    Memory,
    Multicast,
    Node,
)
from tilescale.runtime.emulator_library import ARGUMENT_BYTES, MAP_BYTES, run_job
from tilescale.runtime.emulator_report import Fault, Range, RunReport, Signalled, StepLog, Waited, Waiting

__all__ = [
    "ADVERSARIES",
    "Fault",
    "Job",
    "Machine",
    "Memory",
    "Range",
    "RunReport",
    "Signalled",
    "StepLog",
    "Waited",
    "Waiting",
    "build_candidate",
    "build_runtime",
    "run_isolated",
    "run_job",
    "tensor_map",
]

_FIRST_ADDRESS = 0x2000_0000_0000  # far from where systems put heaps, stacks and libraries
_ALIGNMENT = 1 << 20
_MAX_THREADS = 1024
STEP_LIMIT = 20_000_000


def tensor_map(
    base: int,
    sizes: Sequence[int],
    strides_bytes: Sequence[int],
    box: Sequence[int],
    element_bytes: int,
    swizzle: bool = True,
) -> bytes:
    """The host form of a tensor map (128 bytes): 2 or 3 `sizes`, innermost first; strides without the innermost."""
    if len(sizes) not in (2, 3) or len(strides_bytes) != len(sizes) - 1 or len(box) != len(sizes):
        raise EmulationError(
            "a tensor map has 2 or 3 sizes, one stride fewer, and as many box sizes",
            f"{list(sizes)}, {list(strides_bytes)}, {list(box)}",
        )
    fill = [1] * (3 - len(sizes))
    strides = [*strides_bytes, *([strides_bytes[0] * sizes[1]] * (2 - len(strides_bytes)))]
    return struct.pack("<6Q6I7Q", base, *sizes, *fill, *strides, *box, *fill, element_bytes, int(swizzle), 0, *[0] * 7)


class Machine:
    """Collects what to run. Methods that add a node return its number, to be named in `after` of later ones."""

    def __init__(
        self,
        seed: int = 0,
        adversary: str = "lazy",
        sm_share: int = 132,
        step_limit: int = STEP_LIMIT,
        expire: bool = False,
        late_rank: int = -1,
    ) -> None:
        _one_of("adversary", adversary, ADVERSARIES)
        self._late_rank = late_rank
        self._settings = (seed, adversary, sm_share, step_limit, expire)
        self._memories: list[Memory] = []
        self._nodes: list[Node] = []
        self._multicasts: list[Multicast] = []
        self._next_address = _FIRST_ADDRESS

    def register_memory(
        self,
        rank: int,
        name: str,
        size: int,
        *,
        kind: str = "data",
        data: bytes = b"",
        initialised: bool = False,
        counter_stride: int = 4,
    ) -> Memory:
        """A buffer of `rank`, its `address` chosen. See `Memory`."""
        _one_of("kind of memory", kind, MEMORY_KINDS)
        if size <= 0 or len(data) > size:
            raise EmulationError(
                "a memory has at least one byte, and its data fits", f"{size} bytes, {len(data)} of data"
            )
        memory = Memory(
            len(self._memories), rank, name, kind, self._next_address, size, initialised, counter_stride, data
        )
        # A gap without access follows, so that plain accesses past the end are faults.
        self._next_address += (size // _ALIGNMENT + 2) * _ALIGNMENT
        self._memories.append(memory)
        return memory

    def register_multicast(self, members: Sequence[Memory]) -> int:
        """An address that stands for the same bytes of all `members`: multimem primitives reach them through it."""
        size = min(memory.size for memory in members)
        address = self._next_address
        self._next_address += (size // _ALIGNMENT + 2) * _ALIGNMENT
        self._multicasts.append(Multicast(address, size, tuple(memory.address for memory in members)))
        return address

    def add_kernel(
        self,
        rank: int,
        name: str,
        library: Path,
        entry: str,
        arguments: bytes,
        maps: bytes,
        blocks: int,
        threads: int,
        shared_bytes: int,
        after: Sequence[int] = (),
        call: int = 0,
        cluster: int = 1,
    ) -> int:
        """A launch. `arguments`: ts::Arguments, `maps`: tensor maps one behind the other (see `tensor_map`).

        `blocks` are those of all clusters of `cluster` blocks.
        """
        if len(arguments) > ARGUMENT_BYTES or len(maps) > MAP_BYTES:
            raise EmulationError(
                f"a kernel takes {ARGUMENT_BYTES} bytes of arguments and {MAP_BYTES} of maps",
                f"{len(arguments)} and {len(maps)}",
            )
        if blocks < 1 or not 1 <= threads <= _MAX_THREADS:
            raise EmulationError(
                f"a launch has at least one block of 1 to {_MAX_THREADS} threads", f"{blocks} x {threads}"
            )
        if cluster < 1 or cluster > 16 or blocks % cluster:
            raise EmulationError("clusters have 1 to 16 blocks and divide the launch", f"{cluster} of {blocks} blocks")
        return self._add(
            Kernel(
                rank, name, call, tuple(after), library, entry, arguments, maps, blocks, threads, shared_bytes, cluster
            )
        )

    def add_copy(
        self,
        rank: int,
        name: str,
        target: int,
        source: int,
        size: int,
        step: int,
        after: Sequence[int] = (),
        call: int = 0,
    ) -> int:
        """A copy by a copy engine, from address `source` to `target`."""
        return self._add(CopyEngine(rank, name, call, tuple(after), step, target, source, size))

    def add_library_gemm(
        self,
        rank: int,
        name: str,
        a: int,
        b: int,
        out: int,
        m: int,
        n: int,
        k: int,
        *,
        in_format: str,
        out_format: str,
        b_transposed: bool,
        a_transposed: bool = False,
        step: int,
        after: Sequence[int] = (),
        call: int = 0,
    ) -> int:
        """A library product over addresses. See `LibraryGemm`."""
        _one_of("format", in_format, FORMATS)
        _one_of("format", out_format, FORMATS)
        return self._add(
            LibraryGemm(rank, name, call, tuple(after), step, a, b, out, m, n, k, in_format, out_format, b_transposed,
                        a_transposed)
        )

    def add_caller_write(
        self,
        rank: int,
        address: int,
        data: bytes,
        after: Sequence[int] = (),
        call: int = 0,
        name: str = "caller writes",
    ) -> int:
        """The caller fills an input, or poisons an output, before a call."""
        return self._add(CallerWrites(rank, name, call, tuple(after), address, data))

    def add_caller_read(
        self, rank: int, address: int, size: int, after: Sequence[int] = (), call: int = 0, name: str = "caller reads"
    ) -> int:
        """The caller reads an output after a call; RunReport.seen[node] holds the bytes."""
        return self._add(CallerReads(rank, name, call, tuple(after), address, size))

    def job(self) -> Job:
        """What was collected, as a value."""
        return Job(*self._settings, tuple(self._memories), tuple(self._nodes), self._late_rank, tuple(self._multicasts))

    def run(self) -> RunReport:
        """Execute in this process. A kernel that loops without any primitive never returns: see `run_isolated`."""
        return run_job(self.job())

    def _add(self, node: Node) -> int:
        unknown = [n for n in node.after if not 0 <= n < len(self._nodes)]
        if unknown:
            raise EmulationError("a node depends on nodes added before it", f"{node.name} after {unknown}")
        self._nodes.append(node)
        return len(self._nodes) - 1


def _one_of(what: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise EmulationError(f"the {what} is one of {', '.join(known)}", repr(value))


def run_isolated(jobs: Sequence[Job], timeout_s: float = 120.0) -> list[RunReport]:
    """Run `jobs` one after the other in one process of their own; reports in the same order.

    Raises EmulationError where that process dies or takes longer than `timeout_s` for all.
    """
    build_runtime()  # so that its time is not the worker's
    command = [sys.executable, "-m", "tilescale.runtime.emulator_worker"]
    try:
        done = subprocess.run(
            command, input=pickle.dumps(list(jobs)), capture_output=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise EmulationError(
            f"an emulation ends within {timeout_s:g} s",
            f"{len(jobs)} jobs still running",
            "look for a loop without primitives, or allow more time",
        ) from error
    if done.returncode != 0:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise EmulationError(
            "the emulator's process ends well",
            f"status {done.returncode} {' '.join(last)}".strip(),
            "a kernel broke it: run the jobs one at a time to find which",
        )
    reports: list[RunReport] = pickle.loads(done.stdout)
    return reports
