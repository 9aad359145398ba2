"""One rank of a group: `python -m tilescale.runtime.rank`, started by `group.Group` alone.

A rank acknowledges what it will run before any rank runs it, runs it, reports, and records the group's outcome. What it
runs is up to its worker, named by an import path.
"""

from __future__ import annotations

import argparse
import importlib
import json
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tilescale.processes.frames import Message
from tilescale.processes.worker import ParentLink

ABORTED = "aborted"


class GroupAborted(Exception):
    """Another rank has failed: this call will not complete."""


@dataclass(frozen=True)
class RankReport:
    """What one rank says about one job.

    `status` is one of measure.STATUSES. `samples_us`: one time a call. `condemn`: the state of this rank cannot be
    trusted any more, so the group is started anew before the next job.
    """

    status: str
    samples_us: tuple[float, ...] = ()
    message: str = ""
    condemn: bool = False


@dataclass(frozen=True)
class Exchanged:
    """What each rank gave to an exchange, in the order of ranks."""

    values: tuple[Any, ...]
    blobs: tuple[bytes, ...]


@dataclass
class RankContext:
    """What a worker knows: its `rank` of `world`, the `settings` of its group, and how to meet the other ranks."""

    rank: int
    world: int
    settings: Mapping[str, Any]
    link: ParentLink

    def exchange(self, tag: str, value: Any = None, blob: bytes = b"") -> Exchanged:
        """Give `value` (JSON) and `blob` and get those of all ranks; every rank calls it with the same `tag`.

        Returns once all ranks have come. Raises GroupAborted when one never will.
        """
        self.link.send({"kind": "exchange", "tag": tag, "value": value}, blob)
        message = self.link.receive()
        if message.kind != "exchanged":
            raise GroupAborted(str(message.header.get("message", "")))
        parts, start = [], 0
        for size in message.header["sizes"]:
            parts.append(message.blob[start : start + size])
            start += size
        return Exchanged(tuple(message.header["values"]), tuple(parts))

    def barrier(self, tag: str = "barrier") -> None:
        """Wait for all ranks; raises GroupAborted when one never comes."""
        self.exchange(tag)


class RankWorker(Protocol):
    """What a rank does with a job. The factory `module:name` is called with the RankContext and returns one.

    An Exception from either method fails the job as "launch_error" on every rank and leaves the group running, unless
    `run` says otherwise by a report with `condemn`.
    """

    def prepare(self, job: Mapping[str, Any], blob: bytes) -> str:
        """Make ready to run `job`; returns the digest of what will run, which must equal the group's proposal."""
        ...

    def run(self, job: Mapping[str, Any], blob: bytes) -> RankReport:
        """Run what was prepared."""
        ...


class _Loop:
    """The conversation of one rank with its group."""

    def __init__(self, context: RankContext, worker: RankWorker, step: int) -> None:
        self._link = context.link
        self._rank = context.rank
        self._worker = worker
        self._step = step
        self._history: list[Mapping[str, Any]] = []
        self._proposal = Message({})

    def run(self) -> None:
        """Answer messages until the group is stopped."""
        handlers = {"propose": self._propose, "go": self._go, "outcome": self._outcome, "ask": self._ask}
        while (message := self._link.receive()).kind != "stop":
            if message.kind in handlers:  # an abort that crossed this rank's report needs no answer
                handlers[message.kind](message)

    def _propose(self, message: Message) -> None:
        self._proposal = message
        try:
            digest = self._worker.prepare(message.header["job"], message.blob)
        except Exception as error:  # noqa: BLE001 - reported; the job fails on all ranks
            self._report(_failure(error))
            return
        self._link.send({"kind": "ack", "step": self._step, "digest": digest})

    def _go(self, message: Message) -> None:
        try:
            report = self._worker.run(self._proposal.header["job"], self._proposal.blob)
        except Exception as error:  # noqa: BLE001 - reported; the job fails on all ranks
            report = _failure(error)
        self._report(report)

    def _report(self, report: RankReport) -> None:
        self._link.send(
            {
                "kind": "report",
                "step": self._step,
                "status": report.status,
                "samples_us": report.samples_us,
                "message": report.message,
                "condemn": report.condemn,
            }
        )

    def _outcome(self, message: Message) -> None:
        self._history.append(message.header["outcome"])
        self._step = int(message.header["outcome"]["step"]) + 1

    def _ask(self, message: Message) -> None:
        self._link.send({"kind": "state", "rank": self._rank, "step": self._step, "history": self._history})


def _failure(error: Exception) -> RankReport:
    if isinstance(error, GroupAborted):
        return RankReport(ABORTED, message=str(error))
    traceback.print_exception(error)  # to stderr, which the group quotes if this rank dies
    return RankReport("launch_error", message=f"{type(error).__name__}: {error}")


def main() -> None:
    parser = argparse.ArgumentParser(description="one rank of a group; started by tilescale")
    for name in ("--parent", "--rank", "--world", "--step"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--worker", required=True, help="module:factory")
    parser.add_argument("--settings", type=json.loads, default={}, help="JSON object")
    arguments = parser.parse_args()
    context = RankContext(arguments.rank, arguments.world, arguments.settings, ParentLink(arguments.parent))
    module, _, name = arguments.worker.partition(":")
    worker: RankWorker = getattr(importlib.import_module(module), name)(context)
    context.link.send({"kind": "hello", "rank": context.rank, "step": arguments.step})
    _Loop(context, worker, arguments.step).run()


if __name__ == "__main__":
    from tilescale.runtime import rank  # workers import this module by its name: run that one

    rank.main()
