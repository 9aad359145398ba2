"""Multicast addresses, on a stand-in for the driver: never asked for where they are switched off, else on all ranks."""

from __future__ import annotations

import pytest
import torch
from deploy.fake_device import FakeDriver, Machine
from deploy.fake_vmm import OBJECTS, VmmDriver
from deploy.fakes import Group, Meeting, on_all_ranks, schedules
from schedules.test_multimem import specs

from tilescale.deploy.driver import Matrix
from tilescale.deploy.multicast import SWITCHES, refusal
from tilescale.deploy.symmetric import SymmetricMemory
from tilescale.errors import BundleError

OFF = [("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"), ("NCCL_NVLS_ENABLE", "0"), ("NVSHMEM_DISABLE_NVLS", "1")]


@pytest.fixture(autouse=True)
def allowed(monkeypatch):
    for name in SWITCHES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TILESCALE_MULTICAST", "1")
    OBJECTS.clear()


def asked(drivers):
    """Calls about multicast objects."""
    return {call for driver in drivers for call in driver._cu.calls if call.startswith("cuMulticast")}


def test_every_rank_gets_an_address_and_nothing_is_left_after_the_end():
    drivers, meeting = [VmmDriver(rank) for rank in range(3)], Meeting(3)

    def make(rank):
        return SymmetricMemory(drivers[rank], rank, 3 << 20, meeting.exchange(rank), multicast=True)

    memories = on_all_ranks(3, make)
    ((wanted, added, bound),) = OBJECTS.values()
    assert (wanted, added, bound) == (3, {0, 1, 2}, {0, 1, 2})
    for driver, memory in zip(drivers, memories, strict=True):
        assert memory.multicast not in (0, *memory.addresses)
        assert driver._cu.places[memory.multicast].size == 4 << 20
    on_all_ranks(3, lambda rank: memories[rank].close())
    assert [driver._cu.live for driver in drivers] == [(0, 0)] * 3
    assert bound == set()


@pytest.mark.parametrize(("name", "value"), OFF)
def test_where_one_rank_has_it_switched_off_no_rank_asks_for_it(monkeypatch, name, value):
    drivers, meeting = [VmmDriver(rank) for rank in range(2)], Meeting(2)
    monkeypatch.setenv(name, value)

    def make(rank):
        with pytest.raises(BundleError, match=rf"rank 0: .*{name}={value} switches it off"):
            SymmetricMemory(drivers[rank], rank, 64, meeting.exchange(rank), multicast=True)

    on_all_ranks(2, make)
    assert asked(drivers) == set()
    assert [driver._cu.live for driver in drivers] == [(0, 0)] * 2


def test_it_is_for_who_owns_the_machine_to_allow():
    assert refusal({}) == "TILESCALE_MULTICAST is not 1"
    assert refusal({"TILESCALE_MULTICAST": "1"}) == ""
    assert refusal({"TILESCALE_MULTICAST": "1", "NCCL_NVLS_ENABLE": "1"}) == ""
    for name, value in OFF:
        assert name in refusal({"TILESCALE_MULTICAST": "1", name: value})


def test_a_device_without_it_is_told_by_all():
    drivers, meeting = [VmmDriver(rank) for rank in range(2)], Meeting(2)
    drivers[1]._cu.supported.discard("many")

    def make(rank):
        with pytest.raises(BundleError, match=r"rank 1: .*MULTICAST_SUPPORTED is 0"):
            SymmetricMemory(drivers[rank], rank, 64, meeting.exchange(rank), multicast=True)

    on_all_ranks(2, make)
    assert asked(drivers) == set()


def test_memory_of_the_other_kind_cannot_be_bound_and_all_say_so():
    drivers, meeting = [VmmDriver(rank) for rank in range(2)], Meeting(2)
    drivers[1].peer_memory, drivers[1]._multicast = "ipc", None

    def make(rank):
        with pytest.raises(BundleError, match=r"rank 1: multicast binds .*; got: ipc; set TILESCALE_PEER_MEMORY=vmm"):
            SymmetricMemory(drivers[rank], rank, 64, meeting.exchange(rank), multicast=True)

    on_all_ranks(2, make)
    assert asked(drivers) == set()


@pytest.mark.parametrize(("call", "rank"), [
    ("cuMulticastCreate", 0), ("cuMulticastAddDevice", 1), ("cuMulticastBindMem", 0), ("cuMulticastBindMem", 1),
])
def test_where_one_rank_cannot_all_say_so_and_nothing_is_left(call, rank):
    drivers, meeting = [VmmDriver(rank) for rank in range(2)], Meeting(2)
    drivers[rank]._cu.failing = call

    def make(each):
        with pytest.raises(BundleError, match=rf"rank {rank}: .*CUDA_ERROR_NOT_SUPPORTED"):
            SymmetricMemory(drivers[each], each, 64, meeting.exchange(each), multicast=True)

    on_all_ranks(2, make)
    assert [driver._cu.live for driver in drivers] == [(0, 0)] * 2


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter", "all_reduce"])
def test_programs_that_use_it_run_from_their_argument_bytes(op, ranks):
    spec = specs(ranks)[op]
    kinds = {(s.algorithm, s.overlap): s for s in schedules(spec) if s.transport == "multimem"}
    assert len(kinds) >= 2
    for seed, schedule in enumerate(kinds.values()):
        group = Group(spec, schedule, seed)
        machine, pending = group.machine, []
        assert len(machine.multicast) == ranks
        for _ in range(3):  # both versions of buffers, and the first one again
            places = [[place(machine, tensor.local_shape(rank, ranks)) for tensor in (spec.inputs[0], spec.output)]
                      for rank in range(ranks)]
            operands = [a[1].float() for a, _ in places]
            whole = torch.cat(operands) if op == "all_gather" else sum(operands)
            for rank, ((a, _), (out, found)) in enumerate(places):
                group.ranks[rank]({"a": a, "out": out}, stream=7)
                first = spec.output.local_offset(rank, ranks)[0]
                pending.append((found, whole[first : first + found.shape[0]]))
        machine.run()
        for found, wanted in pending:
            assert torch.equal(found.float(), wanted), schedule.label
        group.all(lambda operation: operation.close())
        assert machine.multicast == {}


def place(machine, shape):
    """Small integers in fake memory, and their address."""
    address = machine.allocate(shape[0] * shape[1] * 2)
    tensor = machine.tensor(Matrix(address, *shape, (shape[1], 1), "bfloat16"))
    return address, tensor.copy_(torch.randint(-2, 3, shape))


def test_a_program_that_uses_it_is_refused_on_all_ranks_where_one_has_none():
    spec = specs(2)["all_gather"]
    schedule = next(s for s in schedules(spec) if s.transport == "multimem")
    machine = Machine()
    drivers = [FakeDriver(machine, rank) for rank in range(2)]
    drivers[1].failing = "bind_multicast"
    with pytest.raises(BundleError, match=r"rank 1: .*bind_multicast"):
        Group(spec, schedule, machine=machine, drivers=drivers)
    assert machine.memory == {} == machine.aliases
