"""Proofs are kept by protocol, never refusals; files survive processes and bad content."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from handmade import edit, find, fused_push, pull

from tilescale.schedules import proof_cache
from tilescale.schedules.plan import Wait
from tilescale.schedules.proof_cache import ProofCache, verifier_digest
from tilescale.schedules.protocol import protocol_digest
from tilescale.schedules.story import Stats
from tilescale.schedules.verify import verify


def test_sizes_and_gangs_do_not_matter_to_the_protocol() -> None:
    small = fused_push(4, chunks=2)
    assert protocol_digest(small) == protocol_digest(fused_push(4, chunks=2, chunk_rows=10))
    assert protocol_digest(small) == protocol_digest(fused_push(4, chunks=2, comm=7, compute=5))
    assert protocol_digest(small) != protocol_digest(fused_push(4, chunks=2, comm=1))
    assert protocol_digest(small) != protocol_digest(fused_push(4, chunks=1))
    assert protocol_digest(small) != protocol_digest(fused_push(4, chunks=2, versions=1))
    assert protocol_digest(pull(2)) != protocol_digest(pull(2, staged=False))


def test_a_known_protocol_is_not_proved_again() -> None:
    cache = ProofCache()
    first = verify(fused_push(2), cache=cache)
    cache.known[first.digest, 3] = replace(first.stats, runs=12345)
    assert verify(fused_push(2, chunk_rows=8), cache=cache).stats.runs == 12345
    assert verify(fused_push(2, chunk_rows=8), cache=None).stats.runs == first.stats.runs
    assert verify(fused_push(2), calls=2, cache=cache).stats.runs == first.stats.runs


def test_a_known_protocol_is_still_checked_for_sizes() -> None:
    cache = ProofCache()
    assert verify(fused_push(2), cache=cache).ok
    assert not verify(fused_push(2, sm_share=2), cache=cache).ok


def test_refusals_are_not_kept(tmp_path: Path) -> None:
    cache = ProofCache(tmp_path)
    plan = fused_push(2)
    bad = edit(plan, 0, find(plan, 0, Wait), lambda step: [])
    assert not verify(bad, cache=cache).ok
    assert cache.known == {}
    assert list(tmp_path.rglob("*.json")) == []


def test_files_are_read_by_another_cache_and_bad_ones_ignored(tmp_path: Path) -> None:
    proof = verify(fused_push(2), cache=ProofCache(tmp_path))
    (file,) = tmp_path.rglob("*.json")
    assert file.parent.name == verifier_digest()
    assert ProofCache(tmp_path).get(proof.digest, 3) == proof.stats
    assert ProofCache(tmp_path).get(proof.digest, 2) is None
    assert list(tmp_path.rglob("*.new")) == []
    file.write_text("{")
    assert ProofCache(tmp_path).get(proof.digest, 3) is None
    file.write_text('{"unknown": 1}')
    assert ProofCache(tmp_path).get(proof.digest, 3) is None
    assert verify(fused_push(2), cache=ProofCache(tmp_path)) == proof
    assert isinstance(ProofCache(tmp_path).get(proof.digest, 3), Stats)


def test_a_folder_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = ProofCache(tmp_path / "file" / "proofs")
    with pytest.warns(RuntimeWarning, match=r"not kept in .*file/proofs: Not a directory; set XDG_CACHE_HOME"):
        assert verify(fused_push(2), cache=cache).ok
    assert cache.directory is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is said once
        assert verify(fused_push(4), cache=cache).ok
    assert len(cache.known) == 2  # in memory


def test_all_that_the_verifier_imports_of_its_room_decides_what_a_proof_means() -> None:
    found, left = set[str](), ["verify.py"]
    room = Path(proof_cache.__file__).parent
    while left:
        name = left.pop()
        found.add(name)
        text = (room / name).read_text()
        names = (f"{module}.py" for module in re.findall(r"^from tilescale\.schedules\.(\w+) import", text, re.MULTILINE))
        left += [each for each in names if each not in found and (room / each).exists()]
    assert found == set(proof_cache.SOURCES)
