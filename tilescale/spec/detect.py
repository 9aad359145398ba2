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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilescale.errors import TopologyError
from tilescale.spec import catalog
from tilescale.spec.topology import Link, Topology, check_ranks

PCIE_NAME = "4xPCIe"
SWITCH = "switch"  # where a link ends
REMEDY = 'use Topology.named("8xH200-NVSwitch"), .shared_gpu(ranks=4) or .scale_model("8xH200-NVSwitch", ranks=4)'


@dataclass(frozen=True)
class Device:
    """One GPU this process may use: ``index`` is NVML's (PCI order), ``uuid`` its physical identity.

    ``peers``, ``atomics``: indices of GPUs whose memory it reads and writes, and changes by native atomics. Of its
    ``active_nvlinks``, ``switch_links`` end at a switch, and the others join it to the GPUs ``direct``; both are empty
    where NVML does not say where links end. ``numa``: node of its bus, -1 where unknown.
    """

    index: int
    uuid: str
    nvml_name: str
    active_nvlinks: int
    fabric: bool
    peers: tuple[int, ...]
    atomics: tuple[int, ...] = ()
    switch_links: int = 0
    direct: tuple[int, ...] = ()
    bus: str = ""
    numa: int = -1
    memory_bytes: int = 0
    cores: int = 0


def devices() -> tuple[Device, ...]:
    """The visible GPUs in the order of CUDA_VISIBLE_DEVICES; TopologyError where there is no driver or no GPU."""
    with _nvml() as nvml:
        count = nvml.nvmlDeviceGetCount()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        uuids = [_text(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        order = visible(uuids, os.environ.get("CUDA_VISIBLE_DEVICES"))
        buses = {index: _bus(nvml, handles[index]) for index in order}
        return tuple(_device(nvml, handles, index, uuids[index], buses) for index in order)


def detect(ranks: Sequence[int] | None = None) -> Topology:
    """The topology of the visible GPUs, or of those at the places `ranks`; TopologyError where there is none, they differ,
    or their model is unknown."""
    found = devices()
    return describe(found if ranks is None else chosen(found, ranks))


def chosen(found: tuple[Device, ...], ranks: Sequence[int]) -> tuple[Device, ...]:
    """Some of the visible GPUs, in the order of `ranks`; TopologyError for one that is not there, or twice."""
    wanted = list(ranks)
    if not wanted or any(type(rank) is not int or not 0 <= rank < len(found) for rank in wanted) \
            or len(set(wanted)) < len(wanted):
        seen = ", ".join(f"{place}: {device.uuid}" for place, device in enumerate(found))
        raise TopologyError("ranks are different visible GPUs", wanted, f"choose from {seen}")
    return tuple(found[rank] for rank in wanted)


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


def numbers_are_cudas() -> bool:
    """Whether CUDA_VISIBLE_DEVICES holds numbers that CUDA may count otherwise than NVML does: it numbers GPUs by speed
    unless CUDA_DEVICE_ORDER is PCI_BUS_ID, and equal ones in an order of its own (reversed, on a machine of two)."""
    words = [word.strip() for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    return any(word.isdigit() for word in words) and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"


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
    if all(_joined(device, everyone) for device in found) or (len(found) == 1 and base.link.kind != "pcie"):
        multicast = base.link.multicast and reachable and all(device.fabric for device in found)
        return dataclasses.replace(base.link, peer_access=reachable, multicast=multicast)
    pcie = base.link if base.link.kind == "pcie" else catalog.load_named(PCIE_NAME).topology().link
    return dataclasses.replace(pcie, peer_access=reachable, multicast=False)


def _joined(device: Device, everyone: set[int]) -> bool:
    """Whether NVLink joins a GPU to all the others: through a switch, directly, or in a way that NVML does not say.
    Where GPUs are joined in pairs alone, what lies between the pairs decides."""
    if device.active_nvlinks == 0:
        return False
    return device.switch_links > 0 or not device.direct or everyone - {device.index} <= set(device.direct)


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


def _device(nvml: Any, handles: list[Any], index: int, uuid: str, buses: dict[int, str]) -> Device:
    handle = handles[index]
    others = [other for other in buses if other != index]
    active = [link for link in range(nvml.NVML_NVLINK_MAX_LINKS) if _active(nvml, handle, link)]
    ends = [_end(nvml, handle, link) for link in active]
    direct = tuple(other for other in others if buses[other] and buses[other] in ends)

    def reached(*capabilities: str) -> tuple[int, ...]:
        return tuple(other for other in others if all(_can(nvml, handle, handles[other], name) for name in capabilities))

    memory = _asked(nvml, "nvmlDeviceGetMemoryInfo", handle)
    return Device(
        index=index, uuid=uuid, nvml_name=_text(nvml.nvmlDeviceGetName(handle)), active_nvlinks=len(active),
        fabric=_fabric(nvml, handle), peers=reached("READ", "WRITE"), atomics=reached("ATOMICS"),
        switch_links=ends.count(SWITCH), direct=direct, bus=buses[index], numa=_numa(buses[index]),
        memory_bytes=int(memory.total) if memory is not None else 0,
        cores=int(_asked(nvml, "nvmlDeviceGetNumGpuCores", handle) or 0))


def _asked(nvml: Any, name: str, *arguments: Any) -> Any:
    """What a call of NVML answers; None where this version, this driver or this board has no answer."""
    try:
        return getattr(nvml, name)(*arguments)
    except (nvml.NVMLError, AttributeError):
        return None


def _active(nvml: Any, handle: Any, link: int) -> bool:
    """Not for numbers above those of the board, nor for links that are down."""
    return bool(_asked(nvml, "nvmlDeviceGetNvLinkState", handle, link) == nvml.NVML_FEATURE_ENABLED)


def _end(nvml: Any, handle: Any, link: int) -> str:
    """Where a link ends: SWITCH, the bus of a GPU, or "" where NVML does not say."""
    kind = _asked(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
    if kind is not None and kind == getattr(nvml, "NVML_NVLINK_DEVICE_TYPE_SWITCH", None):
        return SWITCH
    info = _asked(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
    return "" if info is None else _text(info.busId).lower()


def _can(nvml: Any, handle: Any, other: Any, capability: str) -> bool:
    index = getattr(nvml, f"NVML_P2P_CAPS_INDEX_{capability}", None)
    if isinstance(index, tuple):  # pynvml writes READ as "0,"
        index = index[0]
    status = None if index is None else _asked(nvml, "nvmlDeviceGetP2PStatus", handle, other, index)
    return bool(status == nvml.NVML_P2P_STATUS_OK)


def _bus(nvml: Any, handle: Any) -> str:
    info = _asked(nvml, "nvmlDeviceGetPciInfo", handle)
    return "" if info is None else _text(info.busId).lower()


def _numa(bus: str, devices: Path = Path("/sys/bus/pci/devices")) -> int:
    """NUMA node of a device on the bus. NVML writes eight digits for the domain, the kernel four."""
    try:
        return int((devices / bus[-12:] / "numa_node").read_text()) if bus else -1
    except (OSError, ValueError):
        return -1


def _fabric(nvml: Any, handle: Any) -> bool:
    """Whether the GPU is registered with a switch fabric. Whether multicast really binds is known only by trying,
    which the capability probe of the runtime does; this decides what is described."""
    try:
        info = nvml.c_nvmlGpuFabricInfo_t()
        nvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
        return bool(info.state == nvml.NVML_GPU_FABRIC_STATE_COMPLETED)
    except (nvml.NVMLError, AttributeError):
        return False
