"""What a bundle holds, for people and for machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilescale import canon
from tilescale.deploy.bundle import read
from tilescale.deploy.manifest import Manifest, Variant
from tilescale.deploy.preflight import cuda_text

_COLUMNS = ("operation", "spec", "schedule", "best", "source", "proof", "emulation")


@dataclass(frozen=True)
class Shown:
    """`str()` is a table for people; `as_json()` the whole manifest with the bundle's digest, JSON-able."""

    path: str
    manifest: Manifest

    @property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """One row a variant, with the columns of the table."""
        return tuple(_row(entry.name, variant) for entry in self.manifest.operations for variant in entry.variants)

    def as_json(self) -> dict[str, Any]:
        return {"path": self.path, "digest": self.manifest.digest, **canon.encode(self.manifest)}

    def __str__(self) -> str:
        m = self.manifest
        need = f"CUDA {cuda_text(m.minimum_cuda)} (driver {m.minimum_driver})" if m.minimum_cuda else "no kernels"
        size = sum(entry.size for entry in m.files)
        binaries = f"{len(m.kernels)} kernels for {', '.join(m.archs) or 'no GPU'}"
        lines = [
            self.path,
            f"  bundle {m.digest}, format {m.format}, made {m.created} by tilescale {m.tilescale}",
            f"  {m.world} ranks of {', '.join(t.name for t in m.topologies)}",
            f"  {binaries}; needs {need}; {len(m.files)} files, {size} bytes",
        ]
        return "\n".join([*lines, "", *_table((_COLUMNS, *self.rows))])


def show(path: str | Path) -> Shown:
    """Raises BundleError where `path` is no bundle. Files other than the manifest are not looked at."""
    bundle = read(path)
    return Shown(str(bundle.root), bundle.manifest)


def _row(name: str, variant: Variant) -> tuple[str, ...]:
    evidence = variant.evidence
    best = "not timed" if evidence.best_us is None else f"{evidence.best_us:.1f} us"
    return (name, variant.spec.label, f"{variant.schedule.label} ({variant.schedule_digest})", best, evidence.source,
            evidence.proof, evidence.emulation)


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as they need to be; nothing is cut."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows)
    return [f"  {'  '.join(cells)}".rstrip() for cells in padded]
