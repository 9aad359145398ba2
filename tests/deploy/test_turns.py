"""Operations on overlapping groups of ranks, on fake devices that run argument bytes, and the order of their calls."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from deploy.fake_device import FakeDriver, Machine
from deploy.fakes import Group, ag_gemm, all_gather, one_schedule

from tilescale.deploy.driver import Matrix
from tilescale.deploy.turns import Turns, turns_of

FUSED = {"overlap": "fused", "transport": "peer_copy", "direction": "push"}


@dataclass
class Subset:
    """An all_gather or ag_gemm of some ranks of a job, in their order; `call` enqueues one on each, on a stream."""

    group: Group
    ranks: tuple[int, ...]

    def call(self, stream: int, seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        spec, machine = self.group.spec, self.group.machine
        chance = torch.Generator().manual_seed(seed)
        made = [[self._place(machine, tensor, rank, chance) for tensor in (*spec.inputs, spec.output)]
                for rank in range(spec.world)]
        whole = torch.cat([operands[0][1] for operands in made]).float()
        pairs = []
        for operation, operands in zip(self.group.ranks, made, strict=True):
            names = ("a", "b", "out") if len(spec.inputs) == 2 else ("a", "out")
            operation({name: address for name, (address, _) in zip(names, operands, strict=True)}, stream)
            wanted = whole if len(spec.inputs) == 1 else whole @ operands[1][1].float()
            pairs.append((operands[-1][1], wanted))
        return pairs

    def _place(self, machine: Machine, declared: object, rank: int, chance: torch.Generator) -> tuple[int, torch.Tensor]:
        rows, columns = declared.local_shape(rank, self.group.spec.world)
        address = machine.allocate(rows * columns * declared.itemsize)
        strides = (columns, 1) if declared.order == "row" else (1, rows)
        tensor = machine.tensor(Matrix(address, rows, columns, strides, declared.dtype))
        return address, tensor.copy_(torch.randint(-2, 3, (rows, columns), generator=chance))


class Job:
    """`world` devices, each with its turns, on which operations of subsets are prepared."""

    def __init__(self, world: int, seed: int = 0) -> None:
        self.machine = Machine(seed)
        self.drivers = [FakeDriver(self.machine, rank) for rank in range(world)]
        self.turns = [Turns() for _ in range(world)]

    def subset(self, *ranks: int, make: object = all_gather) -> Subset:
        spec = make(len(ranks), rows=16) if make is all_gather else make(len(ranks))
        group = Group(spec, one_schedule(spec, **(FUSED if make is not all_gather else {"overlap": "none"})),
                      machine=self.machine, drivers=[self.drivers[rank] for rank in ranks],
                      turns=[self.turns[rank] for rank in ranks])
        return Subset(group, ranks)


@pytest.mark.parametrize("make", [all_gather, ag_gemm], ids=lambda make: make.__name__)
@pytest.mark.parametrize("sets", [((0, 1, 2), (0, 1, 2, 3)), ((0, 1), (1, 2)), ((2, 0, 1), (3, 1), (1, 2, 3, 0))])
def test_case_b7_groups_that_overlap_are_right_in_one_order(sets: tuple[tuple[int, ...], ...], make: object) -> None:
    for seed in range(3):
        job = Job(4, seed)
        subsets = [job.subset(*ranks, make=make) for ranks in sets]
        pending = [pair for number in range(3) for stream, subset in enumerate(subsets)
                   for pair in subset.call(7 + stream, 10 * number + stream)]
        job.machine.run()
        for out, wanted in pending:
            assert torch.equal(out.float(), wanted)
        for stream, subset in enumerate(subsets):
            subset.group.all(lambda operation, stream=stream: operation.check(7 + stream))
        for subset in subsets:
            subset.group.all(lambda operation: operation.close())
        assert job.machine.aliases == {}


def test_case_b7_calls_of_one_device_run_one_after_the_other_on_whatever_streams() -> None:
    """Rank 1 is in both groups: the kernels of its second call start when those of its first have ended."""
    job = Job(3, 5)
    first, second = job.subset(0, 1), job.subset(1, 2)
    first.call(7, 0)
    second.call(8, 1)
    job.machine.run()
    launched = [stream for rank, stream, what, *_ in job.machine.log if rank == 1 and what == "launch"]
    assert launched == sorted(launched)
    assert set(launched) == {7, 8}


def test_a_closed_operation_holds_nobody_up() -> None:
    job = Job(3)
    first, second = job.subset(0, 1), job.subset(1, 2)
    first.call(7, 0)
    job.machine.run()
    first.group.all(lambda operation: operation.close())
    ((out, wanted), _) = second.call(8, 1)  # waits for no event of the other, which is gone
    job.machine.run()
    assert torch.equal(out.float(), wanted)


def test_bundles_of_one_process_share_the_turns_of_a_device() -> None:
    assert turns_of("gpu-a") is turns_of("gpu-a")
    assert turns_of("gpu-a") is not turns_of("gpu-b")
