from __future__ import annotations

from dataclasses import replace

import pytest
from deploy.fake_device import H200

from tilescale.deploy import bundle as bundles
from tilescale.deploy.cuda_driver import driver_release
from tilescale.deploy.preflight import branch_of, check_group, runs_on


@pytest.mark.parametrize(("arch", "capability", "fits"), [
    ("sm_90a", (9, 0), True), ("sm_90a", (10, 0), False), ("sm_90a", (9, 1), False), ("sm_80", (8, 0), True),
    ("sm_80", (8, 6), True), ("sm_80", (9, 0), False), ("sm_86", (8, 0), False), ("sm_100f", (10, 3), True),
    ("sm_100a", (10, 3), False), ("sm_100a", (10, 0), True), ("sm_120", (12, 1), True),
])
def test_where_a_binary_runs(arch, capability, fits):
    assert runs_on(arch, capability) is fits


def test_branches_of_drivers():
    assert [branch_of(cuda) for cuda in (12080, 13000, 13010, 13050, 11000)] == [570, 580, 590, 590, 0]


@pytest.mark.parametrize(("text", "release"), [
    ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build", "580.159.04"),
    ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54  Tue", "535.54"), ("something", ""),
])
def test_the_release_of_the_driver(tmp_path, text, release):
    (tmp_path / "version").write_text(text)
    assert driver_release(tmp_path / "version") == release
    assert driver_release(tmp_path / "missing") == ""


def test_a_group_of_another_size_is_refused(exported):
    (problem,) = check_group(bundles.read(exported).manifest, 3, [H200] * 3)
    assert "tuned for 2 ranks; got: a group of 3" in str(problem)


def test_ranks_on_one_gpu_must_fit_together(exported):
    manifest = bundles.read(exported).manifest
    assert [t.sm_share for t in manifest.topologies] == [64]
    assert check_group(manifest, 2, [H200, H200]) == []
    small = replace(H200, sms=120)
    (problem,) = check_group(manifest, 2, [small, small])
    assert "64 SMs each; got: ranks [0, 1] on GPU gpu-0 of 120 SMs (rank 0: gpu-0, rank 1: gpu-0)" in str(problem)
    assert check_group(manifest, 2, [small, replace(small, uuid="gpu-1")]) == []
