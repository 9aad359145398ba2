"""Detectors of changes, one a file. A file holds one class that obeys `detecting.Detector` and calls it `DETECTOR`."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from typing import cast

from perfdb.detecting import Detector
from perfdb.errors import RecordError

DEFAULT = "quiet"


@cache
def detectors() -> dict[str, Detector]:
    """All detectors by name, in the order of their names."""
    found = {}
    for name in sorted(module.name for module in pkgutil.iter_modules(__path__)):
        detector = cast(Detector, import_module(f"{__name__}.{name}").DETECTOR)
        found[detector.name] = detector
    return found


def detector(name: str = DEFAULT) -> Detector:
    """The detector of that name. Errors: RecordError naming those there are."""
    known = detectors()
    if name not in known:
        raise RecordError(f"a detector is one of {', '.join(known)}", name)
    return known[name]
