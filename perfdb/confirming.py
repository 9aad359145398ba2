"""Confirming a suspected change where the machine is at hand: the old and the new are measured anew, interleaved.

How to measure is not known here. A package that can offers a function under the entry point group `perfdb.confirm`;
it gets a `Request` and returns pairs of times taken one after the other, old first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import entry_points

from perfdb.errors import DatabaseError, RecordError
from perfdb.session import Database
from perfdb.watching import Finding

GROUP = "perfdb.confirm"
ROUNDS = 20
# A change is confirmed if the re-measured one goes the same way and reaches this part of it.
PART = 0.5
CONFIDENCE_Z = 2.576
_SIDE = (
    "SELECT schedule.digest, schedule.document, workload.digest, workload.document, topology.document,"
    " environment.digest, coalesce(artifact.binary_digest, ''), coalesce(artifact.table_digest, '')"
    " FROM trial JOIN schedule ON schedule.id = trial.schedule_id JOIN workload ON workload.id = trial.workload_id"
    " JOIN topology ON topology.id = trial.topology_id JOIN environment ON environment.id = trial.environment_id"
    " LEFT JOIN artifact ON artifact.id = trial.artifact_id WHERE trial.id = ?"
)


@dataclass(frozen=True)
class Side:
    """What a trial ran. Documents are the JSON texts that were stored with the keys."""

    trial_id: int
    value_us: float
    schedule: str
    schedule_document: str
    workload: str
    workload_document: str
    topology_document: str
    environment: str
    binary_digest: str
    table_digest: str


@dataclass(frozen=True)
class Request:
    """Please measure `before` and `after` in turn, `rounds` times."""

    before: Side
    after: Side
    rounds: int


Confirmer = Callable[[Request], Sequence[tuple[float, float]]]


def confirmer(name: str | None = None) -> Confirmer:
    """The installed function of that name, or the only one. Errors: DatabaseError naming those there are."""
    found = {point.name: point for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)}
    if name is None and len(found) == 1:
        name = next(iter(found))
    if name not in found:
        raise DatabaseError(
            f"--confirm needs a function under the entry point group {GROUP}",
            f"asked for {name or 'the only one'}, installed: {', '.join(found) or 'none'}",
            "install a package that offers one, or name it with --confirm-with",
        )
    function: Confirmer = found[name].load()
    return function


def confirm(db: Database, finding: Finding, measure: Confirmer, rounds: int = ROUNDS) -> Finding:
    """The finding with its verdict as `state` and the figures as `remark`.

    "confirmed": the median of the paired log ratios goes the same way, by at least `PART` of the change that was seen,
    and its 99 % interval leaves out no change. Else "dismissed".
    """
    if finding.change is None:
        return finding
    before, after = (_side(db, finding.line.trials[at], finding) for at in (finding.first - 1, finding.first))
    try:
        pairs = list(measure(Request(before, after, rounds)))
    except Exception as error:
        rule = "the confirmer measures both sides"
        raise DatabaseError(rule, f"{type(error).__name__}: {error}", "mend that, or leave --confirm out") from error
    if len(pairs) < 5 or not all(a > 0 and b > 0 and math.isfinite(a) and math.isfinite(b) for a, b in pairs):
        raise RecordError("a confirmation returns at least 5 pairs of times above 0", pairs[:3], "mend the confirmer")
    ratios = sorted(math.log(new / old) for old, new in pairs)
    # The order statistics that enclose the median: no assumption on the noise, outliers count as one each.
    reach = int(CONFIDENCE_Z * math.sqrt(len(ratios)) / 2 + 1)
    low, high = ratios[max(0, len(ratios) // 2 - reach)], ratios[min(len(ratios) - 1, (len(ratios) - 1) // 2 + reach)]
    middle = (ratios[len(ratios) // 2] + ratios[(len(ratios) - 1) // 2]) / 2
    seen = math.log(finding.change.ratio)
    same = middle * seen > 0 and abs(middle) >= PART * abs(seen) and (low > 0 or high < 0)
    percent = [100 * math.expm1(value) for value in (middle, low, high)]
    remark = f"re-measured {len(pairs)} times: {percent[0]:+.2f} % ({percent[1]:+.2f} to {percent[2]:+.2f})"
    return replace(finding, state="confirmed" if same else "dismissed", remark=remark)


def _side(db: Database, trial: int, finding: Finding) -> Side:
    (row,) = db.rows(_SIDE, (trial,))
    value = finding.line.values_us[finding.line.trials.index(trial)]
    return Side(trial, value, *row)
