"""Bundles on a GPU that ranks share, or on one GPU each: rank processes, CUDA IPC, real binaries."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from deploy.fakes import kinds, one_schedule, result_of, schedules
from deploy.ranks import run_ranks

import tilescale as ts
from tilescale.codegen.compile import Compiler
from tilescale.tuner.export import export

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
RANK = Path(__file__).with_name("gpu_rank.py")


def specs(ranks):
    """ag_gemm and all_gather with several chunks and tiles a rank, ordinary and symmetric."""
    topology = ts.Topology.shared_gpu(ranks=ranks)
    for inputs in ("ordinary", "symmetric"):
        a = ts.Tensor((192 * ranks, 320), "bfloat16", ts.FullRow)
        for order in ("col", "row") if ranks == 2 else ("col",):
            b = ts.Tensor((320, 264 * ranks), "bfloat16", ts.FullCol, order=order)
            yield ts.matmul(a, b, out=ts.FullCol, topology=topology, inputs=inputs)
        yield ts.redistribute(a, to=ts.Replicate, topology=topology, inputs=inputs)


@pytest.fixture(scope="module", params=[2, 4])
def world(request):
    return request.param


@pytest.fixture(scope="module")
def bundle(world, tmp_path_factory):
    """Every kind of schedule, each under a name of its own."""
    results = {}
    for spec in specs(world):
        for schedule in kinds(spec):
            if spec.placement == "ordinary" or schedule.direction == "pull":
                name = f"{spec.op} {spec.placement} {spec.inputs[-1].order} {schedule.label}"
                results[name] = result_of(name, spec, schedule)
    spec = next(iter(specs(world)))
    assert len(schedules(spec)) > 20
    alternating = one_schedule(spec, overlap="chunked", transport="copy_engine", direction="push")
    results["fused"] = result_of("fused", spec, one_schedule(spec, overlap="fused", transport="peer_copy"))
    results["alternating"] = results["late"] = result_of("alternating", spec, alternating)
    with Compiler() as compiler:
        return export(results, tmp_path_factory.mktemp("bundle") / "bundle", compiler=compiler)


def run(case, bundle, tmp_path, world):
    return run_ranks([RANK, case, bundle, tmp_path / "init"], world, limit_s=200)


def test_every_kind_of_schedule_is_exact_over_consecutive_calls(bundle, tmp_path, world):
    for found in run("all_operations", bundle, tmp_path, world):
        assert found["wrong"] == []
        assert found["count"] > 50


def test_e5_calls_inside_a_capture(bundle, tmp_path, world):
    for found in run("graphs", bundle, tmp_path, world):
        assert found["fused"] is True
        assert found["alternating"] is True
        assert "were not tuned" in found["untuned"]
        assert found["alone"].startswith("a graph of this schedule holds an even number of calls")


def test_a_peer_that_never_comes_is_reported_and_survived(bundle, tmp_path, world):
    found = run("failures", bundle, tmp_path, world)
    assert found[0]["rank"] == 0
    assert "ranks meet within 0.3 s; got: rank 0 step" in found[0]["message"]
    assert found[0]["again"] is True
    assert all(one["renewed"] for one in found)


def test_a_compiled_call_gives_the_same_bits(bundle, tmp_path, world):
    assert all(found["right"] for found in run("compiled", bundle, tmp_path, world))
