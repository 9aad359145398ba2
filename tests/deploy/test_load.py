"""Loading in rank processes that meet over gloo, without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from deploy.ranks import run_ranks

from tilescale.deploy import bundle as bundles
from tilescale.deploy.load import load
from tilescale.errors import BundleError

RANK = Path(__file__).with_name("loading_rank.py")


def run(case, bundle, tmp_path, world=2):
    """What each rank of a case printed."""
    return run_ranks([RANK, case, bundle, tmp_path / f"init-{case}"], world)


def test_the_library_path_serves_every_shape_with_one_warning(exported, tmp_path):
    for found in run("library", exported, tmp_path):
        for right in ("gemm 128", "gemm 40", "weight", "gather", "dtensor"):
            assert found[right] is True, right
        assert "as many columns as b has rows: 64" in found["bad k"]
        assert "out has the shape" in found["bad out"]
        assert "no backward" in found["gradient"]
        assert found["warnings"] == ["gate_up runs as library calls", "gather runs as library calls"]
        assert found["schedule"] == "library"


def test_e6_a_compiled_model_has_no_graph_breaks_and_follows_the_bundle(exported, tmp_path):
    for found in run("compiled", exported, tmp_path):
        assert found["equal"] == [True, True]
        assert len(set(found["keys"])) == 2
        assert found["in place"] is True


def test_reasons_of_one_rank_are_told_by_all(bundle, tmp_path):
    for found in run("refused", bundle, tmp_path):
        assert "need a GPU" in found["no gpu"]
        assert "tilescale bundle check" in found["no gpu"]
        assert "CUDA 12.8 (driver 570.1) (on rank 1)" in found["old driver on rank 1"]
        assert "ranks [0, 1] on GPU gpu-0 of 100 SMs" in found["crowded"]
        assert "'ignore'" in found["mode"]
        assert "text/" in found["spoilt on rank 1"]
        assert "(on rank 1)" in found["spoilt on rank 1"]


def test_kernels_are_ready_and_the_untuned_refused(exported, tmp_path):
    schedule = bundles.read(exported).operation("gate_up").variants[0].schedule_digest
    for found in run("prepared", exported, tmp_path):
        assert found["names"] == ["gate_up", "gather", "plain"]
        assert found["shapes"] == [[[128, 64], [64, 64]], [[64, 64], [64, 64]]]
        assert (found["schedule"], found["reason"]) == (schedule, "")
        assert "(128, 64) (64, 64); (64, 64) (64, 64); got: local shapes (40, 64) (32, 64) were" in found["untuned"]
        assert 'on_mismatch="library"' in found["untuned"]
        assert "did you mean 'gate_up'" in found["unknown"]
        assert "a is on the GPU; got: cpu" in found["on cpu"]
        assert "takes 1 tensors: a; got: 2" in found["count"]
        assert found["enqueued"] == []
        assert found["meta"] == [[256, 64], "torch.bfloat16", "meta"]
        assert "were not tuned" in found["meta untuned"]
        assert found["memory"] == 0


def test_without_a_group_it_says_how_to_make_one(exported):
    with pytest.raises(BundleError, match="torchrun"):
        load(exported, on_mismatch="library")


def test_a_missing_file_is_named_before_anything_else(bundle):
    next((bundle / "cubin").iterdir()).unlink()
    with pytest.raises(BundleError, match=r"cubin/.*missing"):
        load(bundle, on_mismatch="library")
