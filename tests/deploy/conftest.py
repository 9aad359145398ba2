"""A real bundle, exported once a session: a fused and a library schedule of ag_gemm, and an all_gather, on two ranks."""

from __future__ import annotations

import shutil

import pytest
from deploy.fakes import ag_gemm, all_gather, one_schedule, result_of

from tilescale.codegen.compile import Compiler
from tilescale.tuner.export import export


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    up, down, gather = ag_gemm(2), ag_gemm(2, rows=64), all_gather(2)
    results = {
        "gate_up": [
            result_of("gate_up", up, one_schedule(up, overlap="fused", transport="peer_copy", direction="push")),
            result_of("gate_up", down, one_schedule(down, overlap="fused", transport="peer_copy", direction="push")),
        ],
        "plain": result_of("plain", up, one_schedule(up, transport="copy_engine", compute="library", overlap="none")),
        "gather": result_of("gather", gather, one_schedule(gather, transport="tma", overlap="none", direction="pull")),
    }
    with Compiler(1, cache_dir=folder / "cache") as compiler:
        return export(results, folder / "bundle", compiler=compiler, environment={"driver": "580.159.04"})


@pytest.fixture
def bundle(exported, tmp_path):
    """A copy to spoil."""
    return shutil.copytree(exported, tmp_path / "copy")
