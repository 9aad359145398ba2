"""Library calls in the place of kernels: every operation, in rank processes that meet over gloo."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from deploy.ranks import run_ranks
from support import reduction

import tilescale as ts
from tilescale.deploy.library import Unfused
from tilescale.errors import BundleError

RANK = Path(__file__).with_name("library_rank.py")


def run(case, tmp_path, world=3):
    """What each rank of a case printed."""
    return run_ranks([RANK, case, tmp_path / f"init-{case}"], world)


def test_every_operation_is_right_rounded_once_and_leaves_its_inputs(tmp_path):
    for found in run("right", tmp_path):
        assert len(found) == 40
        assert {name: values for name, values in found.items() if values != [True] * 4} == {}


def test_calls_with_several_outputs_are_compiled_whole(tmp_path):
    for found in run("compiled", tmp_path, world=2):
        assert found == [True] * 6


def test_a6_strided_inputs_give_what_contiguous_copies_give(tmp_path):
    for found in run("strided", tmp_path, world=2):
        assert found == dict.fromkeys(found, True)
        assert len(found) == 4


def test_dtensors_come_back_as_declared(tmp_path):
    for found in run("placed", tmp_path):
        assert found == dict.fromkeys(found, True)
        assert len(found) == 7


@pytest.mark.parametrize("rank", [0, 2, 3])
def test_shapes_of_a_scatter_are_those_of_the_rank_for_any_size(monkeypatch, rank):
    monkeypatch.setattr(torch.distributed, "get_rank", lambda group: rank)
    library = Unfused(torch, reduction((4, 9), 4, to=ts.FullCol), None)
    for columns in (1, 3, 4, 5, 9, 16):
        assert library.shape([[6, columns]], 4) == [6, ts.Tensor.shard_sizes(columns, 4)[rank]]


def test_operations_that_libraries_are_not_taught_are_refused():
    topology = ts.Topology.scale_model("8xH200-NVSwitch", ranks=4)
    routed = ts.moe_dispatch(ts.Tensor((16, 16), "bfloat16", ts.FullRow), 8, 2, topology)
    blocks = ts.matmul(ts.Tensor((16, 16), "bfloat16", ts.Block), ts.Tensor((16, 16), "bfloat16", ts.Block), out=ts.Block,
                       topology=topology)
    for spec in (routed, blocks):
        with pytest.raises(BundleError, match=f"knows the operation; got: {spec.op}"):
            Unfused(torch, spec, None)
