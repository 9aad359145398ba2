"""Proofs that are already known, by protocol digest: in memory, and on disk where asked for.

Only proofs are kept; a refused plan is checked again, because its story names offsets and sizes.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import warnings
from collections import OrderedDict
from dataclasses import asdict
from functools import cache
from pathlib import Path

from tilescale.caches import bounded
from tilescale.schedules.plan import Plan
from tilescale.schedules.story import Stats

Identity = tuple[object, ...]
RECENT = 128  # plans

# The files that decide what a proof means, all that verify.py imports of them: a change of any makes all kept proofs void.
SOURCES = (
    "agents.py",
    "boxes.py",
    "contracting.py",
    "coverage.py",
    "dataflow.py",
    "explain.py",
    "following.py",
    "footprint.py",
    "movement.py",
    "neighbours.py",
    "order.py",
    "packets.py",
    "phases.py",
    "plan.py",
    "proof_cache.py",
    "protocol.py",
    "races.py",
    "ragged_flow.py",
    "residency.py",
    "sharing.py",
    "story.py",
    "verify.py",
)


@cache
def verifier_digest() -> str:
    """16 hex digits of the verifier's own source."""
    room = Path(__file__).parent
    return hashlib.sha256(b"\0".join((room / name).read_bytes() for name in SOURCES)).hexdigest()[:16]


def _identity(plan: Plan, calls: int) -> Identity:
    # Lowering shares roles between schedules that differ only in their tiles, so roles are compared by identity. The
    # cache holds the plan, which keeps its roles alive and their identities their own.
    ranks = tuple(
        (launch.name, launch.stream, launch.after, *map(id, launch.roles)) for rank in plan.ranks for launch in rank
    )
    return (calls, plan.buffers, plan.counters, plan.goal, plan.phases, plan.sm_share, tuple(map(len, plan.ranks)), ranks)


class ProofCache:
    """Statistics of proofs by protocol digest and number of calls.

    With a `directory`, proofs also live there, one small file each, written aside and renamed; unreadable files count
    as absent, and a directory that cannot be written is a warning, and done without.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory
        self.known: dict[tuple[str, int], Stats] = {}
        self.recent: OrderedDict[Identity, tuple[Plan, str]] = OrderedDict()

    @classmethod
    def on_disk(cls) -> ProofCache:
        """The cache in the user's cache directory."""
        import platformdirs

        return cls(Path(platformdirs.user_cache_dir("tilescale")) / "proofs")

    def get(self, digest: str, calls: int) -> Stats | None:
        """What is known of a protocol, or None."""
        stats = self.known.get((digest, calls))
        if stats is None and self.directory is not None:
            stats = _read(self._path(self.directory, digest, calls))
            if stats is not None:
                self.known[digest, calls] = stats
        return stats

    def put(self, digest: str, calls: int, stats: Stats) -> None:
        """Keep a proof."""
        self.known[digest, calls] = stats
        if self.directory is not None:
            try:
                _write(self._path(self.directory, digest, calls), stats)
                bounded(self.directory)
            except OSError as error:
                why = f"proofs are not kept in {self.directory}: {error.strerror or error}"
                warnings.warn(f"{why}; set XDG_CACHE_HOME to a folder that can be written, or use --no-cache",
                              RuntimeWarning, stacklevel=2)
                self.directory = None

    def digest_of(self, plan: Plan, calls: int) -> str | None:
        """The protocol digest of a plan that has the very roles of a recent one, already checked for its sizes."""
        found = self.recent.get(_identity(plan, calls))
        return found[1] if found is not None else None

    def remember(self, plan: Plan, calls: int, digest: str) -> None:
        """Keep the digest of a plan whose sizes are right."""
        self.recent[_identity(plan, calls)] = (plan, digest)
        if len(self.recent) > RECENT:
            self.recent.popitem(last=False)

    def _path(self, directory: Path, digest: str, calls: int) -> Path:
        return directory / verifier_digest() / f"{digest}-{calls}.json"


def _read(path: Path) -> Stats | None:
    try:
        return Stats(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _write(path: Path, stats: Stats) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(dir=path.parent, suffix=".new")
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(asdict(stats), file)
        os.replace(aside, path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise
