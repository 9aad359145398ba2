from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support import ag_gemm, all_gather, contraction, in_blocks, local_gemm, reduction

from tilescale import canon
from tilescale.codegen import table
from tilescale.codegen.emit import emit
from tilescale.codegen.program import Program
from tilescale.errors import PlanError
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import space
from tilescale.spec.op import Spec

GEMM = Schedule(overlap="fused", compute="generated", chunk_rows=256, depth=2, num_comm_blocks=4, block_m=128,
                block_n=256, block_k=64, num_stages=4, raster_group=8)
CASES: dict[str, tuple[Spec, Schedule]] = {
    "fused_peer_copy": (ag_gemm(), GEMM),
    "fused_tma_row_float16": (ag_gemm(order="row", dtype="float16"), replace(GEMM, transport="tma", block_n=128)),
    "gemm_streamed": (local_gemm((512, 3696, 8192)), replace(
        GEMM, overlap="none", chunk_rows=0, depth=1, num_comm_blocks=0, stream_k=1)),
    "gemm_pingpong": (local_gemm((8192, 8192, 4096)), replace(
        GEMM, overlap="none", chunk_rows=0, depth=1, num_comm_blocks=0, block_n=128, consumers="pingpong")),
    "gemm_float32_out": (ag_gemm(out_dtype="float32"), replace(GEMM, overlap="none", chunk_rows=0, depth=1)),
    "panels": (in_blocks(4, (2048, 2048, 2048)), replace(GEMM, chunk_rows=0)),
    "panels_in_slots": (in_blocks(8, (2048, 2048, 2048)), replace(GEMM, chunk_rows=0, protocol="credit")),
    "segments_weights": (contraction("weights"), GEMM),
    "segments_gradients_float16": (contraction("gradients", dtype="float16"), replace(GEMM, transport="tma")),
    "copy_tma": (all_gather(), Schedule(transport="tma", overlap="fused", chunk_rows=256, depth=2, num_comm_blocks=4,
                                        compute="generated")),
    "copy_unaligned": (all_gather((4096, 3), dtype="bfloat16"),
                       Schedule(overlap="none", num_comm_blocks=4, compute="generated")),
    "gemm_bias_swiglu": (ag_gemm(then=("bias", "swiglu")), GEMM),
    "sum_in_packets": (reduction((4, 4096)), Schedule(
        algorithm="one_shot", num_comm_blocks=4, compute="generated", protocol="ll")),
    "sum_normalised": (reduction(then=("residual_rmsnorm",)), Schedule(
        algorithm="one_shot", overlap="none", num_comm_blocks=4, compute="generated")),
    "sum_normalised_and_kept": (reduction(then=("add_rmsnorm",)), Schedule(
        algorithm="two_shot", overlap="none", num_comm_blocks=4, compute="generated")),
}


@pytest.mark.parametrize("name", CASES)
def test_kernel_texts_are_as_committed(name: str, golden: Callable[[str, str], None]) -> None:
    program = emit(*CASES[name])
    golden(f"{name}.cu", "\n".join(f"// {kernel.entry} for {kernel.arch}\n{kernel.text}" for kernel in program.kernels))


def test_texts_hold_constants_and_an_entry_point_only() -> None:
    for spec, schedule in CASES.values():
        for kernel in emit(spec, schedule).kernels:
            body = kernel.text.split("struct Config {")[1].split("};")[0]
            for line in body.strip("\n").splitlines():
                patterns = (r"static constexpr (int|bool) \w+ = \w+;", r"using \w+ = ts::\w+;",
                            r"using Epilogue = ts::Then<.+>;")
                assert any(re.fullmatch("  " + pattern, line) for pattern in patterns), line
            assert kernel.text.rstrip().endswith(f"TILESCALE_KERNEL({kernel.entry}, Config)")


def test_many_schedules_share_few_binaries() -> None:
    spec = ag_gemm()
    kernels = {kernel.digest for schedule in space(spec).schedules[::10] for kernel in emit(spec, schedule).kernels}
    assert 10 < len(kernels) < 60


def test_a_program_survives_json() -> None:
    program = emit(*CASES["fused_peer_copy"])
    copy = canon.decode(Program, json.loads(canon.dumps(program)))
    assert copy == program
    assert copy.digest == program.digest


def test_binary_and_table_digests_are_separate() -> None:
    spec, schedule = CASES["fused_peer_copy"]
    one = emit(spec, schedule)
    reordered = emit(spec, replace(schedule, chunk_order="chunk_major"))
    retiled = emit(spec, replace(schedule, num_stages=3))
    assert reordered.binary_digest == one.binary_digest
    assert reordered.table_digest != one.table_digest
    assert retiled.binary_digest != one.binary_digest


def test_the_gangs_of_a_launch_come_with_its_arguments_where_they_are_two() -> None:
    spec = ag_gemm()
    (two,) = emit(spec, replace(GEMM, depth=1)).ranks[0]
    size = table.BLOCK.size
    rows = [bytes.fromhex(two.block_rows)[at : at + size] for at in range(0, two.blocks * size, size)]
    assert two.first_rows == rows[0] + rows[4]
    assert [table.BLOCK.unpack(row)[3:5] for row in (rows[0], rows[4])] == [(0, 4), (0, two.blocks - 4)]
    (three,) = emit(spec, GEMM).ranks[0]
    assert three.first_rows == b""


def test_a_launch_of_one_step_without_communication_brings_it_along() -> None:
    schedule = replace(GEMM, overlap="none", chunk_rows=0, depth=1, num_comm_blocks=0)
    (launch,) = emit(local_gemm((4096, 1280, 8192)), schedule).ranks[0]
    assert launch.early
    assert launch.first_rows == bytes.fromhex(launch.steps)


def test_too_many_ranks_for_a_table_are_refused() -> None:
    spec = all_gather(inputs="symmetric")
    levels = tuple(replace(level, units=128) if level.name == "node" else level for level in spec.topology.levels)
    big = replace(spec, topology=replace(spec.topology, kind="real", levels=levels, ranks=128))
    with pytest.raises(PlanError, match="at most 96 pointers and 72 ranks"):
        emit(big, Schedule(direction="pull", overlap="none", num_comm_blocks=1, compute="generated"))


LAYOUT = """
#define TS_HOST
#include <cstdio>
#include <cstddef>
#include "tilescale/abi.cuh"
using namespace ts;
int main() {
  std::printf("{\\"step\\": %zu, \\"block\\": %zu, \\"state\\": %zu, \\"arguments\\": %zu, "
              "\\"first_tile\\": %zu, \\"size\\": %zu, \\"gang\\": %zu, \\"wanted\\": %zu, \\"limit\\": %zu, \\"k\\": %zu, "
              "\\"only\\": %zu}",
              sizeof(Step), sizeof(Block), sizeof(State), sizeof(Arguments), offsetof(Step, first_tile),
              offsetof(Step, size), offsetof(Block, gang), offsetof(State, wanted), offsetof(Arguments, time_limit_ns),
              offsetof(Arguments, k), offsetof(Arguments, only));
}
"""


def test_packed_tables_have_the_layout_of_the_device_library(tmp_path: Path) -> None:
    include = Path(table.__file__).parent / "include"
    (tmp_path / "layout.cpp").write_text(LAYOUT)
    subprocess.run(["g++", "-std=c++17", f"-I{include}", str(tmp_path / "layout.cpp"), "-o", str(tmp_path / "layout")],
                   check=True)
    layout = json.loads(subprocess.run([tmp_path / "layout"], capture_output=True, text=True, check=True).stdout)
    assert layout == {
        "step": table.STEP.size, "block": table.BLOCK.size, "state": table.STATE.size,
        "arguments": table.ARGUMENTS.size, "first_tile": 56, "size": 48, "gang": 16, "wanted": 24,
        "limit": 8 * (2 * table.MAX_SLOTS + table.MAX_RANKS + 3), "k": table.ARGUMENTS.size - table.STEP.size - 12,
        "only": table.ARGUMENTS.size - table.STEP.size}
    row = table.StepRow(table.KIND_GEMM, 7, size=3, first_tile=11).pack()
    assert int.from_bytes(row[48:56], "little") == 3
    assert int.from_bytes(row[56:60], "little") == 11
