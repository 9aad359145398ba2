from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from deploy.fake_device import H200, FakeDriver, Machine

from tilescale.deploy import bundle as bundles
from tilescale.deploy.checking import check
from tilescale.deploy.manifest import MANIFEST, Manifest, dump, parse
from tilescale.errors import BundleError


def no_gpu():
    return "no GPU here"


def on(facts):
    return lambda: FakeDriver(Machine(), facts=facts)


def files_of(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def test_a_whole_bundle_passes_and_says_what_was_left_out(exported):
    report = check(exported, no_gpu)
    assert report.ok
    assert report.files == len(files_of(exported)) - 1
    assert "no GPU here" in report.unchecked[0]
    assert "not checked: driver" in str(report)
    report.raise_if_failed()


def test_with_a_gpu_it_is_checked_too(exported):
    report = check(exported, on(H200))
    assert report.ok
    assert "NVIDIA H200" in str(report)
    assert not any("driver" in text for text in report.unchecked)


KINDS = ("manifest.json", "cubin/", "text/", "tables/gate_up.json", "tables/gate_up.1.json", "include/tilescale/abi.cuh",
         "tilescale_bundle.h")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["flip", "grow", "empty", "delete"])
def test_a_spoilt_file_of_each_kind_is_named(bundle, kind, how):
    path = next(name for name in files_of(bundle) if name.startswith(kind))
    data = bytearray((bundle / path).read_bytes())
    if how == "flip":
        data[len(data) // 2] ^= 1
    elif how == "grow":
        data += b"\n "
    (bundle / path).write_bytes(b"" if how == "empty" else bytes(data))
    if how == "delete":
        (bundle / path).unlink()
    report = check(bundle, no_gpu)
    if path == MANIFEST and how == "grow":
        assert report.ok  # white space behind JSON says nothing
        return
    assert not report.ok
    assert {problem.file for problem in report.problems} == {path}
    with pytest.raises(BundleError, match=path):
        report.raise_if_failed()


def test_an_added_file_is_named(bundle):
    (bundle / "cubin" / "extra.cubin").write_bytes(b"x")
    report = check(bundle, no_gpu)
    assert [problem.file for problem in report.problems] == ["cubin/extra.cubin"]


def test_e3_elsewhere_read_only_with_and_without_one_file(bundle):
    """E3: another working directory, a read-only folder, then one file deleted: it is named."""
    code = "import sys; from tilescale.deploy.checking import check; r = check(sys.argv[1]); print(r); sys.exit(not r.ok)"

    def run():
        return subprocess.run([sys.executable, "-c", code, os.path.relpath(bundle, "/")], cwd="/", text=True,
                              capture_output=True, check=False)

    for folder, _, _ in os.walk(bundle):
        os.chmod(folder, 0o555)
    try:
        done = run()
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        for folder, _, _ in os.walk(bundle):
            os.chmod(folder, 0o755)
    lost = next(name for name in files_of(bundle) if name.endswith(".cubin"))
    (bundle / lost).unlink()
    done = run()
    assert done.returncode == 1
    assert f"{lost} is in the bundle; got: it is missing" in done.stdout


def test_e4_an_older_driver_is_refused_with_both_versions(exported):
    """E4: a bundle that needs a newer driver."""
    report = check(exported, on(replace(H200, cuda=12080, driver="570.86.15")))
    assert not report.ok
    text = str(report.problems[0])
    for part in ("CUDA 13.0", "driver 580", "CUDA 12.8", "570.86.15"):
        assert part in text
    unknown = check(exported, on(replace(H200, cuda=12090, driver="")))
    assert "CUDA 12.9 (driver of branch 575)" in str(unknown)


def test_a_newer_driver_serves_and_is_marked(exported):
    report = check(exported, on(replace(H200, cuda=13010, driver="590.10")))
    assert report.ok
    assert any("580.159.04" in note and "590.10" in note for note in report.notes)
    assert not any("stale" in note for note in check(exported, on(H200)).notes)


@pytest.mark.parametrize(("facts", "says"), [
    (replace(H200, name="NVIDIA B200", capability=(10, 0)), "sm_90a.*B200, compute capability 10.0"),
    (replace(H200, sms=56), "64 SMs.*has 56"),
])
def test_another_gpu_is_refused(exported, facts, says):
    with pytest.raises(BundleError, match=says):
        check(exported, on(facts)).raise_if_failed()


def rewrite(bundle, change):
    """The bundle with a manifest that was changed and is consistent in itself."""
    manifest = change(parse((bundle / MANIFEST).read_bytes()))
    assert isinstance(manifest, Manifest)
    (bundle / MANIFEST).write_bytes(dump(manifest))


def test_another_format_is_refused_naming_both(bundle):
    data = json.loads((bundle / MANIFEST).read_text())
    data["manifest"]["format"] = 2
    (bundle / MANIFEST).write_text(json.dumps(data))
    report = check(bundle, no_gpu)
    assert "format 1" in str(report)
    assert "format 2" in str(report)


def test_a_manifest_that_contradicts_its_files_is_noticed(bundle):
    rewrite(bundle, lambda m: replace(m, kernels=tuple(replace(k, entry="other") for k in m.kernels)))
    assert "entry points tilescale_" in str(check(bundle, no_gpu))


def test_a_binary_for_another_architecture_is_noticed(bundle):
    rewrite(bundle, lambda m: replace(m, kernels=tuple(replace(k, arch="sm_100a") for k in m.kernels)))
    assert "architecture sm_90a" in str(check(bundle, no_gpu))


def test_a_minimum_that_the_compiler_note_contradicts_is_noticed(bundle):
    rewrite(bundle, lambda m: replace(m, minimum_cuda=12080))
    assert "made by CUDA 13.0" in str(check(bundle, no_gpu))


def test_a_table_of_another_variant_is_noticed(bundle):
    def swap(manifest):
        entry = next(o for o in manifest.operations if o.name == "gate_up")
        one, two = entry.variants
        swapped = replace(entry, variants=(replace(one, table=two.table), replace(two, table=one.table)))
        return replace(manifest, operations=tuple(swapped if o is entry else o for o in manifest.operations))

    rewrite(bundle, swap)
    assert "holds the program of the manifest" in str(check(bundle, no_gpu))


def test_what_is_no_bundle_is_reported(tmp_path):
    assert "a bundle is a folder with a manifest.json" in str(check(tmp_path / "nowhere", no_gpu))
    (tmp_path / MANIFEST).write_text("{}")
    assert not check(tmp_path, no_gpu).ok
    (tmp_path / MANIFEST).write_text("not json")
    assert not check(tmp_path, no_gpu).ok


def test_reading_checks_what_it_reads(bundle):
    held = bundles.read(bundle)
    variant = held.operation("gate_up").variants[0]
    assert held.program(variant).digest == variant.program_digest
    assert set(held.binaries(variant)) == set(variant.kernels)
    cubin = bundle / held.manifest.kernel(variant.kernels[0]).cubin
    cubin.write_bytes(cubin.read_bytes()[:-1] + b"?")
    with pytest.raises(BundleError, match="as it was exported"):
        held.binaries(variant)
    with pytest.raises(BundleError, match="gate_up"):
        held.operation("gate_pu")
