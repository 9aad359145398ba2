from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest
from deploy.fakes import ag_gemm, one_schedule, result_of

from tilescale.deploy import bundle as bundles
from tilescale.deploy.checking import check
from tilescale.deploy.manifest import MANIFEST, dump, parse
from tilescale.errors import BundleError


def contents(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def leftovers(folder):
    return [p for p in folder.iterdir() if p.name.startswith(".")]


def test_the_manifest_survives_its_text(exported):
    manifest = bundles.read(exported).manifest
    assert parse(dump(manifest)) == manifest
    assert manifest.world == 2
    assert (manifest.minimum_cuda, manifest.minimum_driver) == (13000, 580)
    assert manifest.archs == ("sm_90a",)


def test_writing_again_gives_the_same_bytes(exported, tmp_path):
    held = bundles.read(exported)
    files = [(entry.path, held.read(entry.path)) for entry in held.manifest.files]
    bundles.write(tmp_path / "b" / "again", held.manifest, reversed(files))
    assert contents(tmp_path / "b" / "again") == contents(exported)
    assert not leftovers(tmp_path / "b")


def test_an_older_bundle_is_replaced_and_nothing_is_left(bundle):
    held = bundles.read(bundle)
    (bundle / "cubin" / "stray").write_bytes(b"")
    files = [(entry.path, held.read(entry.path)) for entry in held.manifest.files]
    bundles.write(bundle, replace(held.manifest, created="later"), files)
    assert bundles.read(bundle).manifest.created == "later"
    assert check(bundle, lambda: "none").ok
    assert not leftovers(bundle.parent)


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_something_else_is_not_overwritten(exported, tmp_path, kind):
    target = tmp_path / "target"
    if kind == "folder":
        target.mkdir()
        (target / "notes.txt").write_text("mine")
    elif kind == "file":
        target.write_text("mine")
    else:
        target.symlink_to(exported)
    held = bundles.read(exported)
    with pytest.raises(BundleError, match=r"replaces an older bundle.*target"):
        bundles.write(target, held.manifest, [])
    assert check(exported, lambda: "none").ok
    assert kind != "folder" or (target / "notes.txt").read_text() == "mine"


def test_an_empty_folder_and_a_damaged_bundle_may_be_replaced(bundle, tmp_path):
    held = bundles.read(bundle)
    files = [(entry.path, held.read(entry.path)) for entry in held.manifest.files]
    (bundle / MANIFEST).write_bytes((bundle / MANIFEST).read_bytes()[:-40])
    (tmp_path / "empty").mkdir()
    for target in (bundle, tmp_path / "empty"):
        bundles.write(target, held.manifest, files)
        assert check(target, lambda: "none").ok


def test_an_error_while_writing_leaves_what_was_there(bundle):
    before = contents(bundle)

    def files():
        yield "cubin/one", b"1"
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        bundles.write(bundle, bundles.read(bundle).manifest, files())
    assert contents(bundle) == before
    assert not leftovers(bundle.parent)


KILLED = """
    import os, signal, sys
    from tilescale.deploy import bundle as bundles
    held = bundles.read(sys.argv[1])
    def files(stop):
        for i, entry in enumerate(held.manifest.files):
            if i == stop:
                os.kill(os.getpid(), signal.SIGKILL)
            yield entry.path, held.read(entry.path)
    bundles.write(sys.argv[2], held.manifest, files(int(sys.argv[3])))
"""


@pytest.mark.parametrize("stop", [0, 3])
@pytest.mark.parametrize("present", [False, True])
def test_a_killed_export_leaves_no_half_bundle(exported, bundle, tmp_path, stop, present):
    target = bundle if present else tmp_path / "fresh"
    before = contents(bundle)
    code = [sys.executable, "-c", textwrap.dedent(KILLED), str(exported), str(target)]
    assert subprocess.run([*code, str(stop)], check=False).returncode == -signal.SIGKILL
    assert target.exists() == present
    if present:
        assert contents(target) == before
    (left,) = leftovers(target.parent)
    os.utime(left, (0, 0))  # as if it had been killed a while ago
    assert subprocess.run([*code, "-1"], check=False).returncode == 0
    assert check(target, lambda: "none").ok
    assert not leftovers(target.parent)


def test_a_writer_at_work_is_left_alone(exported, tmp_path):
    held = bundles.read(exported)

    def files():
        (aside,) = leftovers(tmp_path)
        os.utime(aside, (0, 0))
        bundles.write(tmp_path / "one", held.manifest, all_files)
        assert aside.exists()
        yield from all_files

    all_files = [(entry.path, held.read(entry.path)) for entry in held.manifest.files]
    bundles.write(tmp_path / "one", held.manifest, files())
    assert check(tmp_path / "one", lambda: "none").ok


def test_without_an_exchange_it_takes_two_renames(bundle, tmp_path):
    """The path of file systems that cannot swap two folders."""
    aside = tmp_path / "aside"
    aside.mkdir()
    (aside / "new").write_text("")
    bundles.rename_twice(aside, bundle)
    assert [p.name for p in bundle.iterdir()] == ["new"]
    assert not aside.exists()
    with pytest.raises(OSError, match="aside"):
        bundles.rename_twice(aside, bundle)
    assert [p.name for p in bundle.iterdir()] == ["new"]


def test_a_result_is_found_where_the_spec_says(exported):
    held = bundles.read(exported)
    spec = ag_gemm(2)
    variant = held.operation("gate_up").variants[0]
    assert variant.spec == spec
    assert variant.schedule == one_schedule(spec, overlap="fused", transport="peer_copy", direction="push")
    assert variant.evidence.best_us == result_of("x", spec, variant.schedule).best_us
    assert variant.evidence.source == "replayed"
    assert len(variant.evidence.proof) == 16
