"""Hearing every rank of a group once: answers, failures, and the exchanges that ranks meet in meanwhile."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tilescale.processes.child import Child, WorkerLost, wait_ready
from tilescale.processes.frames import Message
from tilescale.runtime.rank import ABORTED, RankReport

GRACE_S = 2.0  # for the other ranks to report once one has failed
# Which failure names the cause when ranks report several: a rank that waits for a broken one only times out.
PRECEDENCE = ("illegal", "compile_error", "launch_error", "wrong_result", "compile_timeout", "timeout", "interrupted")
_CONDEMNING = ("wrong_result", "timeout")  # memory may be overwritten, or a kernel may still run


@dataclass(frozen=True)
class Failure:
    """Of one rank. `fatal`: the rank cannot go on, so its group is not kept."""

    status: str
    message: str
    fatal: bool = False


class Gathering:
    """Waits until every rank has sent a message of `kind`, has failed or was aborted, or `limit_s` seconds are over.

    Once a rank has failed, the others have GRACE_S to report, and those that wait in an exchange are released. Ranks
    that are late then have failed too. `answers` and `failures` are by rank.
    """

    def __init__(self, ranks: Sequence[Child], kind: str, limit_s: float) -> None:
        self.answers: dict[int, Message] = {}
        self.failures: dict[int, Failure] = {}
        self._ranks = ranks
        self._kind = kind
        self._limit_s = limit_s
        self._deadline = time.monotonic() + limit_s
        self._waiting: dict[int, Message] = {}  # ranks in an exchange
        self._aborted: set[int] = set()

    def run(self) -> None:
        """Gather; the failures are known afterwards."""
        while missing := self._missing():
            left = self._deadline - time.monotonic()
            if left <= 0:
                # Ranks in an exchange wait for one that never comes: that one is to blame.
                for rank in [rank for rank in missing if rank not in self._waiting] or missing:
                    self._fail(rank, Failure("timeout", f"did not finish within {self._limit_s:g} s", fatal=True))
                return
            children = {self._ranks[rank]: rank for rank in missing}
            for child in wait_ready(list(children), left):
                self._hear(children[child], child)
            self._serve()

    def _missing(self) -> list[int]:
        done = self.answers.keys() | self.failures.keys() | self._aborted
        return [rank for rank in range(len(self._ranks)) if rank not in done]

    def _fail(self, rank: int, failure: Failure) -> None:
        if not self.failures:
            self._deadline = min(self._deadline, time.monotonic() + GRACE_S)
        self.failures[rank] = failure
        self._waiting.pop(rank, None)

    def _hear(self, rank: int, child: Child) -> None:
        try:
            messages = child.receive()
        except WorkerLost as lost:
            self._fail(rank, Failure("launch_error", str(lost), fatal=True))
            return
        for message in messages:
            if message.kind == "exchange":
                self._waiting[rank] = message
            elif message.kind == "report" and message.header["status"] == ABORTED:
                self._aborted.add(rank)
            elif message.kind == "report" and message.header["status"] in PRECEDENCE:
                report = read_report(message)
                fatal = report.condemn or report.status in _CONDEMNING
                self._fail(rank, Failure(report.status, report.message, fatal))
            elif message.kind == self._kind and message.header.get("status", "ok") == "ok":
                self.answers[rank] = message
            else:
                wrong = f"sent {message.kind!r} {message.header.get('status', '')} where {self._kind!r} is due"
                self._fail(rank, Failure("launch_error", wrong, fatal=True))

    def _serve(self) -> None:
        """Complete an exchange that all ranks have come to; release its waiters when one never will."""
        if not self._waiting:
            return
        tags = sorted({str(message.header["tag"]) for message in self._waiting.values()})
        if not self.failures and len(tags) == 1 and not self.answers:
            if len(self._waiting) == len(self._ranks):
                self._complete()
            return
        if not self.failures:
            why = f"waits in exchange {tags}, which ranks {sorted(self.answers)} have left without"
            self._fail(min(self._waiting), Failure("launch_error", why, fatal=True))
        for rank in self._waiting:
            tell(self._ranks[rank], {"kind": "abort", "message": blame(self.failures)})
        self._waiting.clear()

    def _complete(self) -> None:
        messages = [self._waiting[rank] for rank in range(len(self._ranks))]
        values = [message.header["value"] for message in messages]
        sizes = [len(message.blob) for message in messages]
        blob = b"".join(message.blob for message in messages)
        self._waiting.clear()
        for child in self._ranks:
            tell(child, {"kind": "exchanged", "values": values, "sizes": sizes}, blob)


def tell(rank: Child, header: Mapping[str, Any], blob: bytes = b"") -> None:
    """Send a message; one that cannot be sent is seen, and blamed on the rank, when the rank is next waited for."""
    with suppress(WorkerLost):
        rank.send(header, blob, limit_s=1.0)


def blame(failures: Mapping[int, Failure]) -> str:
    """One line that names every rank and what it did."""
    return "; ".join(f"rank {rank} {failure.message}" for rank, failure in sorted(failures.items()))


def read_report(message: Message) -> RankReport:
    """The report in a message."""
    header = message.header
    return RankReport(header["status"], tuple(header["samples_us"]), header["message"], header["condemn"])
