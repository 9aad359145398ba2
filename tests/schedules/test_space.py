from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from support import ag_gemm, all_gather

from tilescale import canon
from tilescale.codegen.emit import emit
from tilescale.errors import ScheduleError, SpecError
from tilescale.schedules.constraints import CONSTRAINTS, first_broken
from tilescale.schedules.knob import BY_NAME, KNOBS, canonical
from tilescale.schedules.lower import lower
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import space
from tilescale.spec.op import Spec, matmul, moe_dispatch
from tilescale.spec.tensor import Tensor
from tilescale.spec.topology import Topology
from tilescale.spec.views import FullCol, FullRow


@pytest.mark.parametrize("spec", [ag_gemm(), ag_gemm((512, 14336, 4096), 8), all_gather()], ids=lambda s: s.label)
def test_points_are_either_feasible_or_counted_once(spec: Spec) -> None:
    found = space(spec)
    assert found.size == found.feasible + sum(found.rejected.values())
    assert len(set(found)) == found.feasible > 100
    names = {constraint.name for constraint in CONSTRAINTS}
    assert set(found.rejected) <= names
    assert all(first_broken(spec, schedule) is None for schedule in list(found)[::97])


def test_every_transport_direction_overlap_and_compute_is_in_the_main_space() -> None:
    schedules = space(ag_gemm()).schedules
    for name in ("transport", "direction", "overlap", "compute", "depth", "chunk_rows", "chunk_order"):
        wanted = set(BY_NAME[name].domain) - {"multimem"}  # a scale model has no switch
        assert {getattr(s, name) for s in schedules} >= wanted, name
    assert not any(s.overlap == "fused" and s.compute == "library" for s in schedules)


def test_at_least_150_schedules_have_distinct_binaries_and_tables() -> None:
    spec = ag_gemm()
    sample = space(spec).schedules[::20]
    programs = {emit(spec, schedule).digest for schedule in sample}
    assert len(programs) == len(sample) >= 150


def test_canonical_schedules_are_fixed_points() -> None:
    spec = ag_gemm()
    for schedule in space(spec).schedules[::211]:
        assert canonical(spec, schedule) == schedule


def test_knobs_without_effect_fold() -> None:
    spec = ag_gemm()
    library = Schedule(compute="library", num_comm_blocks=8, block_m=128, num_stages=4, depth=4, chunk_rows=128)
    folded = canonical(spec, library)
    assert (folded.block_m, folded.num_stages, folded.depth, folded.chunk_rows) == (0, 0, 1, 0)


def test_neighbours_are_feasible_and_differ_in_one_declared_knob() -> None:
    spec = ag_gemm()
    found = space(spec)
    start = next(s for s in found if s.overlap == "fused" and s.depth == 2)
    neighbours = found.neighbours(start)
    assert neighbours
    for neighbour in neighbours:
        assert neighbour in found
        assert neighbour != start


def test_restriction_narrows_and_refuses_unknown_knobs_and_values() -> None:
    narrowed = space(ag_gemm(), {"transport": ["tma"], "overlap": ["fused"]})
    assert narrowed.feasible > 0
    assert {(s.transport, s.overlap) for s in narrowed} == {("tma", "fused")}
    with pytest.raises(ScheduleError, match="did you mean 'transport'"):
        space(ag_gemm(), {"transprt": ["tma"]})
    with pytest.raises(ScheduleError, match="transport is one of peer_copy, copy_engine, tma"):
        space(ag_gemm(), {"transport": ["nvlink"]})


def test_a_space_among_recorded_schedules_counts_the_others() -> None:
    whole = space(all_gather())
    kept = whole.schedules[::7]
    narrowed = whole.among(kept)
    assert narrowed.schedules == kept
    assert narrowed.rejected["not_recorded"] == whole.feasible - len(kept)
    assert narrowed.size == whole.size == narrowed.feasible + sum(narrowed.rejected.values())


@pytest.mark.parametrize(("spec", "constraint"), [
    (ag_gemm((4098, 10240, 8192)), "even_products"),
    (ag_gemm((512, 1021, 512)), "even_columns"),
    (ag_gemm((2**20, 2**20, 2**20)), "gpu_memory"),
    (all_gather((2**26,), 8), "chunk_count"),
    (ag_gemm(dtype="int8", out_dtype="int32"), "library_dtype"),
    (ag_gemm((4096, 10240, 8190)), "operand_alignment"),
    (ag_gemm(dtype="float32"), "wgmma_dtype"),
    (matmul(Tensor((4096, 8192), "bfloat16", FullRow), Tensor((8192, 10240), "bfloat16", FullCol), out=FullCol,
            topology=Topology.named("4xPCIe")), "peer_access"),
    (matmul(Tensor((4096, 8192), "bfloat16", FullRow), Tensor((8192, 10240), "bfloat16", FullCol), out=FullCol,
            topology=Topology.named("8xB200-NVSwitch")), "product_arch"),
    (matmul(Tensor((4096, 8192), "bfloat16", FullRow), Tensor((8192, 10240), "bfloat16", FullCol), out=FullCol,
            topology=Topology.named("4xA100-NVLink")), "transport_arch"),
])
def test_infeasible_points_are_counted_by_the_constraint_that_they_break(spec: Spec, constraint: str) -> None:
    found = space(spec)
    assert found.rejected[constraint] > 0
    if found.feasible == 0:
        assert constraint in found.explain_empty()


def test_uneven_columns_leave_nothing_and_say_why() -> None:
    found = space(ag_gemm((4096, 10241, 8192)))
    assert found.feasible == 0
    assert "every rank holds as many columns" in found.explain_empty()


def test_a_row_without_kernels_is_refused_with_a_remedy() -> None:
    spec = moe_dispatch(Tensor((4096, 8192), "bfloat16", FullRow, order="col"), 8, 2,
                        Topology.scale_model("8xH200-NVSwitch", ranks=4))
    assert spec.op == "moe_dispatch"
    with pytest.raises(SpecError, match="moe_dispatch has kernels"):
        space(spec)


ENUMERATE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from support import ag_gemm, all_gather
from tilescale.codegen.emit import emit
from tilescale.schedules.lower import lower
from tilescale.schedules.space import space
out = []
for spec in (ag_gemm((512, 14336, 4096), 4), all_gather((1024, 512), 2)):
    found = space(spec)
    out.append([spec.digest, found.rejected, [s.digest for s in found]])
    out.append([[lower(spec, s).digest, emit(spec, s).digest] for s in found.schedules[::60]])
print(json.dumps(out))
"""


def test_enumeration_emission_and_digests_are_equal_across_processes_and_hash_seeds() -> None:
    results = []
    for seed in ("0", "1", "4242"):
        run = subprocess.run([sys.executable, "-c", ENUMERATE, os.path.dirname(os.path.dirname(__file__))],
                             env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True)
        results.append(json.loads(run.stdout))
    assert results[0] == results[1] == results[2]


def test_schedules_survive_json() -> None:
    for schedule in space(all_gather()).schedules[::50]:
        assert canon.decode(Schedule, json.loads(canon.dumps(schedule))) == schedule
        assert Schedule.from_dict(schedule.as_dict()) == schedule
    with pytest.raises(ScheduleError, match="did you mean 'depth'"):
        Schedule.from_dict({"deptth": 2})


def test_a_knob_encodes_its_domain_in_order() -> None:
    for knob in KNOBS:
        codes = [knob.encode(value) for value in knob.domain]
        assert codes == sorted(codes)
        assert len(set(codes)) == len(codes)
        for value in knob.domain:
            assert value not in knob.neighbours(ag_gemm(), value)
            assert set(knob.neighbours(ag_gemm(), value)) <= set(knob.allowed(ag_gemm()))


def test_tiles_of_other_widths_are_there_where_they_fill_waves() -> None:
    def widths(spec: Spec) -> set[int]:
        return {s.block_n for s in space(spec) if s.compute == "generated"}

    assert 160 in widths(ag_gemm((512, 10240, 8192), 8))
    assert widths(ag_gemm((8192, 10240, 8192), 8)) == {128, 256}
    before = Topology.named("4xA100-NVLink", ranks=4)  # whose warps have tiles of fewer widths
    for shape in ((512, 10240, 8192), (512, 5120, 4096), (256, 7168, 1024)):
        spec = ag_gemm(shape, 4, on=before)
        tiles = {(s.block_m, s.block_n, s.num_stages): s for s in space(spec) if s.compute == "generated"}
        assert all(lower(spec, schedule) for schedule in tiles.values())
