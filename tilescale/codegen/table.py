"""Binary layouts shared with the kernels: the structures of include/tilescale/abi.cuh, packed little-endian."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

MAX_SLOTS = 96
MAX_RANKS = 72

STEP = struct.Struct("<8I3Q2I")
BLOCK = struct.Struct("<8I")
STATE = struct.Struct("<8I")
ARGUMENTS = struct.Struct(f"<{MAX_SLOTS}Q{MAX_SLOTS}Q{MAX_RANKS}Q4Q4IQ{STEP.size}s")

KIND_COPY, KIND_SIGNAL, KIND_WAIT, KIND_GEMM, KIND_RESERVE, KIND_PACE, KIND_SUM, KIND_SOURCE = 1, 2, 3, 4, 5, 6, 7, 8
KIND_LOOP, KIND_RAGGED, KIND_MULTI_STORE, KIND_MULTI_SUM, KIND_PACKETS = 9, 10, 11, 12, 13
TASKS = {"route": 1, "total": 2, "send": 3, "place": 4, "tally": 5, "return": 6, "weigh": 7, "arrange": 8,
         "send_group": 9, "place_group": 10, "multiply": 11, "return_group": 12}  # of ragged steps
SUM_PARTS, SUM_BEGUN, SUM_ADDED, SUM_COMPLETED = 0, 1, 2, 3
SEGMENT_ENDS, SEGMENT_ADDS, SEGMENT_LEAVES = 2, 4, 8  # of a segment of a contraction; 1: it is the first
MAX_LOOPS = 4  # of a copy
MAX_LANES = 8
ROLE_COPY, ROLE_GEMM = 1, 2


@dataclass(frozen=True)
class StepRow:
    """One row of a step table; fields as in abi.cuh."""

    kind: int
    id: int
    source: int = 0
    target: int = 0
    counter: int = 0
    value: int = 0
    per_call: int = 0
    rows: int = 0
    source_offset: int = 0
    target_offset: int = 0
    size: int = 0
    first_tile: int = 0
    peer: int = 0

    def pack(self) -> bytes:
        return STEP.pack(self.kind, self.id, self.source, self.target, self.counter, self.value, self.per_call,
                         self.rows, self.source_offset, self.target_offset, self.size, self.first_tile, self.peer)


@dataclass(frozen=True)
class BlockRow:
    """What one block does; fields as in abi.cuh."""

    role: int
    first_step: int
    num_steps: int
    index: int
    gang: int

    def pack(self) -> bytes:
        return BLOCK.pack(self.role, self.first_step, self.num_steps, self.index, self.gang, 0, 0, 0)


@dataclass(frozen=True)
class Failure:
    """What a drained kernel reports: `wanted` and `found` of `counter` at `step` of `rank`."""

    rank: int
    step: int
    counter: int
    wanted: int
    found: int

    def __str__(self) -> str:
        return (f"rank {self.rank} step {self.step}: counter {self.counter} reached {self.found}, wanted {self.wanted}, "
                "within the time limit")


def unpack_state(data: bytes) -> tuple[int, Failure | None]:
    """(calls completed, failure or None) from the bytes of a State."""
    calls, _, failed, rank, step, counter, wanted, found = STATE.unpack(data[: STATE.size])
    return calls, Failure(rank, step, counter, wanted, found) if failed else None


def pack_arguments(
    bases: Sequence[int], strides: Sequence[int], counters: Sequence[int], *, state: int, steps: int, blocks: int,
    time_limit_ns: int, rank: int, last: int, n: int, k: int, link_fs_per_byte: int = 0, first: bytes = b"",
) -> bytes:
    """The kernel argument: addresses of slots, counters of ranks, tables and sizes. `first`: what blocks need before
    anything else, so that they look it up nowhere: see `first_rows`."""
    def padded(values: Sequence[int], size: int) -> list[int]:
        return [*values, *([0] * (size - len(values)))]

    return ARGUMENTS.pack(*padded(bases, MAX_SLOTS), *padded(strides, MAX_SLOTS), *padded(counters, MAX_RANKS),
                          state, steps, blocks, time_limit_ns, rank, last, n, k, link_fs_per_byte, first)


def first_rows(steps: bytes, block_rows: bytes, solo: bool) -> bytes:
    """What comes with the arguments of a launch: the row of one that is `solo`, or exchanges packets; of others the rows
    of their gangs, where these are at most two, and nothing else."""
    if solo or steps[:4] == KIND_PACKETS.to_bytes(4, "little"):
        return steps[: STEP.size]
    gangs = [row for row in (block_rows[at : at + BLOCK.size] for at in range(0, len(block_rows), BLOCK.size))
             if BLOCK.unpack(row)[3] == 0]
    return b"".join(gangs) if len(gangs) <= STEP.size // BLOCK.size else b""
