"""Schedules through multicast addresses: where they are in a space, what rules them out, proofs, who may propose them."""

from __future__ import annotations

import dataclasses

import pytest
from support import ag_gemm, all_gather, exchange, gemm_rs, reduction

import tilescale as ts
from tilescale.costmodel.predict import predict
from tilescale.errors import RunnerError, ScheduleError
from tilescale.runtime.fake import FakeRunner
from tilescale.schedules.constraints import first_broken
from tilescale.schedules.lower import lower
from tilescale.schedules.plan import MultimemReduce, MultimemStore, Plan, Region, Step
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import Space, space
from tilescale.schedules.verify import verify
from tilescale.spec.op import Spec
from tilescale.spec.tensor import Tensor
from tilescale.spec.topology import Topology
from tilescale.spec.views import FullRow, Partial, Replicate

NARROW = {"transport": ["multimem"], "chunk_rows": [64], "num_comm_blocks": [2, 4], "depth": [1, 2], "block_m": [64],
          "block_n": [128], "num_stages": [3]}
PUSHED, PULLED = ("all_gather", "ag_gemm"), ("reduce_scatter", "all_reduce", "gemm_rs", "gemm_ar")


def on(ranks: int, multicast: bool = True) -> Topology:
    """GPUs behind a switch that does it, or not."""
    found = Topology.named("8xH200-NVSwitch", ranks=ranks)
    link = dataclasses.replace(found.link, multicast=multicast)
    levels = tuple(dataclasses.replace(one, link=link) if one.name == "node" else one for one in found.levels)
    return dataclasses.replace(found, levels=levels)


def specs(ranks: int, machine: Topology | None = None) -> dict[str, Spec]:
    where = machine or on(ranks)
    return {
        "all_gather": all_gather((64 * ranks, 128), ranks, on=where),
        "ag_gemm": ag_gemm((128 * ranks, 128 * ranks, 64), ranks, on=where),
        "reduce_scatter": reduction((64 * ranks, 64), ranks, to=FullRow, on=where),
        "all_reduce": reduction((96, 64), ranks, on=where),
        "gemm_rs": gemm_rs((128 * ranks, 128, 64 * ranks), ranks, on=where),
        "gemm_ar": gemm_rs((128, 128, 64 * ranks), ranks, out="Replicate", on=where),
    }


def kinds(spec: Spec) -> list[Schedule]:
    """The last schedule of every algorithm, overlap and way to multiply."""
    found = {(s.algorithm, s.overlap, s.compute): s for s in space(spec, NARROW).schedules}
    return list(found.values())


def through(plan: Plan) -> set[str]:
    """Kinds of steps that use a multicast address."""
    return {type(step).__name__ for launches in plan.ranks for launch in launches for step in launch.steps
            if isinstance(step, MultimemStore | MultimemReduce)}


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("op", [*PUSHED, *PULLED])
def test_every_kind_of_schedule_is_proved_and_predicted(op: str, ranks: int) -> None:
    spec = specs(ranks)[op]
    chosen = kinds(spec)
    assert {s.overlap for s in chosen} >= {"none", "fused"}
    for schedule in chosen:
        plan = lower(spec, schedule)
        proof = verify(plan, cache=None)
        assert proof.ok, f"{schedule.label}: {proof}"
        assert through(plan) == {"MultimemStore" if op in PUSHED else "MultimemReduce"}
        assert predict(spec, schedule).us > 0


def test_bytes_leave_a_rank_once_whatever_the_number_of_ranks() -> None:
    """What a rank sends by its plan: the cost model counts it, and a plain push sends it to every peer."""
    def stored(plan: Plan) -> int:
        return sum(step.src.size for launch in plan.ranks[0] for step in launch.steps if isinstance(step, MultimemStore))

    for ranks in (2, 8):
        spec = specs(ranks)["all_gather"]
        assert stored(lower(spec, kinds(spec)[0])) == 64 * 128 * 2


@pytest.mark.parametrize("op", [*PUSHED, *PULLED])
def test_case_b10_without_multicast_it_is_pruned_with_a_reason_and_the_others_stay(op: str) -> None:
    with_switch, without = (Space(specs(4, on(4, multicast))[op]) for multicast in (True, False))
    assert without.rejected["multicast"] == 1  # one point for all: nothing else about it needs a choice
    assert "multicast" not in with_switch.rejected
    assert {s.transport for s in with_switch} - {s.transport for s in without} == {"multimem"}
    assert [s for s in with_switch if s.transport != "multimem"] == list(without)
    broken = first_broken(without.spec, kinds(with_switch.spec)[0])
    assert broken is not None
    assert broken.name == "multicast"
    assert "the switch between the GPUs" in Space(without.spec, {"transport": ["multimem"]}).explain_empty()


@pytest.mark.parametrize(("spec", "constraint"), [
    (ts.redistribute(Tensor((96, 64), "bfloat16", Partial), Replicate, on(4), deterministic=True), "multicast_order"),
    (gemm_rs((256, 128, 256), 4, out_dtype="float32", partial_dtype="bfloat16", on=on(4)), "multicast_rounds_once"),
    (ts.matmul(Tensor((128, 256), "bfloat16", ts.FullCol), Tensor((256, 128), "bfloat16", FullRow), Replicate, on(4),
               then=("bias",)), "multicast_without_epilogues"),
    (exchange("columns", 4, on=on(4)), "multicast_moves"),
    (reduction((3, 5), 4, on=on(4)), "transport_alignment"),
], ids=lambda value: value.label if isinstance(value, Spec) else value)
def test_sums_without_an_order_or_with_a_second_rounding_are_ruled_out(spec: Spec, constraint: str) -> None:
    found = Space(spec, {"transport": ["multimem"]})
    assert found.feasible == 0
    assert found.rejected[constraint] > 0


def test_deterministic_gathers_may_use_it() -> None:
    tensor = Tensor((256, 64), "bfloat16", FullRow)
    assert kinds(ts.redistribute(tensor, Replicate, on(4), deterministic=True))


def test_the_other_direction_makes_no_sense() -> None:
    for op, direction in (("all_gather", "pull"), ("all_reduce", "push")):
        spec = specs(4)[op]
        with pytest.raises(ScheduleError, match=r"multimem pushes what all ranks receive, and pulls sums"):
            lower(spec, dataclasses.replace(kinds(spec)[0], direction=direction))


# -- the verifier ------------------------------------------------------------------------------------------------------
def changed(plan: Plan, edit: object) -> Plan:
    """The plan with `edit` of the first step of rank 0 that uses a multicast address."""
    launches = list(plan.ranks[0])
    for at, launch in enumerate(launches):
        for r, role in enumerate(launch.roles):
            for s, step in enumerate(role.steps):
                if isinstance(step, MultimemStore | MultimemReduce):
                    steps = (*role.steps[:s], edit(step), *role.steps[s + 1 :])
                    roles = (*launch.roles[:r], dataclasses.replace(role, steps=steps), *launch.roles[r + 1 :])
                    launches[at] = dataclasses.replace(launch, roles=roles)
                    return dataclasses.replace(plan, ranks=(tuple(launches), *plan.ranks[1:]))
    raise AssertionError("no such step")


def moved(region: Region, by: int) -> Region:
    return dataclasses.replace(region, offset=region.offset + by)


@pytest.mark.parametrize(("op", "edit", "rule"), [
    ("all_gather", lambda s: dataclasses.replace(s, others=s.others[:-1]), "multicast"),
    ("all_gather", lambda s: dataclasses.replace(s, others=(s.dst, *s.others[1:])), "multicast"),
    ("all_gather", lambda s: dataclasses.replace(s, others=(moved(s.others[0], 16), *s.others[1:])), "multicast"),
    ("all_gather", lambda s: dataclasses.replace(
        s, dst=moved(s.dst, 256), others=tuple(moved(o, 256) for o in s.others)), "data_flow"),
    ("reduce_scatter", lambda s: dataclasses.replace(s, srcs=s.srcs[:-1]), "multicast"),
    ("reduce_scatter", lambda s: dataclasses.replace(s, srcs=(moved(s.srcs[0], 16), *s.srcs[1:])), "multicast"),
    ("reduce_scatter", lambda s: dataclasses.replace(s, srcs=tuple(moved(source, -8192) for source in s.srcs)), "bounds"),
    ("reduce_scatter", lambda s: dataclasses.replace(s, out="float32"), "copy_size"),
])
def test_what_is_not_one_range_of_all_ranks_is_refused(op: str, edit: object, rule: str) -> None:
    spec = specs(3)[op]
    plan = lower(spec, next(s for s in kinds(spec) if s.overlap == "none"))
    proof = verify(changed(plan, edit), cache=None)
    assert not proof.ok
    assert proof.counterexample is not None
    assert proof.counterexample.rule == rule


def test_a_switch_reads_the_own_part_where_other_blocks_have_staged_it() -> None:
    """Without the wait for its own rank, the sum may read what its own blocks have not staged."""
    spec = specs(3)["reduce_scatter"]
    plan = lower(spec, next(s for s in kinds(spec) if s.overlap == "fused"))
    own = {(role.name, step.counter) for launch in plan.ranks[0] for role in launch.roles for step in role.steps
           if getattr(step, "rank", None) == 0}

    def kept(step: Step) -> bool:
        return not (type(step).__name__ == "Wait" and any(step.counter == counter for _, counter in own))

    launches = tuple(dataclasses.replace(launch, roles=tuple(
        dataclasses.replace(role, steps=tuple(filter(kept, role.steps))) for role in launch.roles))
        for launch in plan.ranks[0])
    proof = verify(dataclasses.replace(plan, ranks=(launches, *plan.ranks[1:])), cache=None)
    assert proof.counterexample is not None
    assert proof.counterexample.rule in ("race", "data_flow")


# -- who proposes it ---------------------------------------------------------------------------------------------------
def timer(spec: Spec, schedule: Schedule) -> float:
    return 1.0 if schedule.transport == "multimem" else 50.0 + len(schedule.label)


class WithMulticast(FakeRunner):
    multicast = True


def test_a_prior_alone_never_proposes_it_and_a_runner_that_has_it_may(tmp_path) -> None:
    spec = specs(2)["all_reduce"]
    narrow = {"num_comm_blocks": [2, 4], "chunk_rows": [64], "depth": [1]}
    for runner, transports in ((FakeRunner(timer, processes=False), {"peer_copy", "copy_engine", "tma"}),
                               (WithMulticast(timer, processes=False), {"multimem"})):
        with runner:
            result = ts.tune(spec, trials=12, runner=runner, space=narrow, seed=1, strategy="random",
                             db=f"sqlite:///{tmp_path}/{len(transports)}.db")
        assert result.best is not None
        assert result.best.transport in transports
    with FakeRunner(timer, processes=False) as runner, pytest.raises(RunnerError, match=r"runners that have multicast"):
        ts.tune(spec, trials=2, runner=runner, space={**narrow, "transport": ["multimem"]}, db=f"sqlite:///{tmp_path}/x.db")
