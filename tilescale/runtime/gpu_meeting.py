"""Ranks meet on the device: the barrier before every sample, and the proof that their blocks are resident together."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from tilescale.codegen.compile import Source
from tilescale.deploy.symmetric import Exchange, SymmetricMemory
from tilescale.errors import RunnerError
from tilescale.runtime.gpu_driver import RankDriver

MEET, SPIN = "tilescale_meet", "tilescale_spin"
TEXT = "#include <tilescale/measure.cuh>\n\nTILESCALE_MEETING\n"
RANKS, MEET_THREADS, SPIN_THREADS = 72, 96, 128
DELAY_NS = 60_000  # what a graph launch behind the meeting may take to be enqueued
_HEAD = struct.Struct("<4I")
SIZE = _HEAD.size + 4 * RANKS + 2 * 8 * RANKS


def source(arch: str) -> Source:
    """The text of both kernels."""
    return Source(TEXT, MEET, arch)


class Argument(ctypes.Structure):
    """MeetArguments of include/tilescale/measure.cuh."""

    _fields_ = [
        ("meetings", ctypes.c_uint64 * RANKS), ("time_limit_ns", ctypes.c_uint64), ("delay_ns", ctypes.c_uint64),
        ("rank", ctypes.c_uint32), ("world", ctypes.c_uint32), ("common_clock", ctypes.c_uint32),
        ("target", ctypes.c_uint32),
    ]


@dataclass(frozen=True)
class State:
    """The head of a Meeting."""

    met: int
    failed: int
    resident: int
    absent: int

    @classmethod
    def unpack(cls, data: bytes) -> State:
        return cls(*_HEAD.unpack_from(data))


class Meeting:
    """Of one rank; making one is collective. `image`: the compiled TEXT. `common_clock`: ranks share a GPU."""

    def __init__(self, driver: RankDriver, rank: int, world: int, exchange: Exchange, image: bytes, *,
                 common_clock: bool, time_limit_s: float) -> None:
        self._driver, self._world = driver, world
        self._memory = SymmetricMemory(driver, rank, SIZE, exchange)
        module = driver.load_module(image)
        self._meet, self._spin = driver.function(module, MEET), driver.function(module, SPIN)
        self._argument = make_argument(self._memory.addresses, rank, common_clock, time_limit_s)
        self._spun = 0

    def enqueue(self, stream: int) -> None:
        """Work behind this on `stream` starts when all ranks have come to it."""
        self._driver.launch_struct(self._meet, 1, MEET_THREADS, 0, stream, self._argument)

    @property
    def state(self) -> State:
        """Waits for nothing: the stream must be done."""
        return State.unpack(self._driver.download(self._memory.own, _HEAD.size))

    def check(self) -> None:
        """RunnerError where a rank did not come to a meeting in time."""
        if self.state.failed:
            limit = self._argument.time_limit_ns / 1e9
            raise RunnerError(f"ranks meet before a sample within {limit:g} s", "one did not come")

    def enqueue_spin(self, stream: int, blocks: int, shared_bytes: int) -> None:
        """`blocks` blocks on every rank, each of which waits for all the others. All ranks do this together."""
        self._driver.set_shared_bytes(self._spin, shared_bytes)
        self._spun += blocks * self._world
        self._argument.target = self._spun
        self._driver.launch_struct(self._spin, blocks, SPIN_THREADS, shared_bytes, stream, self._argument)

    def spin_fits(self, shared_bytes: int) -> int:
        """Blocks of the spin kernel that one SM holds: the proof is one of one-per-SM blocks only where this is 1."""
        self._driver.set_shared_bytes(self._spin, shared_bytes)
        return self._driver.blocks_per_sm(self._spin, SPIN_THREADS, shared_bytes)


def make_argument(addresses: Sequence[int], rank: int, common_clock: bool, time_limit_s: float) -> Argument:
    """The kernel argument of a rank."""
    meetings = (ctypes.c_uint64 * RANKS)(*addresses)
    return Argument(meetings, int(time_limit_s * 1e9), DELAY_NS, rank, len(addresses), int(common_clock), 0)
