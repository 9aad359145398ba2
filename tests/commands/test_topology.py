"""tilescale topology: the machine at hand, with a stand-in for NVML."""

from __future__ import annotations

import json
import sys

import pytest
import typer
from spec.test_detect import UUIDS, ends_at, fake_nvml
from typer.testing import CliRunner

from tilescale.commands import topology


def run(*words: str) -> str:
    app = typer.Typer()
    app.command("topology")(topology.topology)
    done = CliRunner().invoke(app, [*words])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_here_shows_gpus_in_the_order_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(["NVIDIA H200"] * 8, **ends_at({})))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,2")
    shown = json.loads(run("here", "--json"))
    assert (shown["ranks"], shown["link"], shown["peer_access"]) == (2, "nvlink4-nvswitch", True)
    assert [(gpu["rank"], gpu["index"], gpu["uuid"]) for gpu in shown["gpus"]] == [(0, 4, UUIDS[4]), (1, 2, UUIDS[2])]
    assert [(gpu["to_switch"], gpu["peers"], gpu["atomics"]) for gpu in shown["gpus"]] == [(18, [2], [2]), (18, [4], [4])]
    lines = [line.split() for line in run("here").splitlines()]
    assert any(UUIDS[2] in words and "18" in words for words in lines)
