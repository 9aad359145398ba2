"""The CUDA driver of one rank: deployment's, with streams in the rank's share, kept memory and streams, and graphs.

What costs time a candidate is kept: streams (torch holds a cuBLAS workspace for each), events, and one peer-visible
allocation whose handle is exchanged once, in which workspaces find a place.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence

from tilescale.deploy.cuda_driver import CudaDriver
from tilescale.deploy.driver import Grid
from tilescale.runtime import green
from tilescale.runtime.arena import Arena

_HANDLE = struct.Struct("<BQ")  # kind, offset; the handle of the allocation follows
_PLAIN, _KEPT = 0, 1


class RankDriver(CudaDriver):
    """Of device `ordinal`; in a share of `share_sms` SMs of it (group `rank` of `world`), or of the whole with 0.

    `arena_bytes`: of the kept allocation; what does not fit is allocated as deployment does. `peer_memory`: as there.
    """

    def __init__(self, ordinal: int, rank: int, world: int, share_sms: int, arena_bytes: int,
                 peer_memory: str | None = None) -> None:
        super().__init__(ordinal, peer_memory)
        self._device = self._call(self._cu.cuDeviceGet(ordinal))
        self.share = green.make_share(self._cu, self._call, self._device, rank, world, share_sms) if share_sms else None
        self._arena = Arena(arena_bytes)
        self._base, self._handle = 0, b""
        self._peers: dict[bytes, int] = {}
        self._borrowed: set[int] = set()
        self._free_streams: list[int] = []
        self.streams: list[int] = []  # all that were made, in order

    @property
    def sms(self) -> int:
        """SMs of this rank."""
        return self.share.sms if self.share else self.facts().sms

    def reach(self, uuids: Sequence[str]) -> list[str]:
        """For each GPU (its UUID, hexadecimal) what this one cannot do with its memory, "" where kernels can read and
        write it and change it by atomics: "is not visible", "no peer access" or "no native atomics"."""
        cu, call = self._cu, self._call
        found = [call(cu.cuDeviceGet(ordinal)) for ordinal in range(int(call(cu.cuDeviceGetCount())))]
        devices = {call(cu.cuDeviceGetUuid(device)).bytes.hex(): device for device in found}
        own, atomics = self.facts().uuid, cu.CUdevice_P2PAttribute.CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED

        def lack(uuid: str) -> str:
            if uuid == own:
                return ""
            if uuid not in devices:
                return "is not visible"
            if not int(call(cu.cuDeviceCanAccessPeer(self._device, devices[uuid]))):
                return "no peer access"
            able = int(call(cu.cuDeviceGetP2PAttribute(atomics, self._device, devices[uuid])))
            return "" if able else "no native atomics"

        return [lack(uuid) for uuid in uuids]

    # -- memory --------------------------------------------------------------------------------------------------------
    def allocate(self, size: int) -> int:
        if not self._base and self._arena.size:
            self._base = super().allocate(self._arena.size)
            self._handle = super().export_memory(self._base)
        offset = self._arena.take(size)
        return super().allocate(size) if offset is None else self._base + offset

    def free(self, address: int) -> None:
        if self._in_arena(address):
            self._arena.give(address - self._base)
        else:
            super().free(address)

    def export_memory(self, address: int) -> bytes:
        if self._in_arena(address):
            return _HANDLE.pack(_KEPT, address - self._base) + self._handle
        return _HANDLE.pack(_PLAIN, 0) + super().export_memory(address)

    def open_memory(self, handle: bytes) -> int:
        kind, offset = _HANDLE.unpack_from(handle)
        ipc = handle[_HANDLE.size :]
        if kind == _PLAIN:
            return super().open_memory(ipc)
        if ipc not in self._peers:
            self._peers[ipc] = super().open_memory(ipc)
        address = self._peers[ipc] + int(offset)
        self._borrowed.add(address)
        return address

    def close_memory(self, address: int) -> None:
        if address in self._borrowed:
            self._borrowed.discard(address)
        else:
            super().close_memory(address)

    def _in_arena(self, address: int) -> bool:
        return bool(self._base) and 0 <= address - self._base < self._arena.size

    # -- streams and events --------------------------------------------------------------------------------------------
    def create_stream(self) -> int:
        if self._free_streams:
            return self._free_streams.pop(0)
        stream = green.make_stream(self._cu, self._call, self.share) if self.share else super().create_stream()
        self.streams.append(stream)
        return stream

    def destroy_stream(self, stream: int) -> None:
        """Its work must be done; the stream is kept for the next user."""
        self._free_streams.append(stream)
        self._free_streams.sort(key=self.streams.index)

    def timer_event(self) -> int:
        """An event with a time."""
        return int(self._call(self._cu.cuEventCreate(0)))

    def elapsed_us(self, start: int, end: int) -> float:
        """Between two recorded events, of which the later has happened."""
        return float(self._call(self._cu.cuEventElapsedTime(start, end))) * 1e3

    # -- binaries: libraries, whose kernels belong to no context, so that they run in a share's too ---------------------
    def load_module(self, image: bytes) -> int:
        return int(self._call(self._cu.cuLibraryLoadData(image, [], [], 0, [], [], 0)))

    def unload_module(self, module: int) -> None:
        self._call(self._cu.cuLibraryUnload(module))

    def function(self, module: int, entry: str) -> int:
        return int(self._call(self._cu.cuLibraryGetKernel(module, entry.encode())))

    def set_shared_bytes(self, function: int, size: int) -> None:
        limit = self._cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._call(self._cu.cuKernelSetAttribute(limit, size, function, self._device))

    # -- kernels -------------------------------------------------------------------------------------------------------
    def blocks_per_sm(self, function: int, threads: int, shared_bytes: int) -> int:
        """Blocks of a kernel that one SM holds at once."""
        return int(self._call(self._cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, threads, shared_bytes)))

    def resident_blocks(self, function: int, grid: Grid, stream: int) -> int:
        """Blocks of a launch that this rank's SMs hold at once; clusters do not reach over groups of SMs."""
        if grid.cluster > 1:
            config = self.launch_config(grid, stream)
            return grid.cluster * int(self._call(self._cu.cuOccupancyMaxActiveClusters(function, config)))
        return self.sms * self.blocks_per_sm(function, grid.threads, grid.shared_bytes)

    def launch_struct(self, function: int, blocks: int, threads: int, shared: int, stream: int,
                      argument: ctypes.Structure) -> None:
        """Launch a kernel with one parameter, by value."""
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
        self._call(self._cu.cuLaunchKernel(
            function, blocks, 1, 1, threads, 1, 1, shared, stream, ctypes.addressof(pointers), 0))

    def fill(self, address: int, value: int, size: int, stream: int) -> None:
        """Set bytes, on a stream."""
        self._call(self._cu.cuMemsetD8Async(address, value, size, stream))

    # -- graphs --------------------------------------------------------------------------------------------------------
    def capture(self, stream: int, record: Callable[[], None]) -> int:
        """An executable graph of what `record` enqueues on `stream`. Relaxed: libraries may allocate meanwhile."""
        cu = self._cu
        self._call(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
        try:
            record()
        except BaseException:
            cu.cuStreamEndCapture(stream)  # its own error says less
            raise
        graph = self._call(cu.cuStreamEndCapture(stream))
        try:
            executable = self._call(cu.cuGraphInstantiate(graph, 0))
        finally:
            self._call(cu.cuGraphDestroy(graph))
        self._call(cu.cuGraphUpload(executable, stream))
        return int(executable)

    def replay(self, graph: int, stream: int) -> None:
        self._call(self._cu.cuGraphLaunch(graph, stream))

    def drop_graph(self, graph: int) -> None:
        self._call(self._cu.cuGraphExecDestroy(graph))
