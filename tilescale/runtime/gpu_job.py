"""What the runner asks its ranks to do, as messages: the same text on both sides, so that a digest can be agreed on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilescale import canon
from tilescale.codegen.program import Program
from tilescale.runtime.sampling import Bounds
from tilescale.spec.declaration import Spec


@dataclass(frozen=True)
class Contestant:
    """Who is timed: a `program`, or with None the library path called `name` (see baselines.NAMES)."""

    name: str
    program: Program | None = None


@dataclass(frozen=True)
class Race:
    """Contestants checked, then timed in turn for `rounds` rounds. One round of one contestant takes samples until
    `bounds` are met; of several, `bounds.minimum` each, so that all meet the same conditions."""

    spec: Spec
    contestants: tuple[Contestant, ...]
    rounds: int
    bounds: Bounds

    @property
    def digest(self) -> str:
        """What every rank acknowledges."""
        who = [(each.name, each.program.digest if each.program else "") for each in self.contestants]
        return canon.digest([self.spec.digest, who, self.rounds, self.bounds])


def encode(race: Race, binaries: Mapping[str, bytes]) -> tuple[dict[str, Any], bytes]:
    """The job and its blob; `binaries` are cubins by kernel digest."""
    names = sorted(binaries)
    job = {"do": "race", "race": canon.encode(race), "binaries": [[name, len(binaries[name])] for name in names]}
    return job, b"".join(binaries[name] for name in names)


def decode(job: Mapping[str, Any], blob: bytes) -> tuple[Race, dict[str, bytes]]:
    """The other way."""
    return canon.decode(Race, job["race"]), split(job["binaries"], blob)


def split(sizes: Sequence[Sequence[Any]], blob: bytes) -> dict[str, bytes]:
    """The named parts of a blob."""
    found, at = {}, 0
    for name, size in sizes:
        found[str(name)] = blob[at : at + size]
        at += size
    return found
