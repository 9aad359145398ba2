"""Executes a job with the emulator's runtime library (codegen/host), one at a time in a process."""

from __future__ import annotations

import _ctypes
import ctypes
import functools
import threading
from collections import defaultdict
from ctypes import CFUNCTYPE, POINTER, Structure, byref, c_char_p, c_uint32, c_uint64, c_void_p
from typing import Any

from tilescale.codegen.host.build import build_runtime
from tilescale.codegen.table import ARGUMENTS
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
)
from tilescale.runtime.emulator_report import (
    FAULTS,
    WAITS,
    Fault,
    Range,
    RunReport,
    Signalled,
    StepLog,
    Waited,
    Waiting,
    merge_waiting,
)

ARGUMENT_BYTES = ARGUMENTS.size
MAP_BYTES = 8 * 128
_NOBODY = 0xFFFFFFFF
_PLACE_FIELDS = 7
_lock = threading.Lock()
_Row = CFUNCTYPE(None, c_uint32, c_uint32, c_uint32, c_uint32, c_uint64, c_uint64, c_uint64, c_uint64)


class _Waiting(Structure):
    _fields_ = [
        (n, c_uint32) for n in ("rank", "node", "block", "first_thread", "last_thread", "step", "kind", "owner")
    ] + [(n, c_uint64) for n in ("object", "found", "wanted")]


class _Gemm(Structure):
    _fields_ = [(n, c_uint64) for n in ("a", "b", "out")] + [
        (n, c_uint32) for n in ("m", "n", "k", "in_format", "out_format", "b_transposed", "a_transposed")
    ]


@functools.cache
def _runtime() -> Any:
    """The loaded library. Kernels that link against it find this one."""
    library = ctypes.CDLL(str(build_runtime()))
    u32, u64, data = c_uint32, c_uint64, c_char_p
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "ts_create": (None, [u64, u32, u32, u64, u32, u32]),
        "ts_memory": (u32, [u32, u32, u64, u64, u32, u32, data, u64]),
        "ts_kernel": (u32, [u32, u32, c_void_p, data, u64, data, u64, u32, u32, u32, u32]),
        "ts_multicast": (None, [u64, u64, POINTER(u64), u64]),
        "ts_copy": (u32, [u32, u32, u32, u64, u64, u64]),
        "ts_gemm": (u32, [u32, u32, u32, POINTER(_Gemm)]),
        "ts_caller_writes": (u32, [u32, u32, u64, data, u64]),
        "ts_caller_reads": (u32, [u32, u32, u64, u64]),
        "ts_after": (None, [u32, u32]),
        "ts_run": (u32, []),
        "ts_steps": (u64, []),
        "ts_message": (c_char_p, []),
        "ts_place": (None, [POINTER(u64)]),
        "ts_waiting": (u64, [POINTER(POINTER(_Waiting))]),
        "ts_seen": (c_void_p, [u32]),
        "ts_log": (None, [_Row]),
        "ts_destroy": (None, []),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def run_job(job: Job) -> RunReport:
    """Execute `job` in this process. Raises EmulationError where it cannot start; kernels' faults are in the report."""
    with _lock:
        library = _runtime()
        loaded: dict[str, ctypes.CDLL] = {}
        library.ts_create(
            job.seed & (2**64 - 1),
            ADVERSARIES.index(job.adversary),
            job.sm_share,
            job.step_limit,
            int(job.expire),
            job.late_rank & _NOBODY,
        )
        try:
            _declare(library, job, loaded)
            kind = FAULTS[library.ts_run()]
            fault = _fault(library, job, kind) if kind else None
            return RunReport(
                fault is None,
                fault,
                _waiting(library, job),
                _log(library, job),
                library.ts_steps(),
                _seen(library, job),
            )
        finally:
            library.ts_destroy()
            for candidate in loaded.values():
                _ctypes.dlclose(candidate._handle)


def _declare(library: Any, job: Job, loaded: dict[str, ctypes.CDLL]) -> None:
    for memory in job.memories:
        done = library.ts_memory(
            memory.rank,
            MEMORY_KINDS.index(memory.kind),
            memory.address,
            memory.size,
            int(memory.initialised),
            memory.counter_stride,
            memory.data,
            len(memory.data),
        )
        if not done:
            raise EmulationError(
                "the addresses of emulated memories are free in the process",
                f"{memory.name} of rank {memory.rank}: {memory.size} bytes at {memory.address:#x}",
                "use smaller shapes, or run_isolated",
            )
    for range_ in job.multicasts:
        members = (c_uint64 * len(range_.members))(*range_.members)
        library.ts_multicast(range_.address, range_.size, members, len(range_.members))
    for number, node in enumerate(job.nodes):
        if isinstance(node, Kernel):
            _declare_kernel(library, node, loaded)
        elif isinstance(node, CopyEngine):
            library.ts_copy(node.rank, node.call, node.step, node.target, node.source, node.size)
        elif isinstance(node, LibraryGemm):
            gemm = _Gemm(
                node.a,
                node.b,
                node.out,
                node.m,
                node.n,
                node.k,
                FORMATS.index(node.in_format),
                FORMATS.index(node.out_format),
                int(node.b_transposed),
                int(node.a_transposed),
            )
            library.ts_gemm(node.rank, node.call, node.step, byref(gemm))
        elif isinstance(node, CallerWrites):
            library.ts_caller_writes(node.rank, node.call, node.address, node.data, len(node.data))
        else:
            library.ts_caller_reads(node.rank, node.call, node.address, node.size)
        for before in node.after:
            library.ts_after(number, before)


def _declare_kernel(library: Any, node: Kernel, loaded: dict[str, ctypes.CDLL]) -> None:
    path = str(node.library)
    try:
        candidate = loaded[path] = loaded.get(path) or ctypes.CDLL(path)
        entry = ctypes.cast(getattr(candidate, node.entry), c_void_p).value
    except (OSError, AttributeError) as error:
        raise EmulationError(
            "a kernel's library holds its entry", f"{node.entry} in {path}: {error}", "build it with build_candidate"
        ) from error
    library.ts_kernel(
        node.rank,
        node.call,
        entry,
        node.arguments,
        len(node.arguments),
        node.maps,
        len(node.maps),
        node.blocks,
        node.threads,
        node.shared_bytes,
        node.cluster,
    )


def _known(value: int) -> int | None:
    return None if value == _NOBODY else value


def _fault(library: Any, job: Job, kind: str) -> Fault:
    values = (c_uint64 * _PLACE_FIELDS)()
    library.ts_place(values)
    rank, node, block, thread, step, memory, offset = (_known(v) for v in values)
    owner = job.memories[memory] if memory is not None else None
    buffer = f"{owner.name} of rank {owner.rank} ({owner.size} bytes)" if owner else None
    return Fault(
        kind,
        library.ts_message().decode(),
        rank,
        None if node is None else job.nodes[node].name,
        block,
        thread,
        step,
        buffer,
        offset if owner else None,
    )


def _waiting(library: Any, job: Job) -> tuple[Waiting, ...]:
    first = POINTER(_Waiting)()
    count = library.ts_waiting(byref(first))
    lines = []
    for w in first[:count]:
        step = -1 if w.step == _NOBODY else w.step
        lines.append(
            Waiting(
                w.rank,
                job.nodes[w.node].name,
                w.block,
                w.block,
                w.first_thread,
                w.last_thread,
                step,
                WAITS[w.kind],
                w.object,
                w.found,
                w.wanted,
            )
        )
    return merge_waiting(lines)


def _log(library: Any, job: Job) -> tuple[StepLog, ...]:
    found: dict[tuple[int, int, int], tuple[list[Any], ...]] = defaultdict(lambda: ([], [], [], []))

    def row(call: int, rank: int, step: int, kind: int, a: int, b: int, c: int, d: int) -> None:
        item: Any
        if kind < 2:
            item = Range(job.memories[a].rank, job.memories[a].name, b, c)
        elif kind == 2:
            item = Signalled(a, b, c)
        else:
            item = Waited(a, b if d else -1, c)
        found[call, rank, -1 if step == _NOBODY else step][kind].append(item)

    library.ts_log(_Row(row))
    return tuple(StepLog(*key, *(tuple(sorted(part)) for part in parts)) for key, parts in sorted(found.items()))


def _seen(library: Any, job: Job) -> dict[int, bytes]:
    seen = {}
    for number, node in enumerate(job.nodes):
        if isinstance(node, CallerReads):
            data = library.ts_seen(number)
            if data:
                seen[number] = ctypes.string_at(data, node.size)
    return seen
