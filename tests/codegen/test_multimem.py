"""Kernels that use multicast addresses: they compile for Hopper and Blackwell, break no rule, and are emulated right."""

from __future__ import annotations

import dataclasses
from functools import partial

import pytest
from schedules.test_multimem import PULLED, PUSHED, kinds, on, specs
from support import gemm_rs, reduction

from tilescale import canon
from tilescale.codegen.cache import Binary
from tilescale.codegen.compile import Compiler, Source
from tilescale.codegen.emit import emit
from tilescale.codegen.program import EVERY_RANK, Program, Slot
from tilescale.codegen.rules import check_kernels
from tilescale.runtime.emulate import Conditions, emulate
from tilescale.spec.op import Spec
from tilescale.spec.topology import Topology

FURTHER = {
    "floats": partial(reduction, (97, 64), 3, dtype="float32", on=on(3)),
    "halves": partial(reduction, (97, 64), 3, dtype="float16", on=on(3)),
    "operands in place": partial(reduction, (96, 64), 3, inputs="symmetric", on=on(3)),
    "parts of the output's type": partial(
        gemm_rs, (136, 128, 192), 3, out="Replicate", partial_dtype="bfloat16", on=on(3)),
    "products of floats": partial(gemm_rs, (128, 128, 192), 3, out="Replicate", out_dtype="float32", on=on(3)),
}


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("op", [*PUSHED, *PULLED])
def test_every_kind_of_schedule_is_right_and_conforms(op: str, ranks: int) -> None:
    spec = specs(ranks)[op]
    for seed, schedule in enumerate(kinds(spec)):
        emulation = emulate(spec, schedule, seed + ranks)
        assert emulation.ok, emulation.report


@pytest.mark.parametrize("name", sorted(FURTHER))
def test_types_sizes_and_places_of_operands(name: str) -> None:
    spec = FURTHER[name]()
    for seed, schedule in enumerate(kinds(spec)):
        emulation = emulate(spec, schedule, seed, conditions=Conditions(calls=4, late_rank=seed % 3))
        assert emulation.ok, emulation.report


@pytest.mark.parametrize(("machine", "arch", "ops"), [
    ("8xH200-NVSwitch", "sm_90a", [*PUSHED, *PULLED]),
    ("8xB200-NVSwitch", "sm_100a", ["all_gather", "reduce_scatter", "all_reduce"]),
])
def test_kernels_compile_and_break_no_rule(machine: str, arch: str, ops: list[str], tmp_path) -> None:
    found = [kernel for op in ops for schedule in kinds(specs(4, Topology.named(machine, ranks=4))[op])
             for kernel in emit(specs(4, Topology.named(machine, ranks=4))[op], schedule).kernels]
    kernels = list(dict.fromkeys(found))
    assert {kernel.arch for kernel in kernels} == {arch}
    assert check_kernels(kernels) == ()
    with Compiler(1, cache_dir=tmp_path) as compiler:
        made = compiler.compile([Source(kernel.text, kernel.entry, kernel.arch) for kernel in kernels])
    for kernel, binary in zip(kernels, made, strict=True):
        assert isinstance(binary, Binary), f"{kernel.text}\n{binary}"
        assert "multimem = true" in kernel.text


def program_of(spec: Spec) -> Program:
    return emit(spec, kinds(spec)[0])


def test_programs_name_multicast_addresses_behind_all_others_and_survive_json() -> None:
    program = program_of(specs(3)["all_gather"])
    assert program.slots[-1] == Slot("gather", EVERY_RANK)
    assert [slot.rank for slot in program.slots].count(EVERY_RANK) == 1
    assert canon.loads(Program, canon.dumps(program)) == program


def test_texts_of_other_transports_are_what_they_were() -> None:
    spec = specs(3)["all_gather"]
    other = emit(spec, dataclasses.replace(kinds(spec)[0], transport="peer_copy"))
    assert not any("multimem" in kernel.text for kernel in other.kernels)
    assert not any(slot.rank == EVERY_RANK for slot in other.slots)
