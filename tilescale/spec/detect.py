"""The machine at hand, asked through NVML (nvidia-ml-py); torch and CUDA are not touched.

The structure comes from the shipped description of that GPU model, so that a detected machine and the named one of
the same build have the same digest; what only the machine knows (how many GPUs this process may use, whether they are
joined by NVLink, whether peers may be accessed) is asked.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import importlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tilescale.errors import TopologyError
from tilescale.spec import catalog
from tilescale.spec.topology import Link, Topology, check_ranks

PCIE_NAME = "4xPCIe"
REMEDY = 'use Topology.named("8xH200-NVSwitch"), .shared_gpu(ranks=4) or .scale_model("8xH200-NVSwitch", ranks=4)'


@dataclass(frozen=True)
class Device:
    """One GPU this process may use: ``index`` is NVML's (PCI order), ``uuid`` its physical identity."""

    index: int
    uuid: str
    nvml_name: str
    active_nvlinks: int
    fabric: bool
    peers: tuple[int, ...]


def devices() -> tuple[Device, ...]:
    """The visible GPUs in the order of CUDA_VISIBLE_DEVICES; TopologyError where there is no driver or no GPU."""
    with _nvml() as nvml:
        count = nvml.nvmlDeviceGetCount()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        uuids = [_text(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        order = visible(uuids, os.environ.get("CUDA_VISIBLE_DEVICES"))
        return tuple(_device(nvml, handles, index, uuids[index], order) for index in order)


def detect() -> Topology:
    """The topology of the visible GPUs; TopologyError where there is none, they differ, or their model is unknown."""
    return describe(devices())


def describe(found: tuple[Device, ...]) -> Topology:
    """The topology of these GPUs."""
    if not found:
        raise TopologyError(
            "no GPU is visible", f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')}", REMEDY
        )
    models = sorted({device.nvml_name for device in found})
    if len(models) > 1:
        raise TopologyError("the visible GPUs are of one model", models, "restrict CUDA_VISIBLE_DEVICES to one of them")
    base = catalog.for_nvml_name(models[0]).topology()
    link = _link(base, found)
    name = f"{len(found)}x{base.gpu.model}-{link.kind}"
    levels = tuple(
        dataclasses.replace(level, units=len(found), link=link) if level.name == "node" else level
        for level in base.levels
    )
    if "nvswitch" in link.kind:
        check_ranks(len(found), base.ranks, base.name)
    return Topology(name, "real", len(found), base.gpu, levels)


def model_at_hand() -> str | None:
    """Model of the first visible GPU; None without a driver or a GPU. An undescribed model is a TopologyError."""
    try:
        found = devices()
    except TopologyError:
        return None
    return catalog.for_nvml_name(found[0].nvml_name).gpu.model if found else None


def visible(uuids: list[str], setting: str | None) -> tuple[int, ...]:
    """NVML indices named by CUDA_VISIBLE_DEVICES (indices or UUID prefixes), in its order; as CUDA does, the list ends
    at the first entry that names no GPU. Unset means all."""
    if setting is None:
        return tuple(range(len(uuids)))
    order: list[int] = []
    for entry in (word.strip() for word in setting.split(",")):
        matches = [int(entry)] if entry.isdigit() else [i for i, uuid in enumerate(uuids) if uuid.startswith(entry)]
        if not entry or len(matches) != 1 or not matches[0] < len(uuids):
            break
        if matches[0] in order:
            raise TopologyError("CUDA_VISIBLE_DEVICES names a GPU once", setting, "remove the repeated entry")
        order.append(matches[0])
    return tuple(order)


def _link(base: Topology, found: tuple[Device, ...]) -> Link:
    everyone = {device.index for device in found}
    reachable = all(everyone - {device.index} <= set(device.peers) for device in found)
    if all(device.active_nvlinks > 0 for device in found) or (len(found) == 1 and base.link.kind != "pcie"):
        multicast = base.link.multicast and reachable and all(device.fabric for device in found)
        return dataclasses.replace(base.link, peer_access=reachable, multicast=multicast)
    pcie = base.link if base.link.kind == "pcie" else catalog.load_named(PCIE_NAME).topology().link
    return dataclasses.replace(pcie, peer_access=reachable, multicast=False)


@contextlib.contextmanager
def _nvml() -> Iterator[Any]:
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        raise TopologyError("no GPU can be asked for", "nvidia-ml-py is not installed", REMEDY) from None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise TopologyError("no GPU and driver are here", str(error), REMEDY) from None
    try:
        yield nvml
    except nvml.NVMLError as error:
        raise TopologyError("NVML answers about the GPUs", str(error), "check nvidia-smi") from None
    finally:
        nvml.nvmlShutdown()


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _device(nvml: Any, handles: list[Any], index: int, uuid: str, order: tuple[int, ...]) -> Device:
    handle = handles[index]
    links = sum(_active(nvml, handle, link) for link in range(nvml.NVML_NVLINK_MAX_LINKS))
    peers = tuple(other for other in order if other != index and _reaches(nvml, handle, handles[other]))
    name = _text(nvml.nvmlDeviceGetName(handle))
    return Device(index, uuid, name, links, _fabric(nvml, handle), peers)


def _active(nvml: Any, handle: Any, link: int) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetNvLinkState(handle, link) == nvml.NVML_FEATURE_ENABLED)
    except nvml.NVMLError:
        return False  # fewer links than the maximum, or none on this board


def _reaches(nvml: Any, handle: Any, other: Any) -> bool:
    try:
        status = nvml.nvmlDeviceGetP2PStatus(handle, other, nvml.NVML_P2P_CAPS_INDEX_READ)
        return bool(status == nvml.NVML_P2P_STATUS_OK)
    except nvml.NVMLError:
        return False


def _fabric(nvml: Any, handle: Any) -> bool:
    """Whether the GPU is registered with a switch fabric. Whether multicast really binds is known only by trying,
    which the capability probe of the runtime does; this decides what is described."""
    try:
        info = nvml.c_nvmlGpuFabricInfo_t()
        nvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
        return bool(info.state == nvml.NVML_GPU_FABRIC_STATE_COMPLETED)
    except (nvml.NVMLError, AttributeError):
        return False
