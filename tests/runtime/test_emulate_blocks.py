"""Block matrices on a 2-D mesh, emulated: right, with exact integers, and conforming to what was proved."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import in_blocks

from tilescale.codegen.emit import emit
from tilescale.runtime.emulate import emulate
from tilescale.runtime.scaled import scaled
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import Space
from tilescale.spec.topology import Topology

FUSED = Schedule(overlap="fused", compute="generated", depth=2, num_comm_blocks=4, block_m=64, block_n=128, block_k=64,
                 num_stages=3, raster_group=8)
AFTER = replace(FUSED, overlap="none", depth=1, block_m=128, block_n=256)
RING = {"algorithm": "ring"}


@pytest.mark.parametrize("schedule", [FUSED, AFTER, replace(FUSED, transport="tma")], ids=lambda s: s.label)
def test_a_mesh_of_two_by_two(schedule: Schedule) -> None:
    found = emulate(in_blocks(4), schedule, seed=1)
    assert found.ok, found.report
    found = emulate(in_blocks(4, algorithm="cannon"), replace(schedule, **RING), seed=2)
    assert found.ok, found.report


def test_a_mesh_of_two_by_four() -> None:
    for seed, schedule in enumerate((FUSED, AFTER)):
        found = emulate(in_blocks(8, (72, 40, 72), dtype="float16"), schedule, seed=seed)
        assert found.ok, found.report


def test_a_mesh_of_three_by_three() -> None:
    """On nine ranks cannon passes blocks on: two hops along each axis."""
    on = Topology.shared_gpu(ranks=9)
    found = emulate(in_blocks(9, (72, 40, 72), "cannon", on=on), replace(FUSED, depth=1, num_comm_blocks=2, **RING))
    assert found.ok, found.report


SLOTTED = replace(FUSED, protocol="credit")


@pytest.mark.parametrize("schedule", [SLOTTED, replace(SLOTTED, transport="tma", block_m=128, block_n=256)],
                         ids=lambda s: s.label)
def test_panels_in_slots(schedule: Schedule) -> None:
    """Two by two all stay, two by four a slot is taken again and sums wait in memory; two tiles a block, and none."""
    for seed, spec in enumerate((in_blocks(4), in_blocks(4, algorithm="cannon"))):
        found = emulate(spec, replace(schedule, **(RING if seed else {})), seed=seed)
        assert found.ok, found.report
    for seed, on in enumerate((Topology.shared_gpu(ranks=8), Topology.named("8xH200-NVSwitch", 8))):
        found = emulate(in_blocks(8, (88, 152, 88), dtype="float16", on=on), schedule, seed=seed)
        assert found.ok, found.report


def test_panels_in_slots_of_a_mesh_of_three_by_three() -> None:
    on = Topology.shared_gpu(ranks=9)
    few = replace(SLOTTED, depth=1, num_comm_blocks=2)
    for algorithm, schedule in ((None, few), ("cannon", replace(few, **RING))):
        found = emulate(in_blocks(9, (72, 40, 72), algorithm, on=on), schedule, seed=3)
        assert found.ok, found.report


def test_large_ones_are_scaled_with_their_binaries_unchanged() -> None:
    spec = in_blocks(4, (4096, 4096, 4096))
    for schedule in Space(spec, {"num_stages": [4]}).schedules[::7]:
        small = scaled(spec, schedule)
        assert small.shrunk
        assert emit(small.spec, small.schedule, small.plan).binary_digest == emit(spec, schedule).binary_digest
