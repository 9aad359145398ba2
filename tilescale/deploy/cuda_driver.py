"""The driver protocol over cuda.bindings.driver, with every status checked."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

from tilescale.codegen.program import TensorMapSpec
from tilescale.deploy.driver import MAP_BYTES, Agree, DeviceFacts, Driver, DriverError, Grid, KernelParameters
from tilescale.deploy.multicast import MulticastMemory
from tilescale.deploy.peer_memory import VARIABLE, VMM, IpcMemory, PeerMemory, chosen
from tilescale.deploy.vmm import VmmMemory
from tilescale.errors import MissingDependency
from tilescale.spec.tensor import ITEMSIZE

_KERNEL_MODULE = Path("/proc/driver/nvidia/version")
_ELEMENTS = {"bfloat16": "BFLOAT16", "float16": "FLOAT16", "float32": "FLOAT32",
             "float8_e4m3fn": "UINT8", "float8_e5m2": "UINT8"}
_REMEDY = "pip install 'cuda-python>=13,<14'"


class CudaDriver:
    """The device that the calling thread's context is on, or with `ordinal` that device's primary context.

    `peer_memory`: how its memory is shared with other ranks, see peer_memory.py. Raises MissingDependency without
    cuda-python or without a driver library, DriverError where there is no device.
    """

    def __init__(self, ordinal: int | None = None, peer_memory: str | None = None) -> None:
        self.peer_memory = chosen(peer_memory)
        try:
            from cuda.bindings import driver
        except ImportError as error:
            raise MissingDependency("the loader needs cuda-python", str(error), _REMEDY) from None
        try:
            ctypes.CDLL("libcuda.so.1")  # asked first: some later calls hang where it is missing
        except OSError as error:
            remedy = "run on a machine with a GPU and its driver"
            raise MissingDependency("the loader needs the NVIDIA driver", str(error), remedy) from None
        self._cu = driver
        self._memory: PeerMemory
        self._multicast: MulticastMemory | None = None
        if self.peer_memory == VMM:
            self._memory = VmmMemory(driver, self._call)
            self._multicast = MulticastMemory(driver, self._call, self._memory)
        else:
            self._memory = IpcMemory(driver, self._call)
        self._call(driver.cuInit(0))
        self._primary: Any = None
        if ordinal is not None:
            self._primary = self._call(driver.cuDevicePrimaryCtxRetain(self._call(driver.cuDeviceGet(ordinal))))
            self._call(driver.cuCtxSetCurrent(self._primary))

    def _call(self, result: tuple[Any, ...]) -> Any:
        """The value of a call that succeeded, else DriverError."""
        status, *values = result
        if status != self._cu.CUresult.CUDA_SUCCESS:
            _, name = self._cu.cuGetErrorName(status)
            _, text = self._cu.cuGetErrorString(status)
            raise DriverError("a CUDA driver call succeeds", f"{(name or b'').decode()}: {(text or b'').decode()}")
        return values[0] if len(values) == 1 else values

    def facts(self) -> DeviceFacts:
        cu, attribute = self._cu, self._cu.CUdevice_attribute
        device = self._call(cu.cuCtxGetDevice())

        def value(name: str) -> int:
            return int(self._call(cu.cuDeviceGetAttribute(getattr(attribute, f"CU_DEVICE_ATTRIBUTE_{name}"), device)))

        return DeviceFacts(
            name=self._call(cu.cuDeviceGetName(80, device)).split(b"\0")[0].decode(),
            uuid=self._call(cu.cuDeviceGetUuid(device)).bytes.hex(),
            capability=(value("COMPUTE_CAPABILITY_MAJOR"), value("COMPUTE_CAPABILITY_MINOR")),
            sms=value("MULTIPROCESSOR_COUNT"),
            shared_bytes=value("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            cuda=int(self._call(cu.cuDriverGetVersion())),
            driver=driver_release())

    def activate(self) -> None:
        if self._primary is not None and int(self._call(self._cu.cuCtxGetCurrent())) == 0:
            self._call(self._cu.cuCtxSetCurrent(self._primary))

    # -- memory --------------------------------------------------------------------------------------------------------
    def allocate(self, size: int) -> int:
        return self._memory.allocate(size)

    def free(self, address: int) -> None:
        self._memory.free(address)

    def zero(self, address: int, size: int) -> None:
        self._call(self._cu.cuMemsetD8(address, 0, size))
        self._call(self._cu.cuCtxSynchronize())  # a memset of device memory may return before it is done

    def upload(self, address: int, data: bytes) -> None:
        self._call(self._cu.cuMemcpyHtoD(address, data, len(data)))
        self._call(self._cu.cuCtxSynchronize())

    def download(self, address: int, size: int) -> bytes:
        data = bytearray(size)
        self._call(self._cu.cuMemcpyDtoH(data, address, size))
        return bytes(data)

    def export_memory(self, address: int) -> bytes:
        return self._memory.export(address)

    def open_memory(self, handle: bytes) -> int:
        return self._memory.open(handle)

    def close_memory(self, address: int) -> None:
        self._memory.close(address)

    def bind_multicast(self, address: int, rank: int, world: int, agree: Agree) -> int:
        multicast = self._multicast
        if multicast is None:
            agree(self._refuse_multicast)
        assert multicast is not None  # else all ranks have been told
        return multicast.bind(address, rank, world, agree)

    def _refuse_multicast(self) -> bytes:
        raise DriverError("multicast binds memory of the driver's virtual memory management", self.peer_memory,
                          f"set {VARIABLE}={VMM} on all ranks")

    def unbind_multicast(self, address: int) -> None:
        assert self._multicast is not None  # which has bound it
        self._multicast.unbind(address)

    def pinned(self, size: int) -> int:
        address = int(self._call(self._cu.cuMemHostAlloc(size, 0)))
        ctypes.memset(address, 0, size)
        return address

    def free_pinned(self, address: int) -> None:
        self._call(self._cu.cuMemFreeHost(address))

    def read_pinned(self, address: int, size: int) -> bytes:
        return ctypes.string_at(address, size)

    # -- binaries ------------------------------------------------------------------------------------------------------
    def load_module(self, image: bytes) -> int:
        return int(self._call(self._cu.cuModuleLoadData(image)))

    def unload_module(self, module: int) -> None:
        self._call(self._cu.cuModuleUnload(module))

    def function(self, module: int, entry: str) -> int:
        return int(self._call(self._cu.cuModuleGetFunction(module, entry.encode())))

    def set_shared_bytes(self, function: int, size: int) -> None:
        limit = self._cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._call(self._cu.cuFuncSetAttribute(function, limit, size))

    def encode_map(self, spec: TensorMapSpec, address: int) -> bytes:
        cu = self._cu
        sizes = [cu.cuuint64_t(size) for size in spec.sizes]
        strides = [cu.cuuint64_t(stride) for stride in spec.strides_bytes]
        box = [cu.cuuint32_t(size) for size in spec.box]
        steps = [cu.cuuint32_t(1) for _ in spec.sizes]
        element = getattr(cu.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_ELEMENTS[spec.element]}")
        value = self._call(cu.cuTensorMapEncodeTiled(
            element, len(sizes), address, sizes, strides, box, steps,
            cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            getattr(cu.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{spec.box[0] * ITEMSIZE[spec.element]}B"),
            cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE))
        return ctypes.string_at(value.getPtr(), MAP_BYTES)

    # -- order and work ------------------------------------------------------------------------------------------------
    def create_stream(self) -> int:
        return int(self._call(self._cu.cuStreamCreate(int(self._cu.CUstream_flags.CU_STREAM_NON_BLOCKING))))

    def destroy_stream(self, stream: int) -> None:
        self._call(self._cu.cuStreamDestroy(stream))

    def create_event(self) -> int:
        return int(self._call(self._cu.cuEventCreate(int(self._cu.CUevent_flags.CU_EVENT_DISABLE_TIMING))))

    def destroy_event(self, event: int) -> None:
        self._call(self._cu.cuEventDestroy(event))

    def record(self, event: int, stream: int) -> None:
        self._call(self._cu.cuEventRecord(event, stream))

    def wait(self, stream: int, event: int) -> None:
        self._call(self._cu.cuStreamWaitEvent(stream, event, 0))

    def capturing(self, stream: int) -> bool:
        status = self._call(self._cu.cuStreamIsCapturing(stream))
        return bool(status != self._cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)

    def synchronize(self, stream: int) -> None:
        self._call(self._cu.cuStreamSynchronize(stream))

    def copy(self, target: int, source: int, size: int, stream: int) -> None:
        self._call(self._cu.cuMemcpyAsync(target, source, size, stream))

    def copy_to_pinned(self, pinned: int, source: int, size: int, stream: int) -> None:
        self._call(self._cu.cuMemcpyDtoHAsync(pinned, source, size, stream))

    def launch_config(self, grid: Grid, stream: int) -> Any:
        """The launch configuration of a grid, with its attributes."""
        cu = self._cu
        attributes = []
        if grid.cluster > 1:
            attribute = cu.CUlaunchAttribute()
            attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            size = attribute.value.clusterDim
            size.x, size.y, size.z = grid.cluster, 1, 1
            attributes.append(attribute)
        if grid.early:
            attribute = cu.CUlaunchAttribute()
            attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            attributes.append(attribute)
        config = cu.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid.blocks, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = grid.threads, 1, 1
        config.sharedMemBytes, config.hStream = grid.shared_bytes, cu.CUstream(stream)
        config.attrs, config.numAttrs = attributes, len(attributes)
        return config

    def launch(self, function: int, grid: Grid, stream: int, parameters: KernelParameters) -> None:
        if grid.cluster > 1 or grid.early:
            config = self.launch_config(grid, stream)
            self._call(self._cu.cuLaunchKernelEx(config, function, parameters.address, 0))
            return
        self._call(self._cu.cuLaunchKernel(
            function, grid.blocks, 1, 1, grid.threads, 1, 1, grid.shared_bytes, stream, parameters.address, 0))


def driver_release(path: Path = _KERNEL_MODULE) -> str:
    """Release of the kernel driver, such as "580.159.04"; "" where the system does not say."""
    try:
        text = path.read_text()
    except OSError:
        return ""
    found = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", text)
    return found.group(1) if found else ""


def find_driver(ordinal: int = 0) -> Driver | str:
    """The driver of a device, or in words what is missing."""
    try:
        return CudaDriver(ordinal)
    except (MissingDependency, DriverError) as error:
        return str(error)
