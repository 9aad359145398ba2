"""baselines: which names an operation has, and the schedule behind `unfused`."""

from __future__ import annotations

import pytest
from support import ag_gemm, all_gather, gemm_rs, reduction, scaled

from tilescale.errors import RunnerError
from tilescale.runtime.baselines import (
    NAMES,
    SYMM_MEM,
    by_library,
    check_names,
    fastest_of,
    names_for,
    unfused_schedules,
)
from tilescale.runtime.gpu_baselines import MAKERS
from tilescale.schedules.space import space
from tilescale.spec.op import Spec
from tilescale.spec.result import kind_of
from tilescale.spec.topology import Topology
from tilescale.spec.views import FullRow

SHARED = Topology.shared_gpu(4)
REAL = Topology.named("8xH200-NVSwitch", ranks=4)


def test_names_are_those_that_make_sense() -> None:
    product = ("unfused", "compute_only")
    assert names_for(gemm_rs(on=SHARED)) == (*product, "torch.symm_mem", "torch.symm_mem.one_shot")
    assert names_for(gemm_rs(on=SHARED, out="Replicate")) == (
        *product, "torch.symm_mem.one_shot", "torch.symm_mem.two_shot")
    assert names_for(reduction(on=SHARED)) == ("unfused", "torch.symm_mem.one_shot", "torch.symm_mem.two_shot")
    assert names_for(ag_gemm(on=SHARED)) == (*product, "torch.symm_mem")
    assert names_for(gemm_rs(on=REAL)) == (*product, "nccl+cublas")
    assert names_for(gemm_rs()) == product  # a scale model
    for on in (SHARED, REAL):
        assert names_for(gemm_rs(on=on, out="Partial")) == ("compute_only",)
    bytes_ = {"dtype": "float8_e4m3fn", "order": "col"}  # no schedules with library products
    assert names_for(gemm_rs(on=SHARED, **bytes_)) == names_for(gemm_rs(**bytes_)) == ("compute_only",)
    assert names_for(gemm_rs(on=REAL, **bytes_)) == ("compute_only", "nccl+cublas")
    assert names_for(scaled(gemm_rs(on=SHARED, **bytes_), "rowcol")) == ("compute_only",)
    assert names_for(scaled(gemm_rs(on=SHARED, **bytes_), "block")) == ()
    for spec in (gemm_rs(on=SHARED), reduction(on=SHARED), ag_gemm(on=REAL)):
        check_names(spec, names_for(spec))
        assert set(names_for(spec)) <= set(NAMES)
    others = {"compute_only", "nccl+cublas", "unfused"}
    assert {name for names in SYMM_MEM.values() for name in names} | others == set(MAKERS)


def test_epilogues_are_compared_with_paths_that_apply_them() -> None:
    both, bias = ("unfused", "compute_only"), ("bias",)
    for on in (SHARED, REAL):
        assert names_for(ag_gemm(on=on, then=bias)) == names_for(gemm_rs(on=on, then=bias)) == both
        assert names_for(reduction(on=on, then=bias)) == ("unfused",)
    assert names_for(ag_gemm(then=bias)) == ("compute_only",)  # torch's copies are not charged to a scale model's links
    assert names_for(gemm_rs(out="Partial", then=("accumulate",))) == names_for(gemm_rs(then=bias)) == both
    assert by_library(ag_gemm(then=bias))
    assert not by_library(gemm_rs(then=bias))
    assert not by_library(ag_gemm())
    assert {each.compute for each in unfused_schedules(gemm_rs(then=bias))} == {"library"}
    with pytest.raises(RunnerError, match=r"does the same work, epilogues too.*compare with unfused, compute_only"):
        check_names(ag_gemm(on=SHARED, then=bias), ("torch.symm_mem",))


def test_a_name_that_another_operation_has_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(RunnerError, match=r"for gemm_ar: torch.symm_mem.one_shot, torch.symm_mem.two_shot; got: torch.s"):
        check_names(gemm_rs(on=SHARED, out="Replicate"), ("torch.symm_mem",))
    with pytest.raises(RunnerError, match="charged to the same links"):
        check_names(reduction(), ("torch.symm_mem.two_shot",))
    local = gemm_rs(on=SHARED, out="Partial")
    assert kind_of(local) == "none"
    with pytest.raises(RunnerError, match="for gemm: nothing"):
        check_names(local, ("torch.symm_mem",))


@pytest.mark.parametrize("spec", [ag_gemm(), all_gather()], ids=lambda spec: spec.op)
def test_unfused_is_copied_by_the_most_blocks_and_multiplied_by_the_library(spec: Spec) -> None:
    both = unfused_schedules(spec)
    assert [(each.algorithm, each.direction) for each in both] == [("direct", "pull"), ("direct", "push")]
    for found in both:
        assert (found.transport, found.overlap) == ("peer_copy", "none")
        assert found.compute == ("library" if spec.op == "ag_gemm" else "generated")
        most = max(s.num_comm_blocks for s in space(spec, {"overlap": ["none"], "direction": [found.direction]}))
        assert found.num_comm_blocks == most


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_unfused_is_every_plain_way_on_any_number_of_ranks(ranks: int) -> None:
    ways = [("one_shot", "pull"), ("one_shot", "push"), ("two_shot", "pull"), ("two_shot", "push")]
    for spec in (gemm_rs((512, 256, 512), ranks, out="Replicate"), reduction((512, 256), ranks)):
        assert [(each.algorithm, each.direction) for each in unfused_schedules(spec)] == ways
    sums = (gemm_rs((512, 256, 512), ranks), reduction((512, 256), ranks, to=FullRow))
    for spec in (ag_gemm((512, 512, 256), ranks), *sums):
        assert [(each.algorithm, each.direction) for each in unfused_schedules(spec)] == [
            ("direct", "pull"), ("direct", "push")]


def test_the_fastest_of_several_is_so_in_all_rounds_together() -> None:
    rounds = [{"a": ((1.0, 1.0), (5.0, 5.0)), "b": ((4.0, 4.0), (2.0, 2.0))},
              {"a": ((1.0,), (5.0,)), "b": ((9.0,), (2.0,))}]
    assert fastest_of(rounds, ["a", "b"]) == "b"  # of 5 and 4 us: the slowest rank's
    assert fastest_of(rounds[1:], ["a", "b"]) == "a"
