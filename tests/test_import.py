"""What importing costs: the names are there, and nothing heavy is loaded for them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from process_support import run_script

import tilescale

HEAVY = ("torch", "cuda", "sklearn", "optuna", "pandas", "sqlalchemy", "numpy", "scipy", "alembic", "numba")
SAY = f"\nimport sys; print([name for name in {HEAVY} if name in sys.modules])"
DECLARE = """
import tilescale as ts
topo = ts.Topology.named("8xH200-NVSwitch")
a = ts.Tensor((8192, 8192), "bfloat16", ts.FullRow)
b = ts.Tensor((8192, 28672), "bfloat16", ts.FullCol, order="col")
spec = ts.matmul(a, b, out=ts.FullCol, topology=topo)
assert ts.space(spec).feasible > 0
ts.lower(spec, next(iter(ts.space(spec))))
"""
CLI = """
import sys
from tilescale.cli import main
sys.argv = ["tilescale", {arguments}]
try:
    main()
except SystemExit as exit:
    assert exit.code == 0, exit.code
"""


@pytest.mark.parametrize("text", ["import tilescale", "import perfdb", "import tilescale.cli", DECLARE])
def test_nothing_heavy_is_loaded(text: str) -> None:
    assert run_script(text + SAY).strip() == "[]"


@pytest.mark.parametrize("arguments", ["'--help'", "'tune', '--help'", "'space', '--help'", "'topology', '4xPCIe'"])
def test_nothing_heavy_is_loaded_for_help(arguments: str) -> None:
    assert run_script(CLI.format(arguments=arguments) + SAY).splitlines()[-1] == "[]"


def test_every_public_name_is_there() -> None:
    for name in tilescale.__all__:
        assert getattr(tilescale, name) is not None
        assert name in dir(tilescale)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        tilescale.nothing  # noqa: B018


def test_the_console_script_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "tilescale.cli", "--help"], capture_output=True, text=True, check=True)
    assert "tune" in done.stdout
