"""Puts the tools of this folder on the path."""

from __future__ import annotations

import sys
from pathlib import Path

for folder in ("", "schedules", "codegen", "proof"):
    path = str(Path(__file__).parent.parent / folder)
    if path not in sys.path:
        sys.path.insert(0, path)
