"""Peer memory by virtual memory management, on a stand-in for the driver whose allocations are memory files."""

from __future__ import annotations

from pathlib import Path

import pytest
from deploy.fake_vmm import GRAIN, VmmDriver
from deploy.fakes import Meeting, on_all_ranks
from deploy.ranks import run_ranks

from tilescale.deploy.driver import DriverError
from tilescale.deploy.peer_memory import IpcMemory, chosen
from tilescale.deploy.symmetric import SymmetricMemory
from tilescale.errors import BundleError

RANK = Path(__file__).with_name("vmm_rank.py")


def test_ranks_in_processes_of_their_own_see_each_others_bytes(tmp_path):
    world = 3
    for rank, found in enumerate(run_ranks([RANK, tmp_path / "init"], world)):
        assert found["zeroed"] is True
        for round_ in range(2):
            assert found[f"written {round_}"] == [[round_, peer, rank] for peer in range(world)]
        assert found["left"] == [0, 0]
        assert found["after"] <= found["before"] + 1  # the socket of its server


def test_sizes_are_whole_pieces_and_what_is_given_back_is_gone():
    driver = VmmDriver(device=3)
    addresses = [driver.allocate(size) for size in (1, GRAIN, GRAIN + 1)]
    assert [driver._cu.places[address].size for address in addresses] == [GRAIN, GRAIN, 2 * GRAIN]
    handle = driver.export_memory(addresses[0])
    assert driver.export_memory(addresses[0]) == handle
    other = VmmDriver(device=1)
    opened = other.open_memory(handle)
    driver.upload(addresses[0] + 5, b"hello")
    assert other.download(opened + 5, 5) == b"hello"
    for address in addresses:
        driver.free(address)
    assert driver._cu.live == (0, 0)
    assert other.download(opened + 5, 5) == b"hello"  # a mapping keeps its bytes
    other.close_memory(opened)
    assert other._cu.live == (0, 0)
    with pytest.raises(DriverError, match="it has no such memory"):
        other.open_memory(handle)


def test_unmapping_waits_for_the_device():
    driver = VmmDriver()
    address = driver.allocate(1)
    del driver._cu.calls[:]
    driver.free(address)
    calls = [name for name in driver._cu.calls if name.startswith(("cuCtx", "cuMem"))]
    assert calls == ["cuCtxSynchronize", "cuMemUnmap", "cuMemAddressFree", "cuMemRelease"]


@pytest.mark.parametrize("call", ["cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"])
def test_an_allocation_that_fails_leaves_nothing(call):
    driver = VmmDriver()
    driver._cu.failing = call
    with pytest.raises(DriverError, match="CUDA_ERROR_NOT_SUPPORTED"):
        driver.allocate(1)
    assert driver._cu.live == (0, 0)


@pytest.mark.parametrize("call", ["cuMemExportToShareableHandle", "cuMemImportFromShareableHandle", "cuMemAddressReserve",
                                  "cuMemMap", "cuMemSetAccess"])
def test_where_one_rank_fails_all_say_so_and_nothing_is_left(call):
    drivers, meeting = [VmmDriver(rank) for rank in range(3)], Meeting(3)
    drivers[1]._cu.failing = call

    def make(rank):
        with pytest.raises(BundleError, match=r"rank 1: .*CUDA_ERROR_NOT_SUPPORTED"):
            SymmetricMemory(drivers[rank], rank, 64, meeting.exchange(rank))

    on_all_ranks(3, make)
    assert [driver._cu.live for driver in drivers] == [(0, 0)] * 3


@pytest.mark.parametrize("attribute", ["vmm", "fd"])
def test_a_device_that_cannot_is_refused_with_the_other_way(attribute):
    driver = VmmDriver()
    driver._cu.supported.discard(attribute)
    with pytest.raises(DriverError, match=r"needs .*_SUPPORTED of the device; got: 0; set TILESCALE_PEER_MEMORY=ipc"):
        driver.allocate(1)


def test_the_setting_is_a_word_that_all_ranks_share(monkeypatch):
    monkeypatch.delenv("TILESCALE_PEER_MEMORY", raising=False)
    assert chosen() == "ipc"
    monkeypatch.setenv("TILESCALE_PEER_MEMORY", "vmm")
    assert (chosen(), chosen("ipc")) == ("vmm", "ipc")
    monkeypatch.setenv("TILESCALE_PEER_MEMORY", "vm")
    with pytest.raises(DriverError, match="is ipc or vmm; got: 'vm'; did you mean 'vmm'"):
        chosen()
    driver = VmmDriver()
    with pytest.raises(DriverError, match="share memory by vmm; got: another handle, of 64 bytes"):
        driver.open_memory(bytes(64))
    handle = driver.export_memory(driver.allocate(1))
    with pytest.raises(DriverError, match="share memory by ipc; got: a handle of"):
        IpcMemory(driver._cu, driver._call).open(handle)
