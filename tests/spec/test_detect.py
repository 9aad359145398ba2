"""detect: what NVML says, through a stand-in for it; and this machine, with or without a driver."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tilescale.errors import TopologyError
from tilescale.spec import detect
from tilescale.spec.detect import Device, describe, visible
from tilescale.spec.topology import Topology

UUIDS = [f"GPU-{index}abc" for index in range(8)]


class NvmlError(Exception):
    pass


def fake_nvml(names: list[str], links: int = 18, peers: bool = True, fabric: bool = True, **more: Any) -> Any:
    def fabric_info(handle: int, info: Any) -> None:
        # ctypes.byref hands over a reference; _obj is the structure behind it.
        info._obj.state = 3 if fabric else 0

    import ctypes

    class FabricInfo(ctypes.Structure):
        _fields_ = (("state", ctypes.c_uint),)

    def link_state(handle: int, link: int) -> int:
        if link >= links:
            raise NvmlError("not supported")
        return 1

    return SimpleNamespace(
        NVMLError=NvmlError,
        NVML_NVLINK_MAX_LINKS=18,
        NVML_FEATURE_ENABLED=1,
        NVML_P2P_CAPS_INDEX_READ=(0,),  # as pynvml has it
        NVML_P2P_CAPS_INDEX_WRITE=1,
        NVML_P2P_CAPS_INDEX_ATOMICS=3,
        NVML_NVLINK_DEVICE_TYPE_SWITCH=2,
        NVML_P2P_STATUS_OK=0,
        NVML_GPU_FABRIC_STATE_COMPLETED=3,
        c_nvmlGpuFabricInfo_t=FabricInfo,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(names),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=lambda handle: UUIDS[handle].encode(),
        nvmlDeviceGetName=lambda handle: names[handle],
        nvmlDeviceGetNvLinkState=link_state,
        nvmlDeviceGetP2PStatus=lambda handle, other, capability: 0 if peers and isinstance(capability, int) else 1,
        nvmlDeviceGetGpuFabricInfo=fabric_info,
        **more,
    )


def bus(handle: int) -> str:
    return f"00000000:{handle:02X}:00.0"


def ends_at(partner: dict[int, int]) -> dict[str, Any]:
    """NVML of a board whose links end at the GPU that `partner` names, or at a switch for GPUs that it does not."""
    return {
        "nvmlDeviceGetPciInfo": lambda handle: SimpleNamespace(busId=bus(handle).encode()),
        "nvmlDeviceGetNvLinkRemoteDeviceType": lambda handle, link: 0 if handle in partner else 2,
        "nvmlDeviceGetNvLinkRemotePciInfo": lambda handle, link: SimpleNamespace(busId=bus(partner[handle]).encode()),
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=141 << 30),
        "nvmlDeviceGetNumGpuCores": lambda handle: 132 * 128,
    }


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return lambda nvml: monkeypatch.setitem(sys.modules, "pynvml", nvml)


def test_a_detected_machine_is_the_named_one(install: Any) -> None:
    install(fake_nvml(["NVIDIA H200"] * 8))
    found = Topology.detect()
    assert found.digest == Topology.named("8xH200-NVSwitch").digest
    assert found.name == "8xH200-nvlink4-nvswitch"
    assert found.link.multicast


def test_case_b9_visible_devices_and_their_uuids(install: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    install(fake_nvml(["NVIDIA H200"] * 8))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,2,7,1")
    assert [device.uuid for device in detect.devices()] == [UUIDS[index] for index in (4, 2, 7, 1)]
    assert Topology.detect().digest == Topology.named("8xH200-NVSwitch", ranks=4).digest


def test_case_b10_links_that_are_missing(install: Any) -> None:
    install(fake_nvml(["NVIDIA H200"] * 4, fabric=False))
    no_switch_multicast = Topology.detect().link
    assert no_switch_multicast.peer_access
    assert not no_switch_multicast.multicast
    install(fake_nvml(["NVIDIA H200"] * 4, links=0, peers=False))
    pcie = Topology.detect().link
    assert (pcie.kind, pcie.peer_access, pcie.multicast) == ("pcie", False, False)
    install(fake_nvml(["NVIDIA H100 PCIe"] * 4, links=0, peers=False))
    assert Topology.detect().digest == Topology.named("4xPCIe").digest


def test_links_say_where_they_end(install: Any) -> None:
    install(fake_nvml(["NVIDIA H200"] * 3, **ends_at({})))
    first = detect.devices()[0]
    assert (first.switch_links, first.direct, first.peers, first.atomics) == (18, (), (1, 2), (1, 2))
    assert (first.bus, first.numa, first.memory_bytes, first.cores) == (bus(0).lower(), -1, 141 << 30, 16896)
    assert Topology.detect().link.kind == "nvlink4-nvswitch"


def test_case_b10_gpus_that_nvlink_joins_in_pairs(install: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    install(fake_nvml(["NVIDIA H200"] * 4, **ends_at({0: 1, 1: 0, 2: 3, 3: 2})))
    assert [device.direct for device in detect.devices()] == [(1,), (0,), (3,), (2,)]
    assert Topology.detect().link.kind == "pcie"  # between the pairs
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,2")
    assert Topology.detect().link.kind == "nvlink4-nvswitch"


def test_case_b10_the_links_of_some_ranks_are_those_described(install: Any) -> None:
    install(fake_nvml(["NVIDIA H200"] * 4, **ends_at({0: 1, 1: 0, 2: 3, 3: 2})))
    assert Topology.detect([3, 2]).digest == Topology.named("8xH200-NVSwitch", ranks=2).digest
    assert Topology.detect([1, 2]).link.kind == "pcie"


@pytest.mark.parametrize("ranks", [[], [0, 0], [0, 4], [-1], [True, 0]])
def test_case_b9_ranks_that_are_no_different_gpus_are_refused_with_their_uuids(
    install: Any, monkeypatch: pytest.MonkeyPatch, ranks: list[int]
) -> None:
    install(fake_nvml(["NVIDIA H200"] * 8))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,2,7,1")
    with pytest.raises(TopologyError, match=r"choose from 0: GPU-4abc, 1: GPU-2abc, 2: GPU-7abc, 3: GPU-1abc"):
        Topology.detect(ranks)


def test_the_numa_node_is_that_of_the_bus(tmp_path: Path) -> None:
    folder = tmp_path / "0000:17:00.0"
    folder.mkdir()
    (folder / "numa_node").write_text("1\n")
    assert detect._numa("00000000:17:00.0", tmp_path) == 1
    assert detect._numa("00000000:18:00.0", tmp_path) == detect._numa("", tmp_path) == -1


def test_one_gpu(install: Any) -> None:
    install(fake_nvml(["NVIDIA H200"]))
    assert Topology.detect().world == 1
    assert Topology.shared_gpu(ranks=4).gpu.model == "H200"
    install(fake_nvml(["NVIDIA A100-SXM4-80GB"]))
    assert Topology.shared_gpu(ranks=4).gpu.model == "A100"


def test_case_d7_a_similar_gpu_is_named_and_not_used(install: Any) -> None:
    install(fake_nvml(["NVIDIA H200 NVL"]))
    for ask in (Topology.detect, lambda: Topology.shared_gpu(ranks=2)):
        with pytest.raises(TopologyError, match=r"got: 'NVIDIA H200 NVL'; did you mean 'NVIDIA H200'"):
            ask()


def test_what_cannot_be_described_is_refused(install: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    install(fake_nvml(["NVIDIA H200", "NVIDIA B200"]))
    with pytest.raises(TopologyError, match=r"of one model"):
        Topology.detect()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(TopologyError, match=r"no GPU is visible"):
        Topology.detect()
    assert detect.model_at_hand() is None


def test_without_a_driver_the_remedy_is_named(install: Any) -> None:
    nvml = fake_nvml([])

    def no_driver() -> None:
        raise NvmlError("NVML Shared Library Not Found")

    nvml.nvmlInit = no_driver
    install(nvml)
    with pytest.raises(TopologyError, match=r"no GPU.*Not Found; use Topology.named"):
        Topology.detect()
    assert Topology.shared_gpu(ranks=2).gpu.model == "H200"
    install(None)  # makes the import fail
    with pytest.raises(TopologyError, match=r"nvidia-ml-py is not installed"):
        Topology.detect()


@pytest.mark.parametrize(
    ("setting", "order"),
    [
        (None, (0, 1, 2, 3, 4, 5, 6, 7)),
        ("4,2,7,1", (4, 2, 7, 1)),
        (" 3 , 0", (3, 0)),
        ("GPU-5", (5,)),
        ("", ()),
        ("-1", ()),
        ("1,9,2", (1,)),
        ("1,GPU-,2", (1,)),
    ],
)
def test_visible_follows_cuda(setting: str | None, order: tuple[int, ...]) -> None:
    assert visible(UUIDS, setting) == order


def test_a_gpu_named_twice_is_refused() -> None:
    with pytest.raises(TopologyError, match=r"names a GPU once"):
        visible(UUIDS, "1,1")


def test_more_gpus_than_the_described_switch_joins() -> None:
    found = tuple(Device(i, f"GPU-{i}", "NVIDIA H200", 18, True, tuple(range(16))) for i in range(16))
    with pytest.raises(TopologyError, match=r"8xH200-NVSwitch has 8 GPUs; got: ranks=16"):
        describe(found)


def test_asking_this_machine_loads_no_torch_and_answers_or_says_why() -> None:
    program = (
        "import sys\n"
        "from tilescale.errors import TopologyError\n"
        "from tilescale.spec.topology import Topology\n"
        "try:\n"
        "    print('found', Topology.detect().world)\n"
        "except TopologyError as error:\n"
        "    print('refused', error.remedy)\n"
        "assert not {'torch', 'cuda', 'numpy'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(("found ", "refused "))
    assert len(done.stdout.split()) > 1
