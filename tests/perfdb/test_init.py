"""perfdb: the public names are there, and importing the package is cheap."""

from __future__ import annotations

import subprocess
import sys

import pytest

import perfdb


def test_importing_loads_no_heavy_library_and_nothing_of_tilescale() -> None:
    code = (
        "import sys, perfdb\n"
        "perfdb.TrialRecord, perfdb.DatabaseError\n"
        "heavy = {'sqlalchemy', 'pandas', 'numpy', 'alembic', 'typer', 'rich', 'tilescale', 'torch'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_the_whole_package_imports_nothing_of_tilescale() -> None:
    code = (
        "import sys, perfdb, perfdb.cli, perfdb.checking\n"
        "[getattr(perfdb, name) for name in perfdb.__all__]\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('tilescale', 'torch', 'optuna')])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


@pytest.mark.parametrize("name", perfdb.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(perfdb, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = perfdb.nonsense  # type: ignore[attr-defined]
