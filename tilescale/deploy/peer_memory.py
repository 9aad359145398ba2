"""How memory of a rank reaches the others of its host. Two ways; all ranks of a group take the same.

`ipc` (the default): a plain allocation and a CUDA IPC handle. `vmm`: the driver's virtual memory management, with a POSIX
file descriptor for every allocation; what binds memory to a multicast object needs it. The variable TILESCALE_PEER_MEMORY
chooses, where whoever makes a driver does not.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any, Protocol

from tilescale.deploy.driver import DriverError
from tilescale.errors import nearest

VARIABLE = "TILESCALE_PEER_MEMORY"
IPC, VMM = "ipc", "vmm"
KINDS = (IPC, VMM)
_IPC_BYTES = 64

Call = Callable[[tuple[Any, ...]], Any]  # the value of a driver call that succeeded, else DriverError


class PeerMemory(Protocol):
    """Allocations of one device; addresses are plain integers. `free` and `close` are for those that `allocate` and `open`
    gave, and what uses them must be done. DriverError where the driver fails; then nothing is left allocated."""

    def allocate(self, size: int) -> int: ...
    def free(self, address: int) -> None: ...
    def export(self, address: int) -> bytes: ...
    def open(self, handle: bytes) -> int: ...
    def close(self, address: int) -> None: ...


def chosen(kind: str | None = None) -> str:
    """`kind`, or what the variable says, or "ipc"; DriverError for another word."""
    found = os.environ.get(VARIABLE) or IPC if kind is None else kind
    if found not in KINDS:
        raise DriverError(f"peer memory ({VARIABLE}) is {' or '.join(KINDS)}", repr(found), nearest(found, KINDS))
    return found


class IpcMemory:
    """Plain allocations, shared by CUDA IPC. `cu`: cuda.bindings.driver."""

    def __init__(self, cu: Any, call: Call) -> None:
        self._cu, self._call = cu, call

    def allocate(self, size: int) -> int:
        return int(self._call(self._cu.cuMemAlloc(size)))

    def free(self, address: int) -> None:
        self._call(self._cu.cuMemFree(address))

    def export(self, address: int) -> bytes:
        handle = self._call(self._cu.cuIpcGetMemHandle(address))
        return ctypes.string_at(handle.getPtr(), _IPC_BYTES)

    def open(self, handle: bytes) -> int:
        if len(handle) != _IPC_BYTES:
            raise DriverError("all ranks share memory by ipc", f"a handle of {len(handle)} bytes",
                              f"set {VARIABLE} alike on all ranks")
        value = self._cu.CUipcMemHandle()
        ctypes.memmove(value.getPtr(), handle, _IPC_BYTES)
        flags = self._cu.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
        return int(self._call(self._cu.cuIpcOpenMemHandle(value, int(flags))))

    def close(self, address: int) -> None:
        self._call(self._cu.cuIpcCloseMemHandle(address))
