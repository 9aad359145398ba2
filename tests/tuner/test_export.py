from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support import ag_gemm, all_gather

from tilescale.codegen.compile import CompileFailure, Compiler
from tilescale.deploy import bundle as bundles
from tilescale.deploy.checking import check
from tilescale.deploy.manifest import tolerance_of
from tilescale.deploy.show import show
from tilescale.errors import BundleError, CompileError, EmulationError, PlanError
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import space
from tilescale.spec.result import ACCUMULATION_EPSILON, EPSILON
from tilescale.tuner.export import emulated, export
from tilescale.tuner.result import Result, Results
from tilescale.tuner.trial import Trial

GEMM = (256, 256, 64)


def pick(spec, **knobs):
    narrow = {name: [value] for name, value in knobs.items()}
    return next(iter(space(spec, narrow)))


def result_of(name, spec, best, **changes):
    made = Result(name, spec, best, 12.5, {"unfused": 20.0}, (), "the fastest", "replayed", "complete", 1, 0, 3, ())
    return replace(made, **changes)


@pytest.fixture(scope="module")
def compiler(tmp_path_factory):
    with Compiler(1, cache_dir=tmp_path_factory.mktemp("cache")) as compiler:
        yield compiler


def fused(spec):
    return pick(spec, overlap="fused", transport="peer_copy", direction="push", chunk_rows=64, num_comm_blocks=2,
                block_m=64, block_n=128)


def test_one_result_round_trips(tmp_path, compiler):
    spec = ag_gemm(GEMM, 2)
    best, tie = fused(spec), pick(spec, overlap="none", transport="tma", compute="library")
    samples = ((10.0, 13.0, 12.0), (11.0, 12.0, 14.0))
    rows = (Trial(0, best, "ok", "replayed", "measured", 1, 13.0, samples_us=samples),)
    result = result_of("up", spec, best, ties=(tie,), rows=rows, best_us=13.0)
    path = export(result, tmp_path / "bundle", compiler=compiler, environment={"gpu": "H200", "driver": "580.1"},
                  created="2026-01-02T03:04:05+00:00")
    assert path == tmp_path / "bundle"
    held = bundles.read(path)
    assert held.manifest.created == "2026-01-02T03:04:05+00:00"
    (variant,) = held.operation("up").variants
    assert (variant.spec, variant.schedule) == (spec, best)
    evidence = variant.evidence
    assert (evidence.source, evidence.status, evidence.best_us) == ("replayed", "complete", 13.0)
    assert evidence.baselines == (("unfused", 20.0),)
    assert evidence.ties == (tie,)
    assert evidence.environment == (("driver", "580.1"), ("gpu", "H200"))
    assert (evidence.samples.calls, evidence.samples.median_us, evidence.samples.maximum_us) == (3, 13.0, 14.0)
    assert evidence.emulation == "not run"
    assert held.program(variant).world == 2


def test_what_was_exported_compiles_again_from_the_bundle_alone(tmp_path, compiler):
    spec = ag_gemm(GEMM, 2)
    held = bundles.read(export(result_of("up", spec, fused(spec)), tmp_path / "bundle", compiler=compiler))
    from tilescale.codegen.compile import compile_text

    for kernel in held.manifest.kernels:
        again = compile_text(held.read(kernel.text).decode(), kernel.entry, kernel.arch, include=held.root / "include",
                             cache_dir=tmp_path / "cache")
        assert again.cubin == held.read(kernel.cubin)


def test_operations_share_binaries(tmp_path, monkeypatch):
    monkeypatch.setenv("TILESCALE_CACHE", str(tmp_path / "cache"))
    small, large = ag_gemm(GEMM, 2), ag_gemm((512, 256, 64), 2)
    results = Results({"small": result_of("small", small, fused(small)), "large": result_of("large", large, fused(large))})
    path = results.export(tmp_path / "bundle")
    manifest = bundles.read(path).manifest
    assert [entry.name for entry in manifest.operations] == ["large", "small"]
    assert len(manifest.kernels) == len({k for o in manifest.operations for v in o.variants for k in v.kernels}) == 1


def test_shapes_of_one_operation_are_variants(tmp_path, compiler):
    small, large = ag_gemm(GEMM, 2), ag_gemm((512, 256, 64), 2)
    both = [result_of("up", spec, fused(spec)) for spec in (small, large)]
    for results in (both, {"up": both}):
        held = bundles.read(export(results, tmp_path / "bundle", compiler=compiler))
        (entry,) = held.manifest.operations
        assert [variant.spec for variant in entry.variants] == [small, large]
        assert [variant.table for variant in entry.variants] == ["tables/up.json", "tables/up.1.json"]


def test_library_schedules_hold_only_small_kernels(tmp_path, compiler):
    spec = ag_gemm(GEMM, 2)
    best = pick(spec, overlap="none", transport="copy_engine", compute="library", direction="push")
    manifest = bundles.read(export(result_of("up", spec, best), tmp_path / "bundle", compiler=compiler)).manifest
    assert {kernel.entry for kernel in manifest.kernels} == {"tilescale_signal"}


def test_names_become_files_that_any_system_takes(tmp_path, compiler):
    spec = all_gather((256, 64), 2)
    best = pick(spec, overlap="none", transport="peer_copy")
    results = {"../up 8k": result_of("x", spec, best), "___up_8k": result_of("x", spec, best)}
    held = bundles.read(export(results, tmp_path / "bundle", compiler=compiler))
    tables = sorted(v.table for o in held.manifest.operations for v in o.variants)
    assert tables == ["tables/___up_8k.1.json", "tables/___up_8k.json"]
    assert check(held.root, lambda: "none").ok


def test_results_that_do_not_go_together_are_refused(tmp_path):
    two, four = ag_gemm(GEMM, 2), ag_gemm(GEMM, 4)
    gather = all_gather((256, 64), 2)
    cases = [
        ({}, "at least one operation"),
        ({"a": result_of("a", two, fused(two)), "b": result_of("b", four, fused(four))}, r"number of ranks; got: \[2, 4\]"),
        ({"a": [result_of("a", two, fused(two)), result_of("a", gather, pick(gather, transport="tma"))]}, "sizes alone"),
        ({"a": [result_of("a", two, fused(two)), result_of("a", two, fused(two))]}, "different shapes"),
    ]
    for results, says in cases:
        with pytest.raises(BundleError, match=says):
            export(results, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_a_failed_compile_leaves_the_older_bundle(tmp_path, compiler):
    spec = ag_gemm(GEMM, 2)
    path = export(result_of("up", spec, fused(spec)), tmp_path / "bundle", compiler=compiler)
    before = bundles.read(path).manifest

    class Broken:
        def compile(self, sources):
            return [CompileFailure(s.entry, s.arch, "compile_error", "line 3: no") for s in sources]

    with pytest.raises(CompileError, match=r"tilescale_fused compiles for sm_90a \(compile_error\); got: line 3: no"):
        export(result_of("up", spec, fused(spec)), path, compiler=Broken())
    assert bundles.read(path).manifest == before


def test_an_unproved_schedule_is_not_exported(tmp_path):
    spec = ag_gemm((4096, 256, 64), 2)
    crowded = replace(fused(spec), num_comm_blocks=64)
    with pytest.raises(PlanError, match="proved before it is exported"):
        export(result_of("up", spec, crowded), tmp_path / "bundle")


def test_a_folder_of_something_else_is_refused_before_any_work(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(BundleError, match="something else"):
        export(result_of("up", ag_gemm(GEMM, 2), Schedule()), tmp_path)


def test_the_emulators_verdict_is_kept_and_a_bad_one_stops_the_export(tmp_path, compiler):
    spec = all_gather((256, 64), 2)
    result = result_of("g", spec, pick(spec, overlap="none", transport="peer_copy", direction="push"))
    held = bundles.read(export(result, tmp_path / "bundle", compiler=compiler, emulate=emulated))
    assert "right" in held.operation("g").variants[0].evidence.emulation

    def wrong(result):
        raise EmulationError("an exported schedule is right under the emulator", "wrong")

    with pytest.raises(EmulationError):
        export(result, tmp_path / "other", compiler=compiler, emulate=wrong)
    assert not (tmp_path / "other").exists()


def test_an_untimed_result_says_so(tmp_path, compiler):
    spec = all_gather((256, 64), 2)
    result = result_of("g", spec, pick(spec, transport="peer_copy"), best_us=float("nan"), baselines={})
    shown = show(export(result, tmp_path / "bundle", compiler=compiler))
    assert bundles.read(tmp_path / "bundle").operation("g").variants[0].evidence.best_us is None
    assert "not timed" in str(shown)


def test_show_is_whole_as_a_table_and_as_json(tmp_path, compiler):
    spec = ag_gemm(GEMM, 2)
    shown = show(export(result_of("up", spec, fused(spec)), tmp_path / "bundle", compiler=compiler))
    text = str(shown)
    for part in ("up", spec.label, fused(spec).label, fused(spec).digest, "12.5 us", "replayed", "CUDA 13.0 (driver 580)"):
        assert part in text
    data = json.loads(json.dumps(shown.as_json()))
    assert data["digest"] == bundles.read(tmp_path / "bundle").manifest.digest
    assert data["operations"][0]["variants"][0]["evidence"]["source"] == "replayed"


def test_tolerances_are_those_of_the_check():
    spec = ag_gemm(GEMM, 2)
    tolerance = tolerance_of(spec)
    assert tolerance.output_roundoff == EPSILON["bfloat16"] / 2
    assert tolerance.accumulation == ACCUMULATION_EPSILON * 64
    assert tolerance_of(all_gather((256, 64), 2)).output_roundoff == 0.0
