"""Cases that users of overlapped kernels ran into, run without a GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from families import FUSED, SCHEDULES
from support import ag_gemm, all_gather, gemm_rs, reduction

from tilescale.codegen.emit import emit
from tilescale.errors import EmulationError, TopologyError
from tilescale.runtime import replay_file
from tilescale.runtime.emulate import Conditions, Emulation, Run, emulate
from tilescale.runtime.emulator import run_isolated
from tilescale.runtime.scaled import scaled
from tilescale.schedules.lower import lower
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import space
from tilescale.schedules.verify import verify
from tilescale.spec.op import Spec, matmul
from tilescale.spec.tensor import Tensor
from tilescale.spec.topology import Topology
from tilescale.spec.views import FullCol, FullRow

SOME = ("fused peer_copy push", "fused tma pull symmetric", "fused copy engine push", "library pull symmetric", "copy push",
        "copy tma pull", "copy pull symmetric")


def one_of_each(spec: Spec, **knobs: object) -> list[Schedule]:
    """The schedule with the smallest knobs of every algorithm, transport, direction, overlap and way to multiply."""
    found: dict[tuple[str, ...], Schedule] = {}
    for s in space(spec).schedules:
        if all(getattr(s, name) == value for name, value in knobs.items()):
            found.setdefault((s.algorithm, s.transport, s.direction, s.overlap, s.compute), s)
    return list(found.values())


# -- A2: decode sizes --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("out", ["FullRow", "Replicate"])
@pytest.mark.parametrize("rows", [1, 17])
def test_a2_few_rows_on_eight_ranks_are_right_and_padding_never_leaks(rows: int, out: str) -> None:
    spec = gemm_rs((rows, 136, 72 * 8), 8, out=out)
    for seed, schedule in enumerate(one_of_each(spec, transport="peer_copy", compute="generated")):
        emulation = emulate(spec, schedule, seed)
        assert emulation.ok, emulation.report


# -- A3: contractions that are no multiple of a tile -------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("k", [20, 24, 32, 192, 3696])
def test_a3_local_contractions_are_right_or_left_to_the_library(k: int, dtype: str) -> None:
    spec = gemm_rs((16, 64, 2 * k), 2, dtype=dtype)
    generated = space(spec, {"compute": ["generated"]})
    assert (generated.feasible > 0) == (k % 8 == 0)
    if not generated.feasible:
        assert "rows of both operands are multiples of 16 bytes" in generated.explain_empty()
    for compute in ("generated", "library"):
        for schedule in one_of_each(spec, compute=compute, overlap="none", transport="peer_copy"):
            emulation = emulate(spec, schedule, k)
            assert emulation.ok, emulation.report


# -- A4: more than 2^31 elements ---------------------------------------------------------------------------------------
def test_offsets_beyond_2_31_elements_are_exact() -> None:
    spec = all_gather((38000 * 8, 7168), 8)
    schedule = Schedule(overlap="fused", compute="generated", chunk_rows=1024, depth=2, num_comm_blocks=4)
    plan = lower(spec, schedule)
    assert verify(plan, cache=None).ok
    out = plan.buffer("out").size
    assert out == 2_179_072_000 * 2 > 2**32
    assert emit(spec, schedule, plan).workspace_bytes > 2**32
    written = [step.dst.end for _, _, _, step in plan.steps_of(0) if hasattr(step, "dst") and step.dst.buffer == "out"]
    assert max(written) == out


def test_sizes_that_an_index_cannot_hold_are_pruned_with_that_reason() -> None:
    tall = Tensor((2**31, 8), "bfloat16", FullRow)  # so narrow that it fits the memory
    spec = matmul(tall, Tensor((8, 64), "bfloat16", FullCol, "col"), FullCol, Topology.named("8xH200-NVSwitch"))
    found = space(spec, {"compute": ["generated"], "chunk_rows": [1024], "transport": ["tma"]})
    assert found.feasible == 0
    assert found.rejected["index_range"] > 0


# -- B4: an input overwritten at once, a rank far behind ---------------------------------------------------------------
@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("late", [0, 2])
def test_inputs_spoiled_at_once_while_a_rank_is_late(name: str, late: int) -> None:
    emulation = emulate(*SCHEDULES[name], seed=late, adversary="lazy", conditions=Conditions(late_rank=late))
    assert emulation.ok, emulation.report


def test_eight_ranks_with_the_last_one_late() -> None:
    spec, schedule = ag_gemm((64 * 8, 128 * 8, 64), 8), replace(FUSED, num_comm_blocks=2)
    emulation = emulate(spec, schedule, 1, "random", conditions=Conditions(late_rank=7))
    assert emulation.ok, emulation.report


@pytest.mark.parametrize(("to", "late"), [("Replicate", 7), ("FullRow", 0)])
def test_b4_sums_of_inputs_that_are_spoiled_at_once_while_a_rank_is_late(to: str, late: int) -> None:
    spec = reduction((72, 24), 8, to=to)
    for seed, schedule in enumerate(one_of_each(spec, transport="peer_copy")):
        emulation = emulate(spec, schedule, seed, conditions=Conditions(calls=6, late_rank=late))
        assert emulation.ok, emulation.report


# -- B5: counters wrap -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("first", [2**31 - 2, 2**32 - 2])
@pytest.mark.parametrize("name", SOME)
def test_eight_calls_across_the_wrap(name: str, first: int) -> None:
    emulation = emulate(*SCHEDULES[name], seed=1, conditions=Conditions(calls=8, first_call=first))
    assert emulation.ok, emulation.report


# -- B6: a workspace that was made for another schedule (tests/deploy/test_launch.py: every operation has its own) -------
class Cramped(Run):
    """A run in the counters of a coarser schedule, with a canary behind them."""

    def _memories(self, rank: int) -> dict[str, object]:  # type: ignore[override]
        found = super()._memories(rank)
        found[".counters"] = self.machine.register_memory(rank, "small", 8, kind="counters", data=bytes(8))
        found[".canary"] = self.machine.register_memory(rank, "canary", 64, data=b"\xc5" * 64)
        return dict(found)


def test_counters_of_another_schedule_are_an_error_and_the_canary_is_intact() -> None:
    spec, schedule = SCHEDULES["fused peer_copy push"]
    run = Cramped(scaled(spec, schedule), 0, "lazy", ())
    (report,) = run_isolated([run.job])
    assert report.fault is not None
    assert report.fault.kind == "out_of_bounds"
    assert "small of rank" in str(report.fault)
    assert not any(write.buffer == "canary" for step in report.log for write in step.writes)


# -- B8: worlds of 2, 3 and 6 on a host of 8 ---------------------------------------------------------------------------
@pytest.mark.parametrize("ranks", [2, 3, 6])
def test_any_world_up_to_the_host_works(ranks: int) -> None:
    topology = Topology.named("8xH200-NVSwitch", ranks)
    spec = ag_gemm((64 * ranks, 128 * ranks, 64), ranks, on=topology)
    for direction in ("push", "pull"):
        schedule = replace(FUSED, direction=direction, num_comm_blocks=2)
        proof = verify(lower(spec, schedule), cache=None)
        assert proof.ok, str(proof)
        emulation = emulate(spec, schedule, seed=ranks)
        assert emulation.ok, emulation.report


def test_a_world_larger_than_the_host_names_the_allowed_ones() -> None:
    with pytest.raises(TopologyError, match="allowed worlds: 1, 2, 3, 4, 5, 6, 7, 8"):
        Topology.named("8xH200-NVSwitch", 9)


# -- replay files ------------------------------------------------------------------------------------------------------
def test_a_replay_file_makes_the_same_run_again(tmp_path: Path) -> None:
    spec, schedule = SCHEDULES["copy push"]
    conditions = Conditions(first_call=5, late_rank=1)
    first = emulate(spec, schedule, 7, "random", conditions=conditions)
    path = replay_file.write(tmp_path, spec, schedule, first, conditions)
    assert replay_file.write(tmp_path, spec, schedule, first, conditions) == path
    again, changed = replay_file.run(replay_file.read(path))
    assert (again, changed) == (first, False)


@pytest.mark.parametrize(("change", "says"), [
    ({"calls": 0}, r"calls of a run is an integer from 1 to 100; got: 0; for example calls=3"),
    ({"calls": 10**9}, r"calls of a run is an integer from 1 to 100; got: 1000000000"),
    ({"first_call": -1}, r"first_call of a run is an integer from 0 to 4294967295; got: -1"),
    ({"first_call": 2**32}, r"first_call of a run .*got: 4294967296; epochs wrap"),
    ({"late_rank": 64}, r"late_rank of a run is an integer from -1 to \d; got: 64; a rank of all_gather .*, or -1"),
    ({"late_rank": -2}, r"late_rank of a run .*got: -2"),
], ids=str)
def test_conditions_that_no_run_has_are_refused(tmp_path: Path, change: dict[str, int], says: str) -> None:
    spec, schedule = SCHEDULES["copy push"]
    conditions = replace(Conditions(), **change)
    with pytest.raises(EmulationError, match=f"^{says}"):
        emulate(spec, schedule, conditions=conditions)
    path = replay_file.write(tmp_path, spec, schedule, Emulation(False, "", "", "lazy", 1, 1), conditions)
    with pytest.raises(EmulationError, match=f"^replay file {path}: {says}"):
        replay_file.read(path)


def test_what_is_no_replay_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(EmulationError, match="is a replay file"):
        replay_file.read(tmp_path / "x.json")
    with pytest.raises(EmulationError, match="can be read"):
        replay_file.read(tmp_path / "y.json")
