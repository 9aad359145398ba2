"""Replay files: a failed emulation as a small JSON file from which the same run is made again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tilescale import canon
from tilescale.codegen.compile import INCLUDE, headers_digest
from tilescale.errors import EmulationError, TilescaleError
from tilescale.runtime.emulate import Conditions, Emulation, check_run, emulate
from tilescale.schedules.schedule import Schedule
from tilescale.spec.declaration import Spec

FORMAT = 1


@dataclass(frozen=True)
class Replay:
    """What decides a run: the declaration, the schedule, the seed and the adversary. `library`: digest of the device
    library that failed; `report`: what was found then.
    """

    format: int
    spec: Spec
    schedule: Schedule
    seed: int
    adversary: str
    conditions: Conditions
    library: str
    report: str


def write(folder: Path, spec: Spec, schedule: Schedule, emulation: Emulation, conditions: Conditions) -> Path:
    """Write the replay file of a failed emulation into `folder`; its path. Equal runs give one file."""
    replay = Replay(FORMAT, spec, schedule, emulation.seed, emulation.adversary, conditions, headers_digest(INCLUDE),
                    emulation.report)
    text = canon.dumps(replay)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"emulation-{canon.digest_bytes(text.encode())}.json"
    path.write_text(text + "\n")
    return path


def read(path: Path) -> Replay:
    """The replay in a file. Raises EmulationError where it is none, of another format, or holds what no run can have."""
    try:
        replay = canon.loads(Replay, path.read_text(encoding="utf-8"))
    except OSError as error:
        raise EmulationError(f"replay file {path} can be read", error.strerror, "check the path") from None
    except RecursionError:
        raise EmulationError(f"{path} is a replay file", "brackets in brackets", "use one that a run wrote") from None
    except (TilescaleError, ValueError, LookupError) as error:
        remedy = "`tilescale emulate` writes one where it fails"
        raise EmulationError(f"{path} is a replay file", str(error), remedy) from None
    if replay.format != FORMAT:
        raise EmulationError(f"a replay file has format {FORMAT}", replay.format, "emulate again with this version")
    try:
        check_run(replay.spec, replay.seed, replay.adversary, replay.conditions)
    except EmulationError as error:
        raise EmulationError(f"replay file {path}: {error.rule}", error.actual, error.remedy) from None
    return replay


def run(replay: Replay) -> tuple[Emulation, bool]:
    """The same run again, and whether the device library has changed since."""
    emulation = emulate(replay.spec, replay.schedule, replay.seed, replay.adversary, conditions=replay.conditions)
    return emulation, replay.library != headers_digest(INCLUDE)
