"""tilescale.runtime.gpu_rank: a rank checks, records and times programs, on the fake machine."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import torch
from deploy.fakes import ag_gemm, all_gather, images, kinds, one_schedule
from runtime import gpu_fakes
from runtime.gpu_fakes import TIME_US, Ranks
from support import gemm_rs, reduction

from tilescale.codegen.emit import emit
from tilescale.codegen.program import Program
from tilescale.codegen.table import KIND_COPY, STEP
from tilescale.deploy.launch import OperationFailed
from tilescale.runtime import gpu_baselines, gpu_contestant
from tilescale.runtime.gpu_check import Workload
from tilescale.runtime.gpu_contestant import Recording
from tilescale.runtime.gpu_job import Contestant, Race, encode
from tilescale.runtime.rank import RankReport
from tilescale.runtime.sampling import Bounds
from tilescale.spec.op import Spec

FEW = Bounds(minimum=2, maximum=4, batch=2, warmup=1)


@pytest.fixture(scope="module")
def ranks() -> Ranks:
    found = Ranks(2)
    found.facts()
    return found


def race(spec: Spec, programs: dict[str, Program | None], rounds: int = 1, bounds: Bounds = FEW) -> tuple[Any, bytes, str]:
    contestants = tuple(Contestant(name, program) for name, program in programs.items())
    binaries = {d: b for program in programs.values() if program for d, b in images(program).items()}
    asked = Race(spec, contestants, rounds, bounds)
    return (*encode(asked, binaries), asked.digest)


def measure(ranks: Ranks, spec: Spec, program: Program) -> list[RankReport]:
    return ranks.run(*race(spec, {"it": program}))


def statuses(reports: list[RankReport]) -> set[str]:
    return {report.status for report in reports}


def test_facts_say_who_a_rank_is_and_that_blocks_are_resident() -> None:
    facts = Ranks(2).facts()
    assert [fact["uuid"] for fact in facts] == ["gpu-0", "gpu-0"]
    assert [(fact["sms"], fact["absent"], fact["blocks_per_sm"]) for fact in facts] == [(64, 0, 1)] * 2


def test_multicast_is_tried_where_it_is_asked_for_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [fact.get("multicast", "") for fact in Ranks(2).facts()] == ["", ""]
    monkeypatch.setitem(gpu_fakes.SETTINGS, "multicast", True)
    ranks = Ranks(2)
    assert [fact["multicast"] for fact in ranks.facts()] == ["works", "works"]
    assert ranks.machine.multicast == {}
    ranks = Ranks(2)
    ranks.drivers[1].failing = "bind_multicast"
    assert all("rank 1: a CUDA driver call succeeds; got: bind_multicast" in fact["multicast"] for fact in ranks.facts())


def test_a_race_before_the_facts_is_a_failure() -> None:
    spec = ag_gemm()
    assert statuses(measure(Ranks(2), spec, emit(spec, one_schedule(spec)))) == {"launch_error"}


SUMS = [gemm_rs((160, 64, 128), 2), gemm_rs((161, 64, 128), 2, order="col", out_dtype="float32"),
        gemm_rs((1, 64, 128), 2), gemm_rs((160, 64, 128), 2, out="Replicate", partial_dtype="bfloat16"),
        reduction((160, 64), 2), reduction((3, 5), 2), reduction((160, 64), 2, to="FullRow"),
        reduction((1, 64), 2, to="FullRow", dtype="float16"), reduction((160, 64), 2, inputs="symmetric")]


@pytest.mark.parametrize("spec", [ag_gemm(), all_gather(), ag_gemm(order="row", out_dtype="float32"),
                                  ag_gemm(inputs="symmetric"), all_gather(inputs="symmetric"), *SUMS],
                         ids=lambda spec: f"{spec.label} {spec.output.view.label} {spec.output.dtype} {spec.placement}")
def test_every_kind_of_schedule_is_right_and_timed(ranks: Ranks, spec: Spec) -> None:
    for schedule in kinds(spec):
        reports = measure(ranks, spec, emit(spec, schedule))
        assert statuses(reports) == {"ok"}, (schedule.label, reports)
        for rank, report in enumerate(reports):
            assert set(report.samples_us) == {TIME_US + rank / 2}  # a graph holds two calls
            assert len(report.samples_us) == 2  # no noise: the fewest are enough


def test_nothing_stays_behind_a_candidate(ranks: Ranks) -> None:
    spec = ag_gemm()
    schedule = one_schedule(spec, overlap="chunked", compute="generated")
    measure(ranks, spec, emit(spec, schedule))
    before = (len(ranks.machine.memory), len(ranks.machine.aliases), [len(d.streams) for d in ranks.drivers],
              [len(d.modules) for d in ranks.drivers])
    measure(ranks, spec, emit(spec, schedule))
    after = (len(ranks.machine.memory), len(ranks.machine.aliases), [len(d.streams) for d in ranks.drivers],
             [len(d.modules) for d in ranks.drivers])
    assert before == after
    assert [driver._graphs for driver in ranks.drivers] == [{}, {}]


def edited(program: Program) -> Program:
    """Rank 0's first copy moves half of its bytes."""
    launch = next(each for each in program.ranks[0] if each.steps)
    rows = bytearray.fromhex(launch.steps)
    for start in range(0, len(rows), STEP.size):
        row = list(STEP.unpack_from(rows, start))
        if row[0] == KIND_COPY:
            row[10] //= 2
            STEP.pack_into(rows, start, *row)
            break
    launches = [dataclasses.replace(each, steps=rows.hex()) if each is launch else each for each in program.ranks[0]]
    return dataclasses.replace(program, ranks=(tuple(launches), *program.ranks[1:]))


@pytest.mark.parametrize("spec", [ag_gemm(), all_gather()], ids=["ag_gemm", "all_gather"])
def test_a_wrong_program_is_never_timed(spec: Spec) -> None:
    ranks = Ranks(2, limit_s=3.0)
    ranks.facts()
    replays = [driver.replays for driver in ranks.drivers]
    reports = measure(ranks, spec, edited(emit(spec, one_schedule(spec, transport="peer_copy", overlap="fused"))))
    wrong = [report for report in reports if report.status == "wrong_result"]
    assert wrong
    assert "call 0 on integers: element (" in wrong[0].message
    assert all(report.condemn and not report.samples_us for report in wrong)
    assert [driver.replays for driver in ranks.drivers] == replays


def test_a_wait_that_ends_at_its_limit_is_a_timeout_with_its_record(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: object) -> None:
        raise OperationFailed("ranks meet within 2 s", "rank 1 step 3: counter 0 reached 1, wanted 2")

    monkeypatch.setattr(gpu_contestant.ProgramContestant, "verify", fail)
    spec = ag_gemm()
    reports = measure(ranks, spec, emit(spec, one_schedule(spec)))
    assert statuses(reports) == {"timeout"}
    assert "drained: ranks meet" in reports[0].message
    assert "step 3: counter 0" in reports[0].message


def test_a_launch_that_does_not_fit_is_refused_on_all_ranks_and_leaves_the_group_usable() -> None:
    ranks, spec = Ranks(2), all_gather()
    ranks.facts()
    ranks.drivers[1].fits = 0
    program = emit(spec, one_schedule(spec, transport="peer_copy"))
    reports = measure(ranks, spec, program)
    assert statuses(reports) == {"launch_error"}
    assert all("rank 1" in report.message and not report.condemn for report in reports)
    ranks.drivers[1].fits = 1
    assert statuses(measure(ranks, spec, program)) == {"ok"}


def test_a_race_takes_turns_and_leaves_out_what_cannot_run(ranks: Ranks) -> None:
    spec = all_gather()
    first, second = (emit(spec, schedule) for schedule in kinds(spec)[:2])
    bounds = Bounds(minimum=3, warmup=1)
    reports = ranks.run(*race(spec, {"a": first, "b": second, "compute_only": None, "nonsense": None}, 2, bounds))
    assert statuses(reports) == {"ok"}
    said = json.loads(reports[1].message)
    assert [list(each) for each in said["rounds"]] == [["a", "b"], ["b", "a"]]
    assert all(len(samples) == 3 for each in said["rounds"] for samples in each.values())
    assert "multiply" in said["failed"]["compute_only"]
    assert "known" in said["failed"]["nonsense"]


def test_outputs_of_one_call_do_not_pass_for_those_of_another(ranks: Ranks) -> None:
    spec = ag_gemm()
    measure(ranks, spec, emit(spec, one_schedule(spec)))
    work = ranks.workers[0]._work[spec.digest]
    outs = [data.out for data in work.calls]
    assert not any(torch.equal(outs[i], outs[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


class Rounds:
    """A library path that leaves rounder numbers in the outputs than a program may."""

    name = "compute_only"

    def __init__(self, work: Workload) -> None:
        self._work = work

    def verify(self) -> None:
        pass

    def record(self, calls: int) -> Recording:
        return Recording(lambda: [data.out.zero_() for data in self._work.calls], calls, lambda: None)

    def conclude(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_a_program_is_not_blamed_for_what_a_library_wrote_last(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = all_gather()
    monkeypatch.setattr(gpu_baselines, "make", lambda name, rank, work, meet: Rounds(work))
    programs = {"it": emit(spec, kinds(spec)[0]), "compute_only": None}
    reports = ranks.run(*race(spec, programs))
    assert statuses(reports) == {"ok"}
    assert list(json.loads(reports[0].message)["rounds"][0]) == ["it", "compute_only"]
