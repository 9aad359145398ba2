"""cuda.bindings.driver as far as virtual memory goes, over memory files: what one process maps, another maps as well."""

from __future__ import annotations

import ctypes
import mmap
import os
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tilescale.deploy.cuda_driver import CudaDriver
from tilescale.deploy.multicast import MulticastMemory
from tilescale.deploy.vmm import VmmMemory

GRAIN = 2 << 20
OK, BAD = 0, 801


@dataclass
class Reservation:
    size: int
    mapped: mmap.mmap | None = None
    writable: bool = False


class FakeCu:
    """Fails the call named `failing`. `supported`: of the attributes that are asked for. `live` counts what is held."""

    CUresult = SimpleNamespace(CUDA_SUCCESS=OK)
    CUmemAllocationHandleType = SimpleNamespace(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR=1)
    CUmemAllocationType = SimpleNamespace(CU_MEM_ALLOCATION_TYPE_PINNED="pinned")
    CUmemLocationType = SimpleNamespace(CU_MEM_LOCATION_TYPE_DEVICE="device")
    CUmemAllocationGranularity_flags = SimpleNamespace(CU_MEM_ALLOC_GRANULARITY_MINIMUM="minimum")
    CUmemAccess_flags = SimpleNamespace(CU_MEM_ACCESS_FLAGS_PROT_READWRITE="rw")
    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED="vmm",
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED="fd",
        CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED="many")
    CUmulticastGranularity_flags = SimpleNamespace(CU_MULTICAST_GRANULARITY_MINIMUM="minimum")

    def __init__(self, device: int = 0) -> None:
        self.device, self.failing, self.supported = device, "", {"vmm", "fd", "many"}
        self.files: dict[int, tuple[int, int]] = {}  # handle: memory file, size
        self.places: dict[int, Reservation] = {}
        self.calls: list[str] = []
        self._next = 1

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        if not name.startswith("cu") or name.startswith("cuGetError"):
            return found
        self.calls.append(name)
        return (lambda *given: (BAD, None)) if self.failing == name else found

    @property
    def live(self) -> tuple[int, int]:
        """Allocations and reservations."""
        return len(self.files), len(self.places)

    def cuGetErrorName(self, status: int) -> Any:
        return OK, b"CUDA_ERROR_NOT_SUPPORTED"

    def cuGetErrorString(self, status: int) -> Any:
        return OK, b"told to fail"

    def cuCtxGetDevice(self) -> Any:
        return OK, self.device

    def cuDeviceGetAttribute(self, attribute: str, device: int) -> Any:
        return OK, int(attribute in self.supported)

    def cuMemGetAllocationGranularity(self, properties: Any, option: str) -> Any:
        assert (properties.type, properties.requestedHandleTypes, option) == ("pinned", 1, "minimum")
        return OK, GRAIN

    # -- multicast: an object is a memory file, too ------------------------------------------------------------------------
    CUmulticastObjectProp = SimpleNamespace

    def _object(self, handle: int) -> tuple[int, set[int], set[int]]:
        return OBJECTS[os.fstat(self.files[handle][0]).st_ino]

    def cuMulticastGetGranularity(self, wanted: Any, option: str) -> Any:
        return OK, GRAIN

    def cuMulticastCreate(self, wanted: Any) -> Any:
        assert wanted.handleTypes == 1
        descriptor = os.memfd_create("object")
        os.ftruncate(descriptor, wanted.size)
        OBJECTS[os.fstat(descriptor).st_ino] = (wanted.numDevices, set(), set())
        return OK, self._keep(descriptor, wanted.size)

    def cuMulticastAddDevice(self, handle: int, device: int) -> Any:
        assert device == self.device
        self._object(handle)[1].add(device)
        return (OK,)

    def cuMulticastBindMem(self, handle: int, at: int, memory: int, offset: int, size: int, flags: int) -> Any:
        wanted, added, bound = self._object(handle)
        assert len(added) == wanted, "bound before all devices were added"
        assert (at, offset, size) == (0, 0, self.files[memory][1])
        bound.add(self.device)
        return (OK,)

    def cuMulticastUnbind(self, handle: int, device: int, at: int, size: int) -> Any:
        self._object(handle)[2].remove(device)
        return (OK,)

    CUmemAllocationProp = staticmethod(lambda: SimpleNamespace(location=SimpleNamespace()))
    CUmemAccessDesc = SimpleNamespace

    def _keep(self, descriptor: int, size: int) -> int:
        self._next += 1
        self.files[self._next] = (descriptor, size)
        return self._next

    def cuMemCreate(self, size: int, properties: Any, flags: int) -> Any:
        assert size % GRAIN == 0
        assert (properties.location.type, properties.location.id) == ("device", self.device)
        descriptor = os.memfd_create("fake")
        os.ftruncate(descriptor, size)
        os.pwrite(descriptor, b"\xcd" * 4096, 0)
        return OK, self._keep(descriptor, size)

    def cuMemRelease(self, handle: int) -> Any:
        os.close(self.files.pop(handle)[0])
        return (OK,)

    def cuMemExportToShareableHandle(self, handle: int, kind: str, flags: int) -> Any:
        assert kind == 1
        return OK, os.dup(self.files[handle][0])

    def cuMemImportFromShareableHandle(self, descriptor: int, kind: str) -> Any:
        assert kind == 1
        return OK, self._keep(os.dup(descriptor), os.fstat(descriptor).st_size)

    def cuMemAddressReserve(self, size: int, alignment: int, address: int, flags: int) -> Any:
        assert size % GRAIN == 0
        assert alignment == GRAIN
        self._next += 1
        place = self._next << 40
        self.places[place] = Reservation(size)
        return OK, place

    def cuMemAddressFree(self, address: int, size: int) -> Any:
        assert self.places[address].mapped is None, "still mapped"
        assert self.places.pop(address).size == size
        return (OK,)

    def cuMemMap(self, address: int, size: int, offset: int, handle: int, flags: int) -> Any:
        descriptor, whole = self.files[handle]
        assert (offset, size) == (0, whole)
        assert self.places[address].size == size
        self.places[address].mapped = mmap.mmap(descriptor, size)
        return (OK,)

    def cuMemUnmap(self, address: int, size: int) -> Any:
        place = self.places[address]
        assert place.mapped is not None
        assert place.size == size
        place.mapped, place.writable = None, False
        return (OK,)

    def cuMemSetAccess(self, address: int, size: int, access: list[Any], count: int) -> Any:
        assert count == len(access) == 1
        assert (access[0].location.id, access[0].flags) == (self.device, "rw")
        assert self.places[address].mapped is not None
        self.places[address].writable = True
        return (OK,)

    def cuCtxSynchronize(self) -> Any:
        return (OK,)

    def at(self, address: int, size: int) -> memoryview:
        base = address >> 40 << 40
        place = self.places[base]
        assert place.writable
        assert place.mapped is not None
        return memoryview(place.mapped)[address - base : address - base + size]

    def cuMemsetD8(self, address: int, value: int, size: int) -> Any:
        self.at(address, size)[:] = bytes([value]) * size
        return (OK,)

    def cuMemcpyHtoD(self, address: int, data: bytes, size: int) -> Any:
        self.at(address, size)[:] = data
        return (OK,)

    def cuMemcpyDtoH(self, data: bytearray, address: int, size: int) -> Any:
        ctypes.memmove((ctypes.c_char * size).from_buffer(data), bytes(self.at(address, size)), size)
        return (OK,)


# Multicast objects of all devices of this process, by the file that stands for one: devices wanted, added and bound.
OBJECTS: dict[int, tuple[int, set[int], set[int]]] = {}


class VmmDriver(CudaDriver):
    """CudaDriver on a FakeCu."""

    def __init__(self, device: int = 0) -> None:
        self.peer_memory, self._cu = "vmm", FakeCu(device)
        self._memory = VmmMemory(self._cu, self._call)
        self._multicast = MulticastMemory(self._cu, self._call, self._memory)
