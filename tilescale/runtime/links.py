"""Calibrates the links between ranks: latency and rate of every pair, transport, direction and block count; flags."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from tilescale import canon
from tilescale.codegen.compile import Binary, CompileFailure, Compiler, Source
from tilescale.errors import RunnerError
from tilescale.runtime import gpu_links, link_job
from tilescale.runtime.device_lock import DeviceLock
from tilescale.runtime.gpu_placement import RankFacts, check_placement, place
from tilescale.runtime.gpu_runner import START_LIMIT_S, VARIABLES
from tilescale.runtime.group import Group, Outcome
from tilescale.runtime.link_job import PING, Case, Row
from tilescale.runtime.mps import MpsDaemon
from tilescale.spec.topology import Topology

JOB_LIMIT_S = 60.0
CHECK_BYTES = 1 << 20


class LinkProbe:
    """The ranks of `topology`, each on its GPU or its share of one. They start with the first question.

    `large_bytes`: of the copies that are timed for their rate. `gpus`, `cache_dir`: as of GpuRunner. Ranks that share a
    GPU answer too; what they say is of its memory, and labelled so by `source`. RunnerError where ranks are not placed
    as the topology says, cannot reach each other, or copy wrongly.
    """

    def __init__(self, topology: Topology, *, large_bytes: int = link_job.LARGE_BYTES, samples: int = 5,
                 gpus: Sequence[str] | None = None, cache_dir: str | Path | None = None,
                 worker: str = gpu_links.WORKER) -> None:
        if topology.kind == "scale_model":
            raise RunnerError("links are measured where they are", topology.name, "use the real topology or shared_gpu")
        self.topology, self.large_bytes, self._samples = topology, large_bytes, samples
        self._shared, self._gpus = topology.kind != "real", gpus
        self._cache_dir, self._worker = cache_dir, worker
        self._mps, self._lock = MpsDaemon(), DeviceLock()
        self._group: Group | None = None
        self.facts: tuple[RankFacts, ...] = ()

    @property
    def source(self) -> str:
        """The label of what is measured."""
        return self.topology.source

    def start(self) -> tuple[RankFacts, ...]:
        """Start the ranks, and say what they are."""
        if self._group is None:
            try:
                self._start()
            except BaseException:
                self.close()
                raise
        return self.facts

    def _start(self) -> None:
        placed = place(self.topology, self._gpus) if not self._shared else {}
        if self._shared:
            self._mps.start()
            placed = self._mps.environment
        share = self.topology.sm_share if self._shared else 0
        settings = {"share_sms": share, "bytes": self.large_bytes, "time_limit_s": 5.0}
        self._group = Group(self.topology.world, self._worker, settings=settings, start_limit_s=START_LIMIT_S,
                            environment={**VARIABLES, **placed})
        kernels, blob = self._kernels()
        outcome = self._do({"do": "facts", "kernels": kernels}, blob)
        self.facts = tuple(RankFacts.read(report.message) for report in outcome.reports)
        check_placement(self.topology, self.facts)
        self._mps.watch(self._group.pids)
        self._lock.acquire(facts.uuid for facts in self.facts)

    def _kernels(self) -> tuple[list[list[Any]], bytes]:
        """Name, entry, threads, shared bytes and size of the binary of each kernel; and the binaries."""
        copies = link_job.copy_kernels(self.topology)
        sources = [Source(each.kernel.text, each.kernel.entry, each.kernel.arch) for each in copies]
        sources.append(gpu_links.ping_source(self.topology.gpu.arch))
        with Compiler(None, self._cache_dir) as compiler:
            made = compiler.compile(sources)
        failed = [each.message for each in made if isinstance(each, CompileFailure)]
        if failed:
            raise RunnerError("the kernels of the calibration compile", failed[0])
        binaries = [each.cubin for each in made if isinstance(each, Binary)]
        facts = [(c.transport, c.kernel.entry, c.threads, c.shared_bytes) for c in copies]
        facts.append((PING, gpu_links.PING_ENTRY, gpu_links.PING_THREADS, 0))
        return [[*fact, len(binary)] for fact, binary in zip(facts, binaries, strict=True)], b"".join(binaries)

    # -- questions -----------------------------------------------------------------------------------------------------
    def check(self, source: int, target: int) -> None:
        """Every transport, both ways to ask for it, from rank `source` to rank `target`: RunnerError on a wrong byte."""
        for transport in link_job.TRANSPORTS:
            for direction in link_job.DIRECTIONS:
                blocks = 0 if transport == "copy_engine" else 3
                self._ask("check", source, target, [Case(transport, direction, blocks, min(CHECK_BYTES, self.large_bytes))])

    def copies(self, source: int, target: int, cases: Sequence[Case]) -> list[Row]:
        """Bytes from rank `source` to rank `target` while nothing else moves."""
        rows = []
        for direction in link_job.DIRECTIONS:
            part = [case for case in cases if case.direction == direction]
            if part:
                actor, answers = self._ask("copy", source, target, part)
                rows += [Row(source, target, case, (tuple(samples),))
                         for case, samples in zip(part, answers[actor], strict=True)]
        return rows

    def ping(self, source: int, target: int, trips: int = link_job.TRIPS) -> Row:
        """A flag from rank `source` to rank `target` and back."""
        case = Case(PING, "put", 1, 4)
        actor, answers = self._ask("ping", source, target, [case], trips=trips)
        return Row(source, target, case, (tuple(answers[actor][0]),))

    def together(self, cases: Sequence[Case]) -> list[Row]:
        """Every rank copies to, or from, every other at once, `size_bytes` each in all."""
        _, answers = self._ask("together", 0, 1, cases)
        return [Row(-1, -1, case, tuple(tuple(answers[rank][number]) for rank in range(self.topology.world)))
                for number, case in enumerate(cases)]

    def _ask(self, what: str, source: int, target: int, cases: Sequence[Case], **more: Any) -> tuple[int, dict[int, Any]]:
        """The rank that acts, and what each rank answers."""
        self.start()
        actor, peer = (source, target) if cases[0].direction == "put" else (target, source)
        job = {"do": what, "actor": actor, "peer": peer, "samples": self._samples,
               "cases": [canon.encode(case) for case in cases], **more}
        outcome = self._do(job)
        return actor, {rank: json.loads(report.message) for rank, report in enumerate(outcome.reports) if report.message}

    def _do(self, job: Mapping[str, Any], blob: bytes = b"") -> Outcome:
        assert self._group is not None
        outcome = self._group.run(job, canon.digest(job), blob=blob, limit_s=JOB_LIMIT_S)
        if not outcome.ok:
            raise RunnerError("the links can be measured", f"{outcome.status}: {outcome.message}", "see the message")
        return outcome

    def close(self) -> None:
        """End the ranks; may be called twice."""
        group, self._group = self._group, None
        with suppress(RunnerError):
            if group is not None:
                group.close()
        self._mps.stop()
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
