"""Tables of ragged steps, and the texts of their kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from support import routed

from tilescale.codegen.emit import emit
from tilescale.codegen.program import Kernel
from tilescale.codegen.ragged_rows import BY_TOKEN, OWN, PACKED, TOLD
from tilescale.codegen.rules import check_kernels
from tilescale.codegen.table import KIND_RAGGED, KIND_SOURCE, STEP, TASKS
from tilescale.schedules.grouped import grouped_geometry
from tilescale.schedules.lower import lower
from tilescale.schedules.plan import Ragged
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec

PUSH = Schedule(compute="generated", num_comm_blocks=4)
PULL = replace(PUSH, direction="pull")
EXPERTS = replace(PUSH, block_m=64, block_n=128, block_k=64, num_stages=3, raster_group=8)


def rows(spec: Spec, schedule: Schedule, task: str, rank: int = 0) -> list[tuple[int, ...]]:
    """The first row of a task and those behind it: kind, id, source, target, counter, value, per_call, rows, ..."""
    data = bytes.fromhex(emit(spec, schedule).ranks[rank][0].steps)
    table = [STEP.unpack(data[at:at + STEP.size]) for at in range(0, len(data), STEP.size)]
    first = next(i for i, row in enumerate(table) if row[0] == KIND_RAGGED and row[6] == TASKS[task])
    return table[first:first + 1 + table[first][7]]


def ways(found: list[tuple[int, ...]]) -> list[int]:
    return [row[6] for row in found]


def test_tokens_are_found_where_they_arrived_or_where_they_are_held() -> None:
    spec = routed("dispatch", 3)
    assert ways(rows(spec, PUSH, "place", 1)[3:]) == [PACKED, BY_TOKEN, PACKED]
    pulled = rows(spec, PULL, "place", 1)[3:]
    assert ways(pulled) == [BY_TOKEN] * 3
    assert [row[4:6] for row in pulled] == [(0, 1), (1, 1), (2, 1)]  # who sends, who receives: links are charged so


def test_rows_are_found_by_counts_or_as_their_holder_says() -> None:
    assert ways(rows(routed("combine", 3), PUSH, "weigh", 2)[2:]) == [PACKED, PACKED, OWN]
    assert ways(rows(routed("combine", 3, inputs="symmetric"), PULL, "weigh", 2)[2:]) == [TOLD, TOLD, OWN]


def test_a_step_has_its_own_tokens_and_the_most_of_all_ranks() -> None:
    first, routing, *_ = rows(routed("dispatch", 4, tokens=7), PUSH, "route", 3)
    assert (first[10], routing[10]) == (1, 2)


def test_tokens_go_through_a_segment_where_they_are_pushed() -> None:
    assert rows(routed("dispatch", 3), PUSH, "send")[0][-1] > 0
    assert rows(routed("dispatch", 3), PULL, "send")[0][-1] == 0


def test_texts_hold_what_the_compiler_must_know_and_are_shared_by_all_sizes_and_gangs() -> None:
    small, large = (emit(routed("dispatch", 4, tokens=t, hidden=h, experts=8), s).binary_digest
                    for t, h, s in ((64, 64, PUSH), (4096, 4096, replace(PULL, num_comm_blocks=16))))
    assert small == large
    assert emit(routed("dispatch", 4, experts=16), PUSH).binary_digest != small


def test_groups_are_told_and_parts_are_addressed_where_they_lie() -> None:
    spec, schedule = routed("dispatch_gemm", 3, experts=12), replace(EXPERTS, overlap="fused", depth=2)
    plan = lower(spec, schedule)
    geo = grouped_geometry(spec, 2, 4)
    first, routing, lists = rows(spec, schedule, "send_group", 1)
    assert (first[5], routing[5], lists[0]) == (2, 0, KIND_SOURCE)  # the next rank; the first group
    assert first[9] == geo.segment(2, 1, rows=True).offset
    assert first[-1] == geo.head_bytes
    placed = rows(spec, schedule, "place_group", 1)
    assert ways(placed[3:]) == [PACKED, BY_TOKEN, PACKED]
    multiplied = [step for *_, step in plan.steps_of(0) if isinstance(step, Ragged) and step.task == "multiply"]
    data = bytes.fromhex(emit(spec, schedule).ranks[0][0].steps)
    table = [STEP.unpack(data[at:at + STEP.size]) for at in range(0, len(data), STEP.size)]
    found = [i for i, row in enumerate(table) if row[0] == KIND_RAGGED and row[6] == TASKS["multiply"]]
    assert [table[i + 1][5] for i in found] == [0, 1]  # groups
    assert {table[i][9] for i in found} == {0}  # of all of the output: where theirs lie the device finds
    assert [step.writes[0].offset for step in multiplied] == [0, plan.buffer("out").size // 2]
    assert {table[i][10] for i in found} == {geo.room}


def test_groups_need_a_binary_each_and_sizes_do_not() -> None:
    def digest(depth: int, **sizes: int) -> str:
        return emit(routed("dispatch_gemm", 2, experts=8, **sizes),  # type: ignore[arg-type]
                    replace(EXPERTS, overlap="fused", depth=depth)).binary_digest

    assert digest(2) == digest(2, tokens=512, hidden=1024, columns=1024)
    assert digest(2) != digest(4)


def test_kernel_texts_are_as_committed(golden: Callable[[str, str], None]) -> None:
    for op in ("dispatch", "combine"):
        kernels = emit(routed(op, 4), PUSH).kernels
        golden(f"moe_{op}.cu", "\n".join(f"// {kernel.entry} for {kernel.arch}\n{kernel.text}" for kernel in kernels))
    for name, schedule in (("behind", EXPERTS), ("beside", replace(EXPERTS, overlap="fused", depth=2))):
        kernels = emit(routed("dispatch_gemm", 4), schedule).kernels
        golden(f"experts_{name}.cu", "\n".join(f"// {kernel.entry} for {kernel.arch}\n{kernel.text}" for kernel in kernels))


def test_kernels_of_products_with_epilogues_are_as_committed(golden: Callable[[str, str], None]) -> None:
    spec = routed("dispatch_gemm", 4, columns=160, then=("bias", "swiglu"))
    kernels = (*emit(spec, EXPERTS).kernels, *emit(spec, replace(EXPERTS, overlap="fused", depth=2)).kernels)
    golden("experts_then.cu", "\n".join(f"// {kernel.entry} for {kernel.arch}\n{kernel.text}" for kernel in kernels))
    assert check_kernels(kernels) == ()
    program = emit(spec, EXPERTS)
    assert program.slots[0].buffer == "bias"  # where the text says that it is
    assert program.n == 160
    silu = emit(routed("dispatch_gemm", 4, then=("silu",)), EXPERTS)
    assert silu.slots == emit(routed("dispatch_gemm", 4), EXPERTS).slots
    assert all(("Silu" in kernel.text) == (kernel.entry == "tilescale_grouped") for kernel in silu.kernels)


def test_kernels_of_scaled_bytes_are_as_committed(golden: Callable[[str, str], None]) -> None:
    def made(op: str, kind: str) -> tuple[Kernel, ...]:
        spec = routed(op, 4, hidden=272, dtype="float8_e4m3fn", order="col", scales=kind)
        bytes_of = replace(EXPERTS, block_k=128)
        return (*emit(spec, bytes_of).kernels, *emit(spec, replace(bytes_of, overlap="fused", depth=2)).kernels)

    kernels = made("dispatch_gemm", "block")
    golden("experts_scaled.cu", "\n".join(f"// {kernel.entry} for {kernel.arch}\n{kernel.text}" for kernel in kernels))
    assert all("BlockScales<false>" in kernel.text for kernel in kernels)  # who sends them, and who multiplies by them
    for kernel in made("dispatch_gemm", "tensor") + made("gemm_combine", "rowcol"):
        assert ("Scales<false>" in kernel.text) == (kernel.entry != "tilescale_moe")
    for op in ("dispatch_gemm", "gemm_combine"):
        for kind in ("tensor", "rowcol", "block"):
            assert check_kernels(made(op, kind)) == ()


def test_scales_have_the_first_slots_and_those_that_arrive_a_place_of_their_own() -> None:
    spec = routed("dispatch_gemm", 2, experts=8, hidden=272, dtype="float8_e4m3fn", order="col", scales="rowcol",
                  then=("bias",))
    schedule = replace(EXPERTS, block_k=128)
    program = emit(spec, schedule)
    assert [slot.buffer for slot in program.slots[:3]] == ["scale_a", "scale_b", "bias"]
    assert any("ts::Bias<2, ts::Bf16>" in kernel.text for kernel in program.kernels)
    at = [slot.buffer for slot in program.slots].index("scales")
    placed = rows(spec, schedule, "place_group")
    assert placed[2][2] == at
    data = bytes.fromhex(program.ranks[0][1].steps)
    table = [STEP.unpack(data[begin:begin + STEP.size]) for begin in range(0, len(data), STEP.size)]
    first = next(i for i, row in enumerate(table) if row[6] == TASKS["multiply"])
    assert (table[first][7], table[first + 2][2]) == (2, at)


def test_kernels_of_products_before_a_combine_are_as_committed(golden: Callable[[str, str], None]) -> None:
    spec = routed("gemm_combine", 4)
    kernels = (*emit(spec, EXPERTS).kernels, *emit(spec, replace(EXPERTS, overlap="fused", depth=2)).kernels)
    golden("experts_back.cu", "\n".join(f"// {kernel.entry} for {kernel.arch}\n{kernel.text}" for kernel in kernels))
    assert check_kernels(kernels) == ()


def test_no_static_rule_is_broken() -> None:
    for op in ("dispatch", "combine"):
        assert check_kernels(emit(routed(op, 2), PUSH).kernels) == ()
    for schedule in (EXPERTS, replace(EXPERTS, overlap="fused", depth=2)):
        assert check_kernels(emit(routed("dispatch_gemm", 2), schedule).kernels) == ()
