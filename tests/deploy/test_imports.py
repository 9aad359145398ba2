"""What loading a bundle needs, and nothing more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tilescale import deploy

SEARCH = ("optuna", "sqlalchemy", "pandas", "sklearn", "scipy", "alembic", "platformdirs", "typer", "rich",
          "tilescale.tuner", "tilescale.runtime", "tilescale.costmodel", "perfdb")
HEAVY = ("torch", "cuda", "numpy")


def modules_after(code):
    done = subprocess.run([sys.executable, "-c", f"{code}\nimport sys; print(' '.join(sys.modules))"], text=True,
                          capture_output=True, check=True)
    return set(done.stdout.split())


def test_importing_loads_neither_torch_nor_cuda():
    """All of the room but torch_ops, whose import defines operators."""
    names = sorted(path.stem for path in Path(deploy.__file__).parent.glob("*.py") if path.stem != "torch_ops")
    assert "load" in names
    imports = "; ".join(f"import tilescale.deploy.{name}" for name in names)
    assert not modules_after(imports) & {*SEARCH, *HEAVY}


def test_checking_and_showing_load_neither(exported):
    code = ("from tilescale.deploy.checking import check; from tilescale.deploy.show import show; import sys\n"
            f"assert check({str(exported)!r}, lambda: 'none').ok; str(show({str(exported)!r}))")
    assert not modules_after(code) & {*SEARCH, *HEAVY}


def test_the_loader_loads_nothing_of_the_search(exported):
    code = (f"import tilescale as ts\ntry:\n    ts.load({str(exported)!r})\nexcept ts.TilescaleError as error:\n"
            "    assert 'GPU' in str(error) or 'torch.distributed' in str(error), error\nelse:\n    raise SystemExit(3)")
    found = modules_after(code)
    assert "torch" in found
    assert not found & set(SEARCH)


def test_without_torch_the_loader_says_what_to_install(exported):
    code = ("import sys; sys.modules['torch'] = None\nimport tilescale as ts\nfrom tilescale.errors import "
            f"MissingDependency\ntry:\n    ts.load({str(exported)!r})\nexcept MissingDependency as error:\n"
            "    assert 'pip install torch' in str(error), error\nelse:\n    raise SystemExit(3)")
    modules_after(code)


def test_without_cuda_python_the_check_says_so(exported):
    code = ("import sys; sys.modules['cuda.bindings'] = None\nfrom tilescale.deploy.checking import check\n"
            f"report = check({str(exported)!r})\nassert report.ok\nassert 'pip install' in report.unchecked[0], report")
    modules_after(code)
