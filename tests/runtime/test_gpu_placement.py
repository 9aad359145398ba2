"""tilescale.runtime.gpu_placement: which GPUs ranks get, and what is refused before and after they have started."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from runtime.gpu_fakes import Ranks

import tilescale as ts
from tilescale.errors import RunnerError, TopologyError
from tilescale.runtime import gpu_placement
from tilescale.runtime.gpu_driver import RankDriver
from tilescale.runtime.gpu_placement import RankFacts, check_placement, place
from tilescale.spec.detect import Device, visible

EIGHT = [f"GPU-{index}" for index in range(8)]
HOST = ts.Topology.named("8xH200-NVSwitch")
FACTS = RankFacts("gpu-a", "NVIDIA H200", "580.1", 13000, "2.11", 132, 1, 1, 0)


def gpu(index: int, peers: tuple[int, ...]) -> Device:
    return Device(index, EIGHT[index], "NVIDIA H200", 18, True, peers)


@pytest.fixture
def see(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make a host of 8 GPUs, of which the setting leaves some visible, in its order."""

    def install(setting: str | None = None, peers: tuple[int, ...] = tuple(range(8))) -> None:
        found = tuple(gpu(index, peers) for index in visible(EIGHT, setting))
        monkeypatch.setattr(gpu_placement, "devices", lambda: found)
        monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")

    return install


@pytest.mark.parametrize("world", [2, 3, 6, 8])
def test_case_b8_every_world_of_a_host_gets_its_first_gpus(see: Any, world: int) -> None:
    see()
    assert place(HOST.with_ranks(world)) == {"CUDA_VISIBLE_DEVICES": ",".join(EIGHT[:world])}


def test_case_b9_subsets_keep_their_order(see: Any) -> None:
    see("4,2,7,1")
    assert place(HOST.with_ranks(3)) == {"CUDA_VISIBLE_DEVICES": "GPU-4,GPU-2,GPU-7"}
    assert place(HOST.with_ranks(2), ["GPU-1", "GPU-4"]) == {"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-4"}


@pytest.mark.parametrize(("gpus", "rule"), [
    (["GPU-1", "GPU-1"], "2 ranks with a GPU each"), (["GPU-1"], "2 ranks with a GPU each"),
    (["GPU-1", "GPU-5"], "visible; got: GPU-5; visible are GPU-4, GPU-1"),
])
def test_gpus_that_cannot_be_those_of_the_ranks_are_refused(see: Any, gpus: list[str], rule: str) -> None:
    see("4,1")
    with pytest.raises(RunnerError, match=rule):
        place(HOST.with_ranks(2), gpus)


def test_case_b8_a_world_that_the_host_lacks_names_those_it_has(see: Any) -> None:
    see("4,2,7,1")
    with pytest.raises(RunnerError, match=r"4 visible: GPU-4, GPU-2, GPU-7, GPU-1; allowed worlds here: 1 to 4"):
        place(HOST.with_ranks(6))


def test_case_b10_no_peer_access_is_refused_before_anything_starts(see: Any) -> None:
    see(peers=(0, 1))
    assert place(HOST.with_ranks(2))
    with pytest.raises(RunnerError, match=r"none from GPU-0 to GPU-2; GPU-1 to GPU-2; choose"):
        place(HOST.with_ranks(3))
    with pytest.raises(RunnerError, match=r"4xPCIe is described with peer_access = false"):
        place(ts.Topology.named("4xPCIe"))


def test_case_b9_numbers_are_left_to_cuda_unless_it_counts_as_nvml_does(see: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    see("4,2,7,1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,2,7,1")
    assert place(HOST.with_ranks(2)) == {"CUDA_VISIBLE_DEVICES": "GPU-4,GPU-2"}
    monkeypatch.delenv("CUDA_DEVICE_ORDER")
    assert place(HOST.with_ranks(2)) == {}
    assert place(HOST.with_ranks(2), ["GPU-7", "GPU-1"]) == {"CUDA_VISIBLE_DEVICES": "GPU-7,GPU-1"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-4,GPU-2")
    assert place(HOST.with_ranks(2)) == {"CUDA_VISIBLE_DEVICES": "GPU-4,GPU-2"}


def test_without_nvml_ranks_see_what_their_parent_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> tuple[Device, ...]:
        raise TopologyError("no GPU can be asked for")

    monkeypatch.setattr(gpu_placement, "devices", none)
    assert place(HOST.with_ranks(4)) == {}


@pytest.mark.parametrize("lack", ["no peer access", "no native atomics", "is not visible"])
def test_case_b10_a_pair_that_cannot_work_is_refused_by_the_ranks_own_probe(lack: str) -> None:
    other = dataclasses.replace(FACTS, uuid="gpu-b", lacks=(lack, ""))
    with pytest.raises(RunnerError, match=rf"rank 1 \(gpu-b\) to rank 0 \(gpu-a\): {lack}; let all ranks"):
        check_placement(HOST.with_ranks(2), [dataclasses.replace(FACTS, lacks=("", "")), other])
    check_placement(HOST.with_ranks(2), [FACTS, dataclasses.replace(other, lacks=("", ""))])


def test_ranks_that_cannot_reach_each_other_say_so_and_open_no_memory() -> None:
    ranks = Ranks(2, limit_s=3.0)
    ranks.drivers[1].lacks = "no peer access"
    facts = ranks.facts()
    assert [fact["lacks"] for fact in facts] == [["", ""], ["no peer access"] * 2]
    assert ranks.machine.aliases == {}


class Cu:
    """cuda.bindings.driver of two GPUs, as far as asking about peers goes."""

    CUdevice_P2PAttribute = SimpleNamespace(CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED="atomics")

    def __init__(self, access: int, atomics: int) -> None:
        self.access, self.atomics = access, atomics

    def cuDeviceGetCount(self) -> Any:
        return (0, 2)

    def cuDeviceGet(self, ordinal: int) -> Any:
        return (0, ordinal)

    def cuDeviceGetUuid(self, device: int) -> Any:
        return (0, SimpleNamespace(bytes=bytes([device])))

    def cuDeviceCanAccessPeer(self, device: int, peer: int) -> Any:
        return (0, self.access)

    def cuDeviceGetP2PAttribute(self, attribute: str, device: int, peer: int) -> Any:
        assert attribute == "atomics"
        return (0, self.atomics)


@pytest.mark.parametrize(("access", "atomics", "lack"), [(1, 1, ""), (1, 0, "no native atomics"), (0, 1, "no peer access")])
def test_the_driver_is_asked_about_every_pair(
    access: int, atomics: int, lack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = RankDriver.__new__(RankDriver)
    driver._cu, driver._device = Cu(access, atomics), 0
    monkeypatch.setattr(RankDriver, "_call", lambda self, result: result[1])
    monkeypatch.setattr(RankDriver, "facts", lambda self: SimpleNamespace(uuid="00"))
    assert driver.reach(["00", "01", "02"]) == ["", lack, "is not visible"]
