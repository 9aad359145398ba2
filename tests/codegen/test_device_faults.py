"""Faults planted in the device library: the emulator must find each, and find nothing without them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from support import ag_gemm, all_gather, exchange

from tilescale.codegen.host.build import INCLUDE
from tilescale.runtime.emulate import emulate
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec
from tilescale.spec.topology import Topology

TMA = Schedule(transport="tma", overlap="fused", compute="generated", chunk_rows=256, depth=2, num_comm_blocks=4)
GEMM = Schedule(overlap="fused", compute="generated", chunk_rows=256, depth=2, num_comm_blocks=4, block_m=64,
                block_n=128, block_k=64, num_stages=3, raster_group=8)

# name: (header, text there, text instead, what to run)
FAULTS: dict[str, tuple[str, str, str, tuple[Spec, Schedule]]] = {
    "signal after .read": ("copy.cuh", "bulk_wait<0>();", "bulk_wait_read<0>();", (all_gather(), TMA)),
    "signal without wait": ("copy.cuh", "bulk_wait<0>();", "", (all_gather(), TMA)),
    "tile reused before it was read": ("copy.cuh", "bulk_wait_read<1>();", "", (all_gather(), TMA)),
    "stage released before the product": (
        "gemm.cuh", "wg_wait<1>();\n      if (k > range.from) release_previous<C>(previous);",
        "if (k > range.from) release_previous<C>(&empty[ring.stage]);", (ag_gemm(), GEMM)),
    "stage loaded without waiting": (
        "gemm.cuh", "barrier_wait(call, of[0].step, &empty[ring.stage], ring.parity ^ 1u);", "", (ag_gemm(), GEMM)),
    "stage used without waiting": (
        "gemm.cuh", "barrier_wait(call, step, &full[ring.stage], ring.parity);\n    wg_fence();\n    multiply_stage<C>(acc",
        "wg_fence();\n    multiply_stage<C>(acc", (ag_gemm(), GEMM)),
    "signal before all threads have stored": ("copy.cuh", "if (!signalled) sync();", "", (
        ag_gemm(on=Topology.shared_gpu(ranks=4)), GEMM)),
    "wait of one thread only": ("copy.cuh", "      sync();\n      if constexpr (C::copy_tma)",
                                "      if constexpr (C::copy_tma)", (ag_gemm(), replace(GEMM, direction="pull"))),
    "expected bytes too few": ("gemm.cuh", "mb_expect(full, GemmLayout<C>::stage_bytes);",
                               "mb_expect(full, GemmLayout<C>::stage_bytes - 16);", (ag_gemm(), GEMM)),
    "stale epoch": ("comm.cuh", "store(&state->calls, call.calls + 1u);", "", (ag_gemm(), GEMM)),
    "wrong half of the buffer": ("comm.cuh", "((calls & 1u) ? args->stride[slot] : 0ull)", "0ull", (ag_gemm(), GEMM)),
    "share off by one unit": ("share.cuh", "const u64 each = most >> 32 ? most / gang : (u32)most / gang;",
                              "const u64 each = units / gang;",
                              (all_gather((4092, 3)), replace(TMA, transport="peer_copy"))),
    "neighbour's rows stored": ("gemm_store.cuh", "(int)(out.first + row)", "(int)(out.first + row + 8)",
                                (ag_gemm(), GEMM)),
    "staged results overwritten": ("gemm_store.cuh", "bulk_wait_read<C::store_buffers - 1>();", "", (ag_gemm(), GEMM)),
    "tile order of another segment": ("gemm.cuh", "gang - step.first_tile % gang", "gang", (
        ag_gemm(), replace(GEMM, block_m=128, chunk_rows=128))),
}
EXCHANGE = Schedule(overlap="fused", compute="generated", chunk_rows=64, depth=2, num_comm_blocks=4)
FAULTS |= {
    "a place in a box without its carry": ("strided.cuh", "step.index[j] + carry;", "step.index[j];", (
        exchange("sequence", 2, scale=2), replace(EXCHANGE, overlap="none", chunk_rows=0, depth=1, num_comm_blocks=2))),
    "a row that is not begun at its start": ("strided.cuh", "    at.column = 0;\n", "", (
        exchange("heads", 2), replace(EXCHANGE, transport="tma"))),
    "pitches of the other side": ("strided.cuh", "offset_at(at, loops.target_pitch, 16), piece", (
        "offset_at(at, loops.source_pitch, 16), piece"), (exchange("sequence", 2), replace(EXCHANGE, transport="tma"))),
    "the count of another loop": ("strided.cuh", "rows[j - skipped].value", "rows[0].value", (
        exchange("sequence", 2), EXCHANGE)),
}
HARMLESS = {"tile order of another segment": "which block computes a tile does not change what is computed"}


def library_with(tmp_path: Path, header: str, old: str, new: str) -> Path:
    folder = tmp_path / "include"
    shutil.copytree(INCLUDE, folder)
    path = folder / "tilescale" / header
    text = path.read_text()
    assert text.count(old) == 1, f"{header} no longer holds the place of this fault once: {old}"
    path.write_text(text.replace(old, new))
    return folder


@pytest.mark.parametrize("name", [name for name in FAULTS if name not in HARMLESS])
def test_planted_device_faults_are_found(name: str, tmp_path: Path) -> None:
    header, old, new, (spec, schedule) = FAULTS[name]
    folder = library_with(tmp_path, header, old, new)
    reports = []
    for seed, adversary in enumerate(("lazy", "random", "eager", "random", "lazy", "random")):
        emulation = emulate(spec, schedule, seed, adversary, include_dirs=[folder, folder / "tilescale"])
        if not emulation.ok:
            return
        reports.append(emulation.report)
    pytest.fail("not found by any adversary:\n" + "\n".join(reports))


@pytest.mark.parametrize("name", HARMLESS)
def test_changes_that_do_no_harm_raise_no_alarm(name: str, tmp_path: Path) -> None:
    header, old, new, (spec, schedule) = FAULTS[name]
    folder = library_with(tmp_path, header, old, new)
    for seed, adversary in enumerate(("lazy", "random", "eager")):
        emulation = emulate(spec, schedule, seed, adversary, include_dirs=[folder, folder / "tilescale"])
        assert emulation.ok, emulation.report
