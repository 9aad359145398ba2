"""benchmarks/peer_memory.py with ranks that have no GPU: both kinds of memory are asked for, and compared rightly."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from types import ModuleType

import pytest
from process_support import SEARCH_PATH
from runtime.gpu_worker import WORKER
from support import all_gather

import tilescale as ts
from tilescale.runtime.gpu_runner import GpuRunner

REAL = ts.Topology.named("8xH200-NVSwitch", ranks=2)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    monkeypatch.setenv("PYTHONPATH", SEARCH_PATH)
    monkeypatch.setenv("TILESCALE_PEER_MEMORY", "ipc")  # put back afterwards
    monkeypatch.setenv("FAKE_GPU", '{"uuids": ["gpu-a", "gpu-b"], "sms": 132}')
    import peer_memory

    runner = functools.partial(GpuRunner, worker=WORKER, workers=1, cache_dir=tmp_path)
    monkeypatch.setattr(peer_memory, "GpuRunner", runner)
    yield peer_memory
    del sys.modules["peer_memory"]


def test_every_transport_of_every_kind_is_chosen(script: ModuleType) -> None:
    for spec in script.specs(REAL):
        chosen = script.sample(spec)
        assert {each.transport for each in chosen} == {"peer_copy", "tma", "copy_engine"}
        assert {each.direction for each in chosen} == {"push", "pull"}
        assert not any(each.compute == "library" for each in chosen)


def test_ranks_use_the_kind_that_is_asked_for(script: ModuleType) -> None:
    spec = all_gather((256, 64), 2)
    spec = ts.redistribute(spec.inputs[0], ts.Replicate, REAL)
    chosen = [(spec, script.sample(spec)[-1])]
    rows = [script.measure(kind, REAL, chosen) for kind in ("ipc", "vmm")]
    assert [{each["peer_memory"] for each in row["ranks"]} for row in rows] == [{"ipc"}, {"vmm"}]
    assert all(row["as_asked"] and len(row["us"]) == 1 and not row["failed"] for row in rows)
    assert script.table(rows) == {"vmm_over_ipc": {f"{spec.label} | {chosen[0][1].label}": 1.0}, "failed": 0}


def test_the_table_counts_what_failed_and_takes_the_least_of_each_kind(script: ModuleType) -> None:
    rows = [{"kind": "ipc", "us": {"a": 10.0, "b": 4.0}}, {"kind": "vmm", "us": {"a": 12.0}, "failed": {"b": "timeout"}},
            {"kind": "ipc", "us": {"a": 8.0}, "as_asked": False}, {"kind": "vmm", "error": "no"}]
    assert script.table(rows) == {"vmm_over_ipc": {"a": 1.5}, "failed": 3}
