"""A group of rank processes that decides once, fails together and starts anew as a whole.

The parent proposes a job with its digest. Every rank prepares it and acknowledges the digest of what it will run; only
when all agree do they run it. A failure of one rank is the outcome of all. A rank that hangs, dies or garbles its
messages costs the job its limit and the group a restart; ranks that share a GPU may all be damaged by one, so none is
kept.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from tilescale.errors import RunnerError
from tilescale.processes.child import Child, kill_all, stop_all
from tilescale.processes.frames import Message
from tilescale.runtime.gather import PRECEDENCE, Failure, Gathering, blame, read_report, tell
from tilescale.runtime.rank import RankReport

_MODULE = "tilescale.runtime.rank"
_HISTORY = 16  # outcomes told to ranks that start anew


@dataclass(frozen=True)
class Outcome:
    """What the group decided about one job. `reports[r]` of rank r; empty unless every rank is ok."""

    step: int
    digest: str
    status: str
    message: str = ""
    reports: tuple[RankReport, ...] = ()

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    @property
    def samples_us(self) -> tuple[tuple[float, ...], ...]:
        """The samples of every rank, microseconds."""
        return tuple(report.samples_us for report in self.reports)


@dataclass(frozen=True)
class RankState:
    """What a rank knows: its next `step`, and the outcomes it has recorded as (step, digest, status)."""

    rank: int
    step: int
    history: tuple[tuple[int, str, str], ...]


class Group:
    """`world` rank processes with a worker each (`module:factory`, see rank.RankWorker), started at the first job.

    `settings` (JSON) goes to every worker, `environment` to every process. `start_limit_s` bounds a start or restart of
    the whole group. After an exception (Ctrl-C is one), `close`, or the end of this process no rank is left.
    `restarts` counts the times the group was started anew.
    """

    def __init__(
        self,
        world: int,
        worker: str,
        *,
        settings: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        start_limit_s: float = 10.0,
    ) -> None:
        if world < 1:
            raise RunnerError("a group has at least one rank", world)
        self.world = world
        self.restarts = 0
        self._worker = worker
        self._settings = json.dumps(dict(settings or {}), sort_keys=True, allow_nan=False)
        self._environment = dict(environment or {})
        self._start_limit_s = start_limit_s
        self._ranks: list[Child] = []
        self._step = 0
        self._history: deque[Outcome] = deque(maxlen=_HISTORY)
        self._closed = False

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the ranks, in order; empty while the group is down."""
        return tuple(rank.pid for rank in self._ranks)

    def run(self, job: Mapping[str, Any], digest: str, *, blob: bytes = b"", limit_s: float) -> Outcome:
        """Run `job` on all ranks; `digest` is what each must acknowledge. A failure is an Outcome.

        Preparing has `limit_s` seconds and running has as many. Raises RunnerError when ranks cannot be started.
        """
        try:
            self._start()
            outcome, keep = self._decide(job, digest, blob, limit_s)
            self._step += 1
            self._history.append(outcome)
            if not keep:
                self._kill()
            for rank in self._ranks:
                tell(rank, {"kind": "outcome", "outcome": _record(outcome)})
        except BaseException:
            self._kill()
            raise
        return outcome

    def states(self, limit_s: float = 10.0) -> tuple[RankState, ...]:
        """Ask every rank what it knows, as a barrier does; a group that is down is started first.

        Raises RunnerError naming the ranks that do not answer in `limit_s` seconds; the group is down then.
        """
        try:
            self._start()
            phase = self._ask({"kind": "ask"}, "state", limit_s)
            if phase.failures:
                raise RunnerError("every rank answers", blame(phase.failures))
        except BaseException:
            self._kill()
            raise
        return tuple(_state(phase.answers[rank]) for rank in range(self.world))

    def close(self) -> None:
        """End every rank; may be called twice."""
        self._closed = True
        ranks, self._ranks = self._ranks, []
        stop_all(ranks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # --- starting and ending ---

    def _start(self) -> None:
        if self._closed:
            raise RunnerError("a closed group runs no jobs", remedy="make a new one")
        if self._ranks and all(rank.alive for rank in self._ranks):
            return
        self._kill()
        self.restarts += 1 if self._step else 0
        for rank in range(self.world):
            where = ["--rank", str(rank), "--world", str(self.world), "--step", str(self._step)]
            what = ["--worker", self._worker, "--settings", self._settings]
            self._ranks.append(Child(_MODULE, [*where, *what], self._environment))
        phase = Gathering(self._ranks, "hello", self._start_limit_s)
        phase.run()
        if phase.failures:
            raise RunnerError(
                f"all {self.world} ranks start within {self._start_limit_s:g} s",
                blame(phase.failures),
                "see the message of the rank; raise start_limit_s on a machine that is very busy",
            )
        for outcome in self._history:
            for child in self._ranks:
                tell(child, {"kind": "outcome", "outcome": _record(outcome)})

    def _kill(self) -> None:
        ranks, self._ranks = self._ranks, []
        kill_all(ranks)

    # --- one job ---

    def _decide(self, job: Mapping[str, Any], digest: str, blob: bytes, limit_s: float) -> tuple[Outcome, bool]:
        """The outcome, and whether the group can be kept."""
        proposal = {"kind": "propose", "step": self._step, "digest": digest, "job": dict(job)}
        phase = self._ask(proposal, "ack", limit_s, blob)
        for rank, ack in phase.answers.items():
            if (ack.header["step"], ack.header["digest"]) != (self._step, digest):
                said = f"step {ack.header['step']} digest {ack.header['digest']}"
                agreed = f"the group agreed on step {self._step} digest {digest}"
                phase.failures[rank] = Failure("launch_error", f"would run {said}, {agreed}", fatal=True)
        if not phase.failures:
            phase = self._ask({"kind": "go", "step": self._step}, "report", limit_s)
        if not phase.failures:
            reports = tuple(read_report(phase.answers[rank]) for rank in range(self.world))
            return Outcome(self._step, digest, "ok", reports=reports), not any(r.condemn for r in reports)
        status = min((f.status for f in phase.failures.values()), key=PRECEDENCE.index)
        causes = {rank: failure for rank, failure in phase.failures.items() if failure.status == status}
        keep = not any(failure.fatal for failure in phase.failures.values())
        return Outcome(self._step, digest, status, blame(causes)), keep

    def _ask(self, header: Mapping[str, Any], kind: str, limit_s: float, blob: bytes = b"") -> Gathering:
        phase = Gathering(self._ranks, kind, limit_s)
        for rank in self._ranks:
            tell(rank, header, blob)
        phase.run()
        return phase


def _record(outcome: Outcome) -> dict[str, Any]:
    return {name: value for name, value in asdict(outcome).items() if name != "reports"}


def _state(message: Message) -> RankState:
    history = tuple((o["step"], o["digest"], o["status"]) for o in message.header["history"])
    return RankState(message.header["rank"], message.header["step"], history)
