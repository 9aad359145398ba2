"""Recorded spaces of tilescale: gzip of JSON lines, a header, then `[knob values, status, samples, message]` a schedule.

The keys are those under which tilescale itself records the same trials, so that both find each other.
"""

from __future__ import annotations

import gzip
import json
import statistics
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from perfdb.errors import RecordError
from perfdb.importing import Facts, Imported, digest
from perfdb.records import ENVIRONMENT_FIELDS, SOURCES, ScheduleKey, TopologyKey, TrialRecord, WorkloadKey

FORMAT = 1
NEEDED = ("format", "spec", "source", "environment", "created", "version", "knobs", "rows", "digest")


@dataclass(frozen=True)
class RecordedSpace:
    """The importer; see the module."""

    name: str = "recorded_space"

    def fits(self, path: Path, head: bytes) -> bool:
        """See importing.Importer."""
        return head.startswith(b"\x1f\x8b") and path.name.endswith(".jsonl.gz")

    def read(self, path: Path, facts: Facts) -> Imported:
        """See importing.Importer."""
        header, lines = _parts(path)
        try:
            return Imported(tuple(_trials(header, lines, facts)))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise _bad(path, f"it holds a spec and rows: {type(error).__name__} {error}") from error


def _bad(path: Path, actual: object) -> RecordError:
    return RecordError("the file is a whole recorded space", f"{path}: {actual}", "record it again; nothing was stored")


def _parts(path: Path) -> tuple[Mapping[str, Any], list[bytes]]:
    import hashlib

    try:
        first, _, body = gzip.decompress(path.read_bytes()).partition(b"\n")
        header = json.loads(first)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise _bad(path, error) from error
    missing = [name for name in NEEDED if not isinstance(header, dict) or name not in header]
    if missing or header["format"] != FORMAT:
        raise _bad(path, f"format {header.get('format')}" if not missing else f"no {', '.join(missing)} in its header")
    lines = body.splitlines()
    if (len(lines), hashlib.sha256(body).hexdigest()[:16]) != (header["rows"], header["digest"]):
        raise _bad(path, f"{len(lines)} rows of {header['rows']}, or altered")
    return header, lines


def _trials(header: Mapping[str, Any], lines: Sequence[bytes], facts: Facts) -> list[TrialRecord]:
    spec, source = header["spec"], str(header["source"])
    if source not in SOURCES:
        raise ValueError(f"source {source}")
    topology = _topology(spec["topology"])
    workload = _workload(spec, topology.world)
    stated = {name: value for name, value in header["environment"].items() if name in ENVIRONMENT_FIELDS}
    stated.setdefault("gpu", spec["topology"]["gpu"]["model"])
    stated.setdefault("arch", spec["topology"]["gpu"]["arch"])
    stated.setdefault("gpu_count", topology.world if topology.kind == "real" else 1)
    environment = facts.environment_key(**stated)
    created = datetime.fromisoformat(header["created"])
    trials = []
    for line in lines:
        values, status, samples, message = json.loads(line)
        knobs = dict(zip(header["knobs"], values, strict=True))
        ranks = tuple(tuple(map(float, rank)) for rank in samples)
        trials.append(
            TrialRecord(
                workload,
                topology,
                environment,
                ScheduleKey(digest(knobs), _label(knobs), _canonical(knobs)),
                source,
                status,
                statistics.median(map(max, zip(*ranks, strict=True))) if status == "ok" else None,
                samples_us=ranks,
                message=message,
                recorded_at=created,
            )
        )
    return trials


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _label(knobs: Mapping[str, Any]) -> str:
    """The values that say something, names only for numbers."""
    parts = []
    for name, value in knobs.items():
        if isinstance(value, str):
            parts.append(value)
        elif value:
            parts.append(f"{name}={value}")
    return " ".join(parts)


def _workload(spec: Mapping[str, Any], world: int) -> WorkloadKey:
    tensors = [{"type": "Tensor", **tensor} for tensor in (*spec["inputs"], spec["output"])]
    rest = [spec[name] for name in ("placement", "deterministic", "then", "attributes")]
    identity = digest([[spec["op"], tensors[:-1], tensors[-1], *rest], world])
    shapes = [[_size(size) for size in tensor["shape"]] for tensor in spec["inputs"]]
    matmul = len(shapes) == 2 and all(len(shape) == 2 for shape in shapes)
    sizes = [shapes[0][0], shapes[1][1], shapes[0][1]] if matmul else shapes[0]
    shape, dtype = "x".join(map(str, sizes)), str(spec["inputs"][0]["dtype"])
    label = f"{spec['op']} {shape} {dtype} w{world}"
    return WorkloadKey(identity, spec["op"], shape, dtype, world, label, document=_canonical(spec))


def _size(size: Any) -> int:
    """A number, or the upper bound of a size that is known at run time only."""
    return int(size["high"]) if isinstance(size, Mapping) else int(size)


def _topology(topology: Mapping[str, Any]) -> TopologyKey:
    """Its digest is over the structure: not the name, nor rates, but for the link of a scale model."""
    gpu, levels = topology["gpu"], []
    for level in topology["levels"]:
        link = level["link"]
        facts = None if link is None else [link[name] for name in ("kind", "nominal_gbps", "peer_access", "multicast")]
        levels.append([level["name"], level["units"], level["memory_bytes"], facts])
    links = [level["link"] for level in topology["levels"] if level["link"] is not None]
    imposed = links[-1]["gbps"] if topology["kind"] == "scale_model" else None
    names = ("model", "arch", "sms", "smem_bytes", "regs_per_sm", "l2_bytes", "copy_engines")
    mesh = [size for _, size in topology["mesh"]] if len(topology["mesh"]) > 1 else []
    identity = digest([topology["kind"], topology["ranks"], [gpu[name] for name in names], levels, imposed, mesh])
    return TopologyKey(
        identity,
        topology["name"],
        topology["kind"],
        int(topology["ranks"]),
        gpu["model"],
        _canonical(topology),
    )


IMPORTER = RecordedSpace()
