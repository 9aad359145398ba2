"""The check on a GPU reaches every operation that has kernels, and counts what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tilescale.spec.operation import OPERATIONS
from tilescale.spec.topology import Topology

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import hardware_check

    return hardware_check


@pytest.mark.parametrize("ranks", [4, 8])
def test_every_operation_with_kernels_is_there(script: Any, ranks: int) -> None:
    found = {spec.op for spec in script.workloads(ROOT / "recipes", Topology.shared_gpu(ranks))}
    assert found == {operation.name for operation in OPERATIONS if operation.kernels}


def test_kinds_of_a_sum_are_all_there(script: Any) -> None:
    specs = script.workloads(ROOT / "recipes", Topology.shared_gpu(4))
    kinds = script.sample(next(spec for spec in specs if (spec.op, spec.placement) == ("gemm_rs", "ordinary")))
    assert {words[0] for words in kinds} >= {"direct", "scatter"}
    assert {words[1] for words in kinds} >= {"peer_copy", "tma", "copy_engine"}
    assert all(schedule.compute == "generated" for schedule in kinds.values())


def test_a_family_is_right_where_both_sides_are(script: Any) -> None:
    assert script.right({"small": "ok", "whole": "ok", "emulated": "ok"})
    for side in ("small", "whole", "emulated"):
        assert not script.right({"small": "ok", "whole": "ok", "emulated": "ok", side: "wrong_result: element 0"})


def test_the_emulator_answers_for_a_schedule(script: Any) -> None:
    specs = script.workloads(ROOT / "recipes", Topology.shared_gpu(4))
    spec = next(spec for spec in specs if spec.op == "all_reduce")
    assert script.emulated(spec, next(iter(script.sample(spec).values()))) == "ok"
