"""Which code a session ran: what `perfdb compare --before commit=...` tells apart."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
_LIMIT_S = 10


@cache
def revision(package: Path = PACKAGE) -> str:
    """The commit of the checkout that `package` is part of, with "+" where its files differ from it; else "v" and the
    version of the installed package."""
    from tilescale import __version__

    if not (package.parent / ".git").exists():
        return f"v{__version__}"
    commit = _git(package, "rev-parse", "HEAD")
    if not commit:
        return f"v{__version__}"
    return commit + ("+" if _git(package, "status", "--porcelain", "--", ".") else "")


def _git(package: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(package), *words], capture_output=True, text=True, timeout=_LIMIT_S,
                              check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
