"""What the tests of runners share."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec, matmul
from tilescale.spec.tensor import Tensor
from tilescale.spec.topology import Topology
from tilescale.spec.views import FullCol, FullRow


def make_spec(ranks: int = 4, k: int = 8192) -> Spec:
    topology = Topology.scale_model("8xH200-NVSwitch", ranks=ranks)
    a, b = Tensor((4096, k), "bfloat16", FullRow), Tensor((k, 10240), "bfloat16", FullCol)
    return matmul(a, b, out=FullCol, topology=topology)


def make_schedules(count: int) -> list[Schedule]:
    return [Schedule(chunk_rows=128 * (number + 1)) for number in range(count)]


def by_chunk(spec: Spec, schedule: Schedule) -> float:
    """A timer: microseconds that grow with chunk_rows."""
    return 100.0 + schedule.chunk_rows / 128


def running(pids: Iterable[int]) -> list[int]:
    """Those of `pids` that still run (a zombie does not)."""
    found = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state not in "ZX":
            found.append(pid)
    return found


def wait_until_gone(pids: Iterable[int], limit_s: float = 10.0) -> list[int]:
    """Those of `pids` that still run after `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    watched = list(pids)
    while (left := running(watched)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


@pytest.fixture
def spec() -> Spec:
    return make_spec()


@pytest.fixture
def helpers_path(monkeypatch: pytest.MonkeyPatch) -> Path:
    """This folder on the PYTHONPATH of child processes."""
    here = Path(__file__).parent
    old = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(here), old])))
    return here
