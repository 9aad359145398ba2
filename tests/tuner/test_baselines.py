"""baselines of the tuner: families of schedules that a user has today."""

from __future__ import annotations

from support import ag_gemm, gemm_rs, reduction, routed

from tilescale.schedules.schedule import Schedule
from tilescale.tuner.baselines import baselines_of


def test_families_are_told_by_knobs_alone() -> None:
    for spec in (ag_gemm(), gemm_rs(), gemm_rs(out="Replicate")):
        assert [each.name for each in baselines_of(spec)] == ["unfused", "chunked"]
    assert [each.name for each in baselines_of(reduction())] == ["copy_engine", "peer_copy"]
    assert [each.name for each in baselines_of(gemm_rs(out="Partial"))] == ["unfused"]  # nothing is cut into chunks
    for op in ("dispatch_gemm", "gemm_combine"):
        (unfused,) = baselines_of(routed(op))
        assert unfused.name == "unfused"
        assert unfused.holds(Schedule(overlap="none", compute="generated"))
        assert not unfused.holds(Schedule(overlap="fused", compute="generated"))
    (unfused, chunked) = baselines_of(gemm_rs())
    assert unfused.holds(Schedule(overlap="none", compute="library"))
    assert not unfused.holds(Schedule(overlap="none", compute="generated"))
    assert chunked.holds(Schedule(overlap="chunked", compute="library"))
