"""Memory that every rank of a group can address: allocated by its rank, opened by the others (see peer_memory.py).

A *workspace* holds what a program needs beside the caller's tensors: state, counters, buffers, and operands that peers
read where they lie ("symmetric" inputs).
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence

from tilescale.codegen.program import EVERY_RANK, Program, Slot, aligned
from tilescale.codegen.table import STATE
from tilescale.deploy.driver import Driver
from tilescale.errors import BundleError, TilescaleError

# Gives this rank's bytes and returns those of all ranks, in their order, once all have come.
Exchange = Callable[[bytes], Sequence[bytes]]

# IPC shares whole driver allocations, which come in these pieces: a smaller one would share its neighbours too.
_PIECE = 2 << 20
_SIZE = struct.Struct("<Q")


class SymmetricMemory:
    """`size` zeroed bytes on each rank; `addresses[r]` is where this process sees those of rank r, and with `multicast` the
    address of that name stands for those of all of them.

    Making and closing one is collective. Either it succeeds on all ranks, or every rank raises BundleError naming the
    first one that failed and why.
    """

    def __init__(self, driver: Driver, rank: int, size: int, exchange: Exchange, multicast: bool = False) -> None:
        self._driver, self._exchange, self._own = driver, exchange, 0
        self.multicast = 0
        self._opened: list[int] = []
        self.rank, self.size = rank, size
        try:
            # Zeroed before its handle leaves: a peer may signal as soon as it has that.
            handles = agree(exchange, self._allocate)
            sizes = sorted({_SIZE.unpack_from(handle)[0] for handle in handles})
            if sizes != [size]:
                actual = f"workspaces of {sizes} bytes"
                raise BundleError("all ranks load the same operation", actual, "load one bundle")
        except BaseException:
            self.release()
            raise
        self.addresses: tuple[int, ...] = ()
        with closing_together(self.close, self.release):
            agree(exchange, lambda: self._open([handle[_SIZE.size :] for handle in handles]))
            if multicast:
                self.multicast = driver.bind_multicast(self._own, rank, len(handles), lambda act: agree(exchange, act))

    def _allocate(self) -> bytes:
        size = -(-max(self.size, 1) // _PIECE) * _PIECE
        self._own = self._driver.allocate(size)
        self._driver.zero(self._own, size)
        return _SIZE.pack(self.size) + self._driver.export_memory(self._own)

    def _open(self, handles: Sequence[bytes]) -> bytes:
        addresses = []
        for rank, handle in enumerate(handles):
            if rank == self.rank:
                addresses.append(self._own)
                continue
            addresses.append(self._driver.open_memory(handle))
            self._opened.append(addresses[-1])
        self.addresses = tuple(addresses)
        return b""

    @property
    def own(self) -> int:
        """Address of this rank's bytes."""
        return self._own

    def close(self) -> None:
        """Free it, collectively and at most once: no rank frees what another still has open."""
        if self._own:
            try:
                self._close_peers()
                self._exchange(b"")
            finally:
                self.release()

    def _close_peers(self) -> None:
        if self.multicast:
            self._driver.unbind_multicast(self.multicast)
            self.multicast = 0
        while self._opened:
            self._driver.close_memory(self._opened.pop())

    def release(self) -> None:
        """Free it without the other ranks, where they fail too or cannot be waited for."""
        self._close_peers()
        if self._own:
            self._driver.free(self._own)
            self._own = 0


@contextlib.contextmanager
def closing_together(close: Callable[[], None], release: Callable[[], None]) -> Iterator[None]:
    """Around an `agree`: where it fails on all ranks `close` collectively, where this one ends alone `release`."""
    try:
        yield
    except BundleError:
        close()
        raise
    except BaseException:
        release()
        raise


def agree(exchange: Exchange, act: Callable[[], bytes]) -> list[bytes]:
    """Do `act` on every rank and return what each gave; where it fails on one, every rank raises BundleError."""
    failure = ""
    try:
        mine = b"+" + act()
    except TilescaleError as error:
        failure = str(error)
        mine = b"-" + failure.encode()
    answers = list(exchange(mine))
    failed = {rank: answer[1:].decode() for rank, answer in enumerate(answers) if answer[:1] != b"+"}
    if failed:
        rank, message = min(failed.items())
        also = f" (also ranks {sorted(failed)[1:]})" if len(failed) > 1 else ""
        raise BundleError("every rank prepares the operation", f"rank {rank}: {failure or message}{also}")
    return [answer[1:] for answer in answers]


class Workspace:
    """Memory of one program, laid out as it says; see SymmetricMemory for what is collective.

    `operands`: bytes of each operand that peers read in place, by buffer name; they follow the program's own buffers.
    """

    def __init__(
        self, program: Program, rank: int, driver: Driver, exchange: Exchange, operands: Mapping[str, int]
    ) -> None:
        self._program, self._driver = program, driver
        offsets = {placed.buffer: placed.offset for placed in program.placed}
        end = aligned(program.workspace_bytes)
        for name, size in sorted(operands.items()):
            offsets[name] = end
            end = aligned(end + size)
        self._offsets = offsets
        self.rank = rank
        multicast = any(slot.rank == EVERY_RANK for slot in program.slots)
        self.memory = SymmetricMemory(driver, rank, end, exchange, multicast)

    @property
    def state(self) -> int:
        return self.memory.own

    @property
    def counters(self) -> tuple[int, ...]:
        """Address of the counters of each rank."""
        return tuple(address + self._program.counters_offset for address in self.memory.addresses)

    def __contains__(self, buffer: object) -> bool:
        return buffer in self._offsets

    def address(self, slot: Slot) -> int:
        """Where a buffer of the workspace lies, of the own rank for -1, of all ranks for EVERY_RANK."""
        if slot.rank == EVERY_RANK:
            return self.memory.multicast + self._offsets[slot.buffer]
        rank = self.rank if slot.rank == -1 else slot.rank
        return self.memory.addresses[rank] + self._offsets[slot.buffer]

    def stride(self, buffer: str) -> int:
        """Bytes from the version of even calls to that of odd ones; 0 where there is one."""
        return next((placed.stride for placed in self._program.placed if placed.buffer == buffer), 0)

    def read_state(self) -> bytes:
        return self._driver.download(self.state, STATE.size)

    def close(self) -> None:
        """Collective."""
        self.memory.close()

    def release(self) -> None:
        """Not collective: for failures."""
        self.memory.release()
