"""Fused-MoE tuning files of vLLM and SGLang: `E=..,N=..,device_name=..[,dtype=..][,..].json`, a configuration a batch.

They name the winner for each number of tokens and no time: the winners become recommendations, never trials.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfdb.errors import RecordError
from perfdb.importing import Facts, Imported, Recommended, digest
from perfdb.records import ScheduleKey, WorkloadKey

# SGLang keeps the files of a Triton version in a folder of its own, and marks the second GEMM by `_down`.
_NAME = re.compile(r"E=(?P<E>\d+),N=(?P<N>\d+),device_name=(?P<gpu>[^,]+?)(?P<rest>(?:,\w+=(?:\[[^\]]*\]|[^,\[]*?))*)$")
_PART = re.compile(r",(\w+)=(\[[^\]]*\]|[^,]*)")
_FOLDER = re.compile(r"triton_(\d+)_(\d+)_(\d+)")


@dataclass(frozen=True)
class FusedMoe:
    """The importer; see the module."""

    name: str = "fused_moe"

    def fits(self, path: Path, head: bytes) -> bool:
        """See importing.Importer."""
        return path.suffix == ".json" and path.name.startswith("E=") and head.lstrip().startswith(b"{")

    def read(self, path: Path, facts: Facts) -> Imported:
        """See importing.Importer."""
        stem = path.name.removesuffix(".json")
        down = stem.endswith("_down")
        named = _NAME.match(stem.removesuffix("_down"))
        if named is None:
            raise _bad(path, "the name says E, N and device_name")
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise _bad(path, error) from error
        if not isinstance(content, dict):
            raise _bad(path, f"a {type(content).__name__}, not an object")
        parts = {name: value.strip("[] ").replace(" ", "") for name, value in _PART.findall(named["rest"])}
        triton = str(content.pop("triton_version", "")) or _folder_version(path)
        environment = facts.environment_key(gpu=named["gpu"], nvrtc=f"triton {triton}" if triton else "")
        op = facts.op or ("fused_moe_down" if down else "fused_moe")
        sizes = (int(named["E"]), int(named["N"]))
        found = []
        for tokens, knobs in content.items():
            if not tokens.isdigit() or not isinstance(knobs, dict) or not knobs:
                raise _bad(path, f"key {tokens!r}: {knobs!r}")
            found.append(Recommended(_workload(op, int(tokens), *sizes, parts), environment, _schedule(knobs)))
        if not found:
            raise _bad(path, "no configuration")
        return Imported(
            recommended=tuple(found), notes=("the file names winners and no times: kept as recommendations",)
        )


def _bad(path: Path, actual: object) -> RecordError:
    return RecordError(
        "the file is a fused-MoE tuning file: {tokens: {knob: value}}", f"{path}: {actual}", "nothing was stored"
    )


def _folder_version(path: Path) -> str:
    found = _FOLDER.search(path.absolute().parent.name)
    return ".".join(found.groups()) if found else ""


def _workload(op: str, tokens: int, experts: int, size: int, parts: dict[str, str]) -> WorkloadKey:
    """Shape: tokens x experts x N. What else the name says is in the document and the digest."""
    document: dict[str, Any] = {"op": op, "tokens": tokens, "experts": experts, "n": size, **parts}
    shape, dtype = f"{tokens}x{experts}x{size}", parts.get("dtype", "bfloat16")
    label = " ".join([op, shape, dtype, *(f"{name}={value}" for name, value in parts.items() if name != "dtype")])
    return WorkloadKey(digest(document), op, shape, dtype, 1, label, document=json.dumps(document, sort_keys=True))


def _schedule(knobs: dict[str, Any]) -> ScheduleKey:
    text = json.dumps(knobs, sort_keys=True, separators=(",", ":"))
    return ScheduleKey(digest(knobs), " ".join(f"{name}={value}" for name, value in knobs.items()), text)


IMPORTER = FusedMoe()
