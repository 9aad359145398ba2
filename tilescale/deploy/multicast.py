"""One address for the same bytes of all ranks: a multicast object of the driver, bound to memory of every rank.

Making one claims resources of the switch between GPUs, which a host may share with others. So nothing here asks the driver
for one unless the variable TILESCALE_MULTICAST is 1, and never where a variable is set by which libraries are told to leave
multicast alone. Whether it works is known only when it has been made and bound on every rank.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from tilescale.deploy.driver import Agree, DriverError
from tilescale.deploy.peer_memory import Call
from tilescale.deploy.vmm import VmmMemory

VARIABLE = "TILESCALE_MULTICAST"
# Variables that switch multicast off, each with the values that do not.
SWITCHES = {
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": ("", "0"), "NCCL_NVLS_ENABLE": ("", "1", "2"), "NVSHMEM_DISABLE_NVLS": ("", "0"),
}
_RULE = "a multicast address is made where the owner of the machine allows it"


def refusal(environment: Mapping[str, str] | None = None) -> str:
    """Why no multicast object may be made here; "" where one may be tried."""
    found = os.environ if environment is None else environment
    for name, harmless in SWITCHES.items():
        if found.get(name, "") not in harmless:
            return f"{name}={found[name]} switches it off"
    return "" if found.get(VARIABLE) == "1" else f"{VARIABLE} is not 1"


class MulticastMemory:
    """Multicast addresses over allocations of a VmmMemory. `cu`: cuda.bindings.driver."""

    def __init__(self, cu: Any, call: Call, memory: VmmMemory) -> None:
        self._cu, self._call, self._memory = cu, call, memory
        self._bound: dict[int, tuple[int, int, int]] = {}  # by address: object, device, bytes

    def bind(self, address: int, rank: int, world: int, agree: Agree) -> int:
        """An address that stands for the allocations that all ranks pass, of one size. Collective: rank 0 makes the object,
        all add their devices, then all bind their memory. DriverError, on all ranks, where one cannot."""
        agree(self._may)
        held = [0, 0]  # the object, and the address of its mapping
        try:
            self._agreed(held, address, rank, world, agree)
        except BaseException:
            if held[1]:
                self._memory.unmap(held[1], self._memory.physical(address)[1])
            if held[0]:
                self._cu.cuMemRelease(held[0])
            raise
        self._bound[held[1]] = (held[0], self._device, self._memory.physical(address)[1])
        return held[1]

    def _agreed(self, held: list[int], address: int, rank: int, world: int, agree: Agree) -> None:
        cu, call, memory, (handle, size) = self._cu, self._call, self._memory, self._memory.physical(address)

        def make() -> bytes:
            if rank != 0:
                return b""
            held[0] = self._object(world, size)
            return memory.send(held[0], size)

        def join() -> bytes:
            held[0] = held[0] or memory.receive(sent)
            call(cu.cuMulticastAddDevice(held[0], self._device))
            return b""

        def bind() -> bytes:
            call(cu.cuMulticastBindMem(held[0], 0, handle, 0, size, 0))
            held[1] = memory.map(held[0], size)
            return b""

        sent = agree(make)[0]
        try:
            agree(join)
        finally:
            if rank == 0:
                memory.withdraw(sent)
        agree(bind)  # now that every device has been added

    def unbind(self, address: int) -> None:
        """What uses it must be done on all ranks."""
        made, device, size = self._bound.pop(address)
        self._memory.unmap(address, size)
        self._call(self._cu.cuMulticastUnbind(made, device, 0, size))
        self._call(self._cu.cuMemRelease(made))

    @property
    def _device(self) -> int:
        return int(self._call(self._cu.cuCtxGetDevice()))

    def _may(self) -> bytes:
        if why := refusal():
            raise DriverError(_RULE, why, f"set {VARIABLE}=1 on a machine of your own, or use another transport")
        attribute = self._cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED
        if not int(self._call(self._cu.cuDeviceGetAttribute(attribute, self._device))):
            raise DriverError("the device supports multicast", "MULTICAST_SUPPORTED is 0", "use another transport")
        return b""

    def _object(self, world: int, size: int) -> int:
        cu, call = self._cu, self._call
        wanted = cu.CUmulticastObjectProp()
        wanted.numDevices, wanted.size, wanted.flags = world, size, 0
        wanted.handleTypes = int(cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        option = cu.CUmulticastGranularity_flags.CU_MULTICAST_GRANULARITY_MINIMUM
        granularity = int(call(cu.cuMulticastGetGranularity(wanted, option)))
        if size % granularity:
            raise DriverError(f"a multicast object is of pieces of {granularity} bytes", size, "allocate whole pieces")
        return int(call(cu.cuMulticastCreate(wanted)))
