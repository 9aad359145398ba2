"""Static rules: each finds its fault in a fragment, and none speaks against a shipped family."""

from __future__ import annotations

import pytest
from families import SCHEDULES
from test_families import all_kernels

from tilescale.codegen.emit import emit
from tilescale.codegen.rules import RULES, check_kernel, check_text
from tilescale.codegen.rules._relevant import watched
from tilescale.codegen.text import texts_of
from tilescale.schedules.lower import lower

HEAD = "TS_DEV void run(const Call& call, u8* out, const u8* from, u32 row, u32 n, u64* bar, u32* counter) {"
PUT = "bulk_store(out, from, 16); bulk_commit();"
STORE = "tma_store_3d(out, from, 0, 0, 0); bulk_commit();"
# rule: (right body, wrong body)
FRAGMENTS: dict[str, tuple[str, str]] = {
    "fence_before_signal": ("store(out, 1); sync(); if (thread() == 0) { fence_system(); signal_add(counter, 1); }",
                            "store(out, 1); sync(); if (thread() == 0) { signal_add(counter, 1); }"),
    "full_wait_before_signal": (
        f"if (thread() == 0) {{ {PUT} bulk_wait<0>(); fence_system(); signal_add(counter, 1); }}",
        f"if (thread() == 0) {{ {PUT} bulk_wait_read<0>(); fence_system(); signal_add(counter, 1); }}"),
    "proxy_fence_after_acquire": ("load_acquire(counter); fence_async_global(); bulk_load(out, from, 16, bar);",
                                  "load_acquire(counter); bulk_load(out, from, 16, bar);"),
    "grid_wait_before_loads": ("grid_go(); grid_wait(); tma_load_2d(out, from, bar, 0, 0);",
                               "grid_go(); tma_load_2d(out, from, bar, 0, 0);"),
    "cluster_meets": (
        "mb_init(bar, 1); mb_fence_init(); cluster_sync(); cluster_mb_arrive(bar, 1); warp_sync(); cluster_sync();",
        "mb_init(bar, 1); mb_fence_init(); cluster_sync(); cluster_mb_arrive(bar, 1); warp_sync();"),
    "staged_fence": (f"u32 x = pack2<Bf16>(1, 2); fence_async_smem(); warp_sync(); {STORE} bulk_wait<0>();",
                     f"u32 x = pack2<Bf16>(1, 2); warp_sync(); fence_async_smem(); {STORE} bulk_wait<0>();"),
    "staged_copies": (
        "copy_async(out, from, 16u); copy_async_commit(); copy_async_wait<0>(); sync(); load_matrices<1>(found, rows);",
        "copy_async(out, from, 16u); copy_async_commit(); copy_async_wait<0>(); load_matrices<1>(found, rows);"),
    "alias_fence": ("multimem_store<Bf16>(out, v); fence_alias(); load(from);",
                    "multimem_store<Bf16>(out, v); load(from);"),
    "alias_fence_after_wait": ("wait_step(call, row); if (n == 1) fence_alias(); load(from);",
                               "wait_step(call, row); load(from);"),
    "one_fence": ("store(out, 1); sync(); fence_system(); signal_add(counter, 1); signal_add(counter, 2);",
                  "store(out, 1); sync(); fence_system(); signal_add(counter, 1); fence_system(); signal_add(counter, 2);"),
    "wait_acquires": ("if (thread() == 0) { load_acquire(counter); } sync(); load(from);",
                      "if (thread() == 0) { load_acquire(counter); } load(from);"),
    "barrier_init_fence": ("mb_init(bar, 1); mb_fence_init(); sync(); mb_expect(bar, 16);",
                           "mb_init(bar, 1); sync(); mb_expect(bar, 16);"),
    "wgmma_fence": ("wg_fence(); wgmma<64, false, Bf16>(acc, a, b); wg_commit(); wg_wait<0>(); store(out, 1);",
                    "wgmma<64, false, Bf16>(acc, a, b); wg_commit(); wg_wait<0>(); store(out, 1);"),
    "converged_before_cluster": ("if (thread() == 0) { mb_arrive(bar); } warp_sync(); cluster_sync();",
                                 "if (thread() == 0) { mb_arrive(bar); } cluster_sync();"),
    "bounded_wait": (
        "while (load_relaxed(counter) == 0u) { pause_until(counter, 1); if (time_ns() > n) { return; } }",
        "while (load_relaxed(counter) == 0u) { pause_until(counter, 1); }"),
    "wrapping_compare": ("u32 found = load_acquire(counter); if ((int)(found - n) >= 0) return;",
                         "u32 found = load_acquire(counter); if (found >= n) return;"),
    "packet_marks": ("U128 found = packet_load(from); if (found.y == n && found.w == n) return;",
                     "U128 found = packet_load(from); if (found.y == n && found.w >= n) return;"),
    "wide_index": ("u8* p = out + (u64)row * n;", "u8* p = out + row * n;"),
}


def rules_of(body: str) -> set[str]:
    return {violation.rule for violation in check_text(f"{HEAD} {body} }}", "run")}


@pytest.mark.parametrize("rule", sorted(FRAGMENTS))
def test_a_rule_knows_right_from_wrong(rule: str) -> None:
    right, wrong = FRAGMENTS[rule]
    assert rules_of(right) == set()
    assert rules_of(wrong) == {rule}


def test_every_rule_has_a_fragment() -> None:
    assert set(FRAGMENTS) == set(RULES.names())


def test_no_rule_speaks_against_a_shipped_family() -> None:
    kernels = [*all_kernels(), *(kernel for chosen in SCHEDULES.values() for kernel in emit(*chosen).kernels)]
    assert {kernel.entry for kernel in kernels} == {
        "tilescale_copy", "tilescale_fused", "tilescale_gemm", "tilescale_moe", "tilescale_packets", "tilescale_signal",
        "tilescale_small_m", "tilescale_sum"}
    for kernel in kernels:
        assert check_kernel(kernel) == (), kernel.text


def test_texts_without_tables_are_those_of_the_program() -> None:
    for spec, schedule in SCHEDULES.values():
        plan = lower(spec, schedule)
        assert set(texts_of(spec, schedule, plan)) == set(emit(spec, schedule, plan).kernels), schedule.label


def test_a_violation_says_where() -> None:
    _, wrong = FRAGMENTS["fence_before_signal"]
    (found,) = check_text(f"\n\n{HEAD}\n{wrong} }}", "run")
    assert found.place == "text:4"
    assert "without a system fence" in str(found)


def test_a_flag_decides_which_path_is_walked() -> None:
    body = (
        "bool first = true; "
        "for (;;) { if (first) { store(out, 1); sync(); fence_system(); } signal_add(counter, 1); FLAG }"
    )
    assert rules_of(body.replace("FLAG", "first = false;")) == set()
    late = "bool first = false; for (;;) { if (first) fence_system(); signal_add(counter, 1); first = true; }"
    assert rules_of(late) == {"fence_before_signal", "one_fence"}


STORED = "if (thread() % 32 == 0) { tma_store_3d(out, from, 0, 0, 0); bulk_commit(); } "
TOLD = " if (thread() == 128) { fence_system(); signal_add(counter, 1); }"


@pytest.mark.parametrize(("between", "broken"), [
    ("bulk_wait<0>(); named_barrier(1, 256);", set()),
    ("bulk_wait_read<0>(); named_barrier(1, 256);", {"full_wait_before_signal"}),
    ("named_barrier(1, 256); if (thread() == 128) bulk_wait<0>();", {"full_wait_before_signal"}),
    ("bulk_wait<0>();", {"full_wait_before_signal"}),
])
def test_stores_of_several_warps_are_waited_for_by_each_before_they_meet(between: str, broken: set[str]) -> None:
    assert rules_of(STORED + between + TOLD) == broken


def test_a_block_does_not_leave_while_its_stores_read_shared_memory() -> None:
    assert rules_of(f"if (thread() == 0) {{ {PUT} }}") == {"full_wait_before_signal"}


def test_staging_is_written_again_behind_the_store_that_reads_it() -> None:
    def twice(between: str) -> str:
        stored = f"u32 x = pack2<Bf16>(1, 2); fence_async_smem(); warp_sync(); {STORE}"
        return f"{stored} {between} {stored} bulk_wait<0>();"

    assert rules_of(twice("bulk_wait_read<C::store_buffers - 1>();")) == set()
    assert rules_of(twice("bulk_wait_read<C::store_buffers>();")) == {"staged_fence"}
    assert rules_of(twice("")) == {"staged_fence"}


def test_a_stage_is_released_behind_the_group_in_flight() -> None:
    group = "wg_fence(); wgmma<64, false, Bf16>(acc, a, b); wg_commit(); "
    assert rules_of(f"{group} {group} wg_wait<1>(); mb_arrive(bar); wg_wait<0>(); store(out, 1);") == set()
    assert rules_of(f"{group} {group} mb_arrive(bar); wg_wait<0>();") == {"wgmma_fence"}
    assert rules_of(f"{group} {group} wg_wait<1>(); store(out, 1);") == {"wgmma_fence"}


def test_a_template_that_calls_itself_is_walked_to_its_end() -> None:
    inner = "TS_DEV void chunks(u8* out, u32 n) { bulk_store(out, n); bulk_commit(); if (n > 0u) chunks(out, n); }"
    texts = [f"{inner}\n{HEAD} if (thread() == 0) {{ chunks(out, n); {wait} fence_system(); signal_add(counter, 1); }} }}"
             for wait in ("bulk_wait<0>();", "")]
    assert [{v.rule for v in check_text(text, "run")} for text in texts] == [set(), {"full_wait_before_signal"}]


def test_an_early_return_is_followed() -> None:
    body = "if (n == 0u) return; mb_init(bar, 1); mb_fence_init(); sync(); mb_expect(bar, 16);"
    assert rules_of(body) == set()


@pytest.mark.parametrize("flag", [
    "n == 1u",  # a condition that no rule follows
    "told",
])
def test_what_a_rule_does_not_look_at_changes_nothing_that_it_knows(flag: str) -> None:
    skipped = "for (u32 i = 0; i < n; ++i) { if (i == 3u) break; from[i] + 1; }"
    lambdas = "auto tell = [&](u32 to) { told = true; signal_add(counter, to); };"
    told = f"{skipped} tell(1); if ({flag}) {{ signal_add(counter, 2); }}"
    body = f"bool told = false; {lambdas} store(out, 1); sync(); FENCE {told}"
    assert rules_of(body.replace("FENCE", "fence_system();")) == set()
    assert rules_of(body.replace("FENCE", "")) == {"fence_before_signal"}


def test_a_local_flag_of_a_function_is_not_its_callers() -> None:
    inner = "TS_DEV void look(u32 n) { bool first = false; load_acquire(n); }"
    run = (f"{HEAD} bool first = true; look(n); sync(); if (first) {{ store(out, 1); sync(); fence_system(); }} "
           "signal_add(counter, 1); }")
    assert {v.rule for v in check_text(f"{inner}\n{run}", "run")} == set()


def test_names_that_a_rule_watches_are_found_in_every_state_that_it_comes_to() -> None:
    rule = next(rule for rule in RULES if rule.name == "full_wait_before_signal")
    assert rule.judge is not None
    primitives = frozenset((name, template) for name in ("bulk_store", "bulk_commit", "bulk_wait", "signal_add", "load")
                           for template in ("", "0"))
    assert watched(rule.judge, rule.start, primitives) == {"bulk_store", "bulk_commit", "bulk_wait", "signal_add", "exit"}
