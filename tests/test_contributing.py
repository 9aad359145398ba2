"""CONTRIBUTING's walk through adding an operation: its files exist, and the operation lives in its own."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tilescale.spec.derive import TABLE
from tilescale.spec.operation import OPERATIONS

ROOT = Path(__file__).parents[1]


def walk() -> str:
    """The section on operations."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    return text.split("## Adding an operation")[1].split("\n## ")[0]


def test_every_file_that_the_walk_names_exists() -> None:
    named = [word for word in re.findall(r"`([^`\s]+)`", walk()) if "/" in word]
    assert "tilescale/spec/ops/shift.py" in named
    assert len(named) > 9
    missing = [word for word in named if not (ROOT / word).exists()]
    assert missing == []


def test_the_walk_names_what_an_operation_and_its_row_are_made_of() -> None:
    shift = OPERATIONS["shift"]
    for name in ("flops", "link_bytes", "check", "limits", "holds"):
        assert f"`{name}" in walk()
        assert getattr(shift, name) is not None
    assert [rule.op for rule in TABLE].count("shift") == 1


@pytest.mark.parametrize("name", [operation.name for operation in OPERATIONS if operation.kernels])
def test_an_operation_with_kernels_has_a_recipe_and_a_page(name: str) -> None:
    assert (ROOT / "docs" / "ops" / f"{name}.md").is_file()
    assert f"({name}.md)" in (ROOT / "docs" / "ops" / "README.md").read_text()
    if OPERATIONS[name].moves:  # a local product is tuned without one
        assert list((ROOT / "recipes" / name).glob("*.toml"))


def test_without_its_file_the_registry_loses_the_operation_and_all_else_works(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "tilescale", tmp_path / "tilescale", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "tilescale" / "spec" / "ops" / "shift.py").unlink()
    code = """
import tilescale as ts
from tilescale.errors import TilescaleError
from tilescale.schedules.space import space
from tilescale.spec.operation import OPERATIONS
assert "shift" not in OPERATIONS and "broadcast" in OPERATIONS
topology = ts.Topology.scale_model("8xH200-NVSwitch", ranks=2)
x = ts.Tensor((128, 64), "bfloat16", ts.FullRow)
assert space(ts.redistribute(x, ts.FullCol, topology)).feasible > 0
try:
    ts.shift(x, 1, topology)
except TilescaleError as error:
    assert "shift" in str(error)
else:
    raise SystemExit("a shift was declared")
print(ts.__file__)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=100,
                          env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path))


def test_commands_of_the_pages_are_about_files_that_exist() -> None:
    for page in sorted((ROOT / "docs" / "ops").glob("*.md")):
        for path in re.findall(r"recipes/\S+\.toml", page.read_text()):
            assert (ROOT / path).is_file(), f"{page.name} names {path}"
