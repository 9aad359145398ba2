"""An installation for deployment alone: torch and cuda-python, none of the packages that tuning adds."""

from __future__ import annotations

import subprocess
import sys

import pytest

TUNING = ("typer", "rich", "platformdirs", "filelock", "sqlalchemy", "alembic", "pandas", "optuna", "sklearn", "scipy")
WITHOUT = f"import sys; sys.modules.update(dict.fromkeys({TUNING!r})); "


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", WITHOUT + code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("package", ["tilescale", "perfdb"])
def test_a_command_line_without_its_packages_says_what_to_install(package: str) -> None:
    done = run(f"from {package}.__main__ import main; main()")
    assert done.returncode == 1
    assert done.stderr.startswith("error: the command line needs typer; got: ")
    assert "pip install 'tilescale[" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("package", ["tilescale", "perfdb"])
def test_a_fault_of_the_package_itself_is_not_hidden(package: str) -> None:
    done = run(f"sys.modules['{package}.cli'] = None; from {package}.__main__ import main; main()")
    assert "Traceback" in done.stderr


def test_loading_and_checking_bundles_needs_none_of_them() -> None:
    done = run("import tilescale.deploy.load, tilescale.deploy.checking; print('fine')")
    assert done.stdout == "fine\n", done.stderr


@pytest.mark.parametrize("package", ["tilescale", "perfdb"])
def test_an_interrupt_while_modules_are_imported_is_one_word(package: str) -> None:
    class_text = "class Stop:\n def find_spec(self, name, *_):\n  if name.endswith('.cli'): raise KeyboardInterrupt\n"
    code = f"import sys\n{class_text}sys.meta_path.insert(0, Stop())\nfrom {package}.__main__ import main\nmain()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")
