from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support import ag_gemm, all_gather

from tilescale.errors import PlanError, ScheduleError, SpecError
from tilescale.schedules.legal import check
from tilescale.schedules.lower import lower
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import space
from tilescale.schedules.verify import verify
from tilescale.spec.op import Spec

GOOD = Schedule(overlap="fused", compute="generated", chunk_rows=256, depth=2, num_comm_blocks=4, block_m=128,
                block_n=128, block_k=64, num_stages=4, raster_group=8)


@pytest.mark.parametrize("change", [
    {"transport": "nvlink"}, {"direction": "sideways"}, {"algorithm": "tree"}, {"overlap": "magic"},
    {"compute": "magic"}, {"compute": "library"}, {"chunk_order": "zigzag"}, {"depth": 0}, {"chunk_rows": -1},
    {"chunk_rows": 0}, {"num_comm_blocks": 0}, {"num_comm_blocks": 3}, {"num_comm_blocks": 10**6},
    {"transport": "copy_engine"}, {"block_k": None}, {"block_k": 0}, {"block_n": 8}, {"block_m": 96},
    {"raster_group": 0}, {"num_stages": 99}, {"num_stages": True}, {"overlap": "none"},
], ids=str)
def test_a_schedule_that_makes_no_sense_is_refused_with_its_values(change: dict[str, Any]) -> None:
    with pytest.raises(ScheduleError) as caught:
        lower(ag_gemm(), replace(GOOD, **change))
    ((knob, value),) = change.items()
    assert caught.value.rule
    assert caught.value.actual is not None
    assert caught.value.remedy
    assert knob in str(caught.value) or str(value) in str(caught.value)


@pytest.mark.parametrize("spec", [ag_gemm(), all_gather(), ag_gemm(ranks=2, inputs="symmetric")],
                         ids=lambda s: f"{s.label} {s.placement}")
def test_every_feasible_schedule_makes_sense(spec: Spec) -> None:
    for schedule in space(spec).schedules[::7]:
        check(spec, schedule)


def test_other_values_than_specs_schedules_and_plans_are_named() -> None:
    wrong: Any = None
    with pytest.raises(SpecError, match="NoneType"):
        lower(wrong, GOOD)
    with pytest.raises(SpecError, match="NoneType"):
        space(wrong)
    with pytest.raises(ScheduleError, match="take one of"):
        lower(ag_gemm(), wrong)
    with pytest.raises(PlanError, match="lower"):
        verify(wrong)
    with pytest.raises(ScheduleError, match="mapping of knobs"):
        space(ag_gemm(), 5)  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match="the values of transport are a list"):
        space(ag_gemm(), {"transport": "tma"})
