"""Tables of ragged steps, and the texts of their kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from support import routed

from tilescale.codegen.emit import emit
from tilescale.codegen.ragged_rows import BY_TOKEN, OWN, PACKED, TOLD
from tilescale.codegen.rules import check_kernels
from tilescale.codegen.table import KIND_RAGGED, STEP, TASKS
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec

PUSH = Schedule(compute="generated", num_comm_blocks=4)
PULL = replace(PUSH, direction="pull")


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


def test_kernel_texts_are_as_committed(golden: Callable[[str, str], None]) -> None:
    for op in ("dispatch", "combine"):
        kernels = emit(routed(op, 4), PUSH).kernels
        golden(f"moe_{op}.cu", "\n".join(f"// {kernel.entry} for {kernel.arch}\n{kernel.text}" for kernel in kernels))


def test_no_static_rule_is_broken() -> None:
    for op in ("dispatch", "combine"):
        assert check_kernels(emit(routed(op, 2), PUSH).kernels) == ()
