"""What every committed result states: the command, the version of the sources, the environment."""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("tilescale/**/*.py", "tilescale/**/*.cuh", "tilescale/**/*.hpp", "perfdb/**/*.py", "benchmarks/**/*.py")


def version() -> str:
    """16 hexadecimal digits over the names and bytes of the sources."""
    total = hashlib.sha256()
    for path in sorted(path for pattern in SOURCES for path in ROOT.glob(pattern)):
        total.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()[:16]


def run(main: Callable[[], int | None]) -> NoReturn:
    """Run a script's `main` and end with its code; an error of tilescale, as without a GPU, is a line and exit 1."""
    from tilescale.errors import TilescaleError

    try:
        code = main()
    except TilescaleError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 1
    sys.exit(code or 0)


def header(name: str) -> dict[str, Any]:
    """The first keys of a result."""
    return {
        "name": name,
        "command": command(),
        "version": version(),
        "environment": environment(),
    }


def command() -> str:
    """The command line; of paths outside of the checkout the name alone."""
    return " ".join(["python", *(Path(word).name if Path(word).is_absolute() else word for word in sys.argv)])


def environment() -> dict[str, str]:
    """The machine, as far as it can be asked; nothing of where it stands."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    try:
        import torch

        found["torch"] = str(torch.__version__)
        if torch.cuda.is_available():
            found |= {"gpu": torch.cuda.get_device_name(), "cuda": str(torch.version.cuda)}
    except ImportError:
        pass
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        driver = pynvml.nvmlSystemGetDriverVersion()
        found["driver"] = driver if isinstance(driver, str) else driver.decode()
        found["power_cap_w"] = str(pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) // 1000)
    except Exception:  # noqa: BLE001 - no driver, or a card that does not say
        pass
    return found
