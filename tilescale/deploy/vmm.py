"""Peer memory by the driver's virtual memory management: physical allocations that are mapped where they are used.

An allocation leaves its process as a POSIX file descriptor (descriptors.py). Whoever has that maps the same bytes at an
address of its own, readable and writable by its own device; where that is another GPU, the driver goes over the link.
"""

from __future__ import annotations

import contextlib
import os
import struct
from dataclasses import dataclass
from typing import Any

from tilescale.deploy.descriptors import TICKET_BYTES, DescriptorServer, fetch
from tilescale.deploy.driver import DriverError
from tilescale.deploy.peer_memory import VARIABLE, Call

_MAGIC = b"vmm1"
_HANDLE = struct.Struct(f"<4sQ{TICKET_BYTES}s")  # magic, bytes mapped, ticket; the name of the socket follows
_NEEDS = ("VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED", "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED")


@dataclass
class _Own:
    """An allocation of this process. `sent`: what others open it with, b"" until it is exported."""

    size: int
    handle: int
    sent: bytes = b""


class VmmMemory:
    """Allocations of the current context's device. Sizes are rounded up to what the driver maps (2 MiB on Hopper).

    `cu`: cuda.bindings.driver. Calls come from one thread at a time; descriptors are handed over by another.
    """

    def __init__(self, cu: Any, call: Call) -> None:
        self._cu, self._call = cu, call
        self._server: DescriptorServer | None = None
        self._granularity = 0
        self._properties: Any = None
        self._own: dict[int, _Own] = {}
        self._opened: dict[int, int] = {}  # address: bytes mapped

    def allocate(self, size: int) -> int:
        self._prepare()
        size = -(-max(size, 1) // self._granularity) * self._granularity
        handle = int(self._call(self._cu.cuMemCreate(size, self._properties, 0)))
        with contextlib.ExitStack() as undo:
            undo.callback(self._cu.cuMemRelease, handle)
            address = self.map(handle, size)
            undo.pop_all()
        self._own[address] = _Own(size, handle)
        return address

    def free(self, address: int) -> None:
        own = self._own.pop(address)
        if own.sent:
            self.withdraw(own.sent)  # an open descriptor would keep the memory
        self.unmap(address, own.size)
        self._call(self._cu.cuMemRelease(own.handle))

    def export(self, address: int) -> bytes:
        own = self._own[address]
        if not own.sent:
            own.sent = self.send(own.handle, own.size)
        return own.sent

    def open(self, handle: bytes) -> int:
        imported = self.receive(handle)
        _, size, _ = _HANDLE.unpack_from(handle)
        try:
            address = self.map(imported, size)
        finally:
            self._cu.cuMemRelease(imported)  # a mapping keeps it
        self._opened[address] = size
        return address

    def close(self, address: int) -> None:
        self.unmap(address, self._opened.pop(address))

    # -- handles of the driver: allocations, and multicast objects over them -------------------------------------------
    def physical(self, address: int) -> tuple[int, int]:
        """The driver's handle of an own allocation, and its bytes."""
        own = self._own[address]
        return own.handle, own.size

    def send(self, handle: int, size: int) -> bytes:
        """What another rank receives a handle with."""
        if self._server is None:
            self._server = DescriptorServer()
        descriptor = self._call(self._cu.cuMemExportToShareableHandle(handle, self._handle_type, 0))
        return _HANDLE.pack(_MAGIC, size, self._server.offer(int(descriptor))) + self._server.name

    def withdraw(self, sent: bytes) -> None:
        """No rank receives it any more."""
        assert self._server is not None  # which has sent it
        self._server.withdraw(_HANDLE.unpack_from(sent)[2])

    def receive(self, handle: bytes) -> int:
        """A handle of another rank; release it with cuMemRelease."""
        if handle[: len(_MAGIC)] != _MAGIC:
            raise DriverError("all ranks share memory by vmm", f"another handle, of {len(handle)} bytes",
                              f"set {VARIABLE} alike on all ranks")
        self._prepare()
        descriptor = fetch(handle[_HANDLE.size :], _HANDLE.unpack_from(handle)[2])
        try:
            return int(self._call(self._cu.cuMemImportFromShareableHandle(descriptor, self._handle_type)))
        finally:
            os.close(descriptor)

    @property
    def _handle_type(self) -> Any:
        return self._cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

    def _prepare(self) -> None:
        """Ask the device once, when its context is there."""
        if self._properties is not None:
            return
        cu, call = self._cu, self._call
        device = int(call(cu.cuCtxGetDevice()))
        for name in _NEEDS:
            attribute = getattr(cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
            if not int(call(cu.cuDeviceGetAttribute(attribute, device))):
                raise DriverError(f"peer memory by vmm needs {name} of the device", "0", f"set {VARIABLE}=ipc")
        found = cu.CUmemAllocationProp()
        found.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        found.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        found.location.id = device
        found.requestedHandleTypes = self._handle_type
        option = cu.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        self._granularity = int(call(cu.cuMemGetAllocationGranularity(found, option)))
        self._properties = found

    def map(self, handle: int, size: int) -> int:
        """A new address of an allocation, for this device to read and write."""
        cu, call = self._cu, self._call
        address = int(call(cu.cuMemAddressReserve(size, self._granularity, 0, 0)))
        with contextlib.ExitStack() as undo:
            undo.callback(cu.cuMemAddressFree, address, size)
            call(cu.cuMemMap(address, size, 0, handle, 0))
            undo.callback(cu.cuMemUnmap, address, size)
            access = cu.CUmemAccessDesc()
            access.location = self._properties.location
            access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            call(cu.cuMemSetAccess(address, size, [access], 1))
            undo.pop_all()
        return address

    def unmap(self, address: int, size: int) -> None:
        """After what uses the address is done; the device is waited for."""
        self._call(self._cu.cuCtxSynchronize())  # unlike cuMemFree, unmapping waits for nothing
        self._call(self._cu.cuMemUnmap(address, size))
        self._call(self._cu.cuMemAddressFree(address, size))
