"""The file of a table that grows row by row: a run that is cut keeps what it had, and a second one goes on with it."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Summary = Callable[[Sequence[Row]], Mapping[str, Any]]


def ratios(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The geometric mean and the worst of the rows' ratios."""
    found = [row["ratio"] for row in rows if "ratio" in row]
    return {"geomean_ratio": round(statistics.geometric_mean(found), 4) if found else None,
            "min_ratio": min(found, default=None)}


class Written:
    """Rows and where they are written. Every row names the `sources` that it was measured with.

    `head`: the first keys of the result, with its version. `keys`: those that say which row it is. Rows of the same sources
    that are finished are kept, and are `done`; so are, with `keep_older`, those of other sources until they are measured
    again. `finished`: what a row is that need not be measured again; only such a row replaces one. `every_s`: seconds
    between two writings at least, but for one that is to be `now`.
    """

    def __init__(self, path: Path, head: Mapping[str, Any], keys: Sequence[str] = ("label",), *, keep_older: bool = True,
                 finished: Callable[[Row], bool] = lambda row: "ratio" in row,
                 summary: Summary = ratios, every_s: float = 0.0) -> None:
        self._path, self._head, self._keys = path, dict(head), tuple(keys)
        self._finished, self._summary = finished, summary
        self._every_s, self._next_s = every_s, time.monotonic()
        before = json.loads(path.read_text()) if path.exists() else {"rows": []}
        self.rows: list[Row] = []
        for row in before["rows"]:
            sources = row.get("sources", before.get("version"))  # older files name them once
            if finished(row) and (keep_older or sources == self.version):
                self.rows.append({**row, "sources": sources})

    @property
    def version(self) -> str:
        return str(self._head["version"])

    def key(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(row.get(name) for name in self._keys)

    @property
    def mine(self) -> list[Row]:
        """The rows of these sources."""
        return [row for row in self.rows if row["sources"] == self.version]

    @property
    def done(self) -> set[tuple[Any, ...]]:
        return {self.key(row) for row in self.mine if self._finished(row)}

    def add(self, row: Row) -> None:
        """A row of these sources; it is written as `write` does."""
        row["sources"] = self.version
        others = [other for other in self.rows if self.key(other) != self.key(row)]
        if self._finished(row) or len(others) == len(self.rows):
            self.rows = [*others, row]
        self.write()

    @property
    def said(self) -> str:
        """A line on all of them."""
        return json.dumps({"rows": len(self.rows), **self._summary(self.rows)})

    def write(self, *, now: bool = False) -> None:
        """The file as a whole, moved into place: who reads it never finds a part."""
        if not now and time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + self._every_s
        head = json.dumps({**self._head, **self._summary(self.rows)}, indent=1).removesuffix("\n}")
        rows = ",\n  ".join(json.dumps(row) for row in self.rows)  # a line each
        self._path.parent.mkdir(parents=True, exist_ok=True)
        aside = self._path.with_suffix(".new")
        aside.write_text(f'{head},\n "rows": [\n  {rows}\n ]\n}}\n')
        aside.replace(self._path)
