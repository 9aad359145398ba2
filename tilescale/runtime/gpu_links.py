"""One rank of a calibration of links: copies to and from peers by the kernels that schedules use, and flags."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilescale import canon
from tilescale.codegen.compile import Source
from tilescale.codegen.program import COUNTER_BYTES, STATE_BYTES
from tilescale.codegen.table import KIND_COPY, KIND_SIGNAL, ROLE_COPY, BlockRow, StepRow, pack_arguments
from tilescale.deploy.driver import Grid, KernelParameters
from tilescale.deploy.symmetric import SymmetricMemory
from tilescale.errors import RunnerError
from tilescale.runtime.gpu_driver import RankDriver
from tilescale.runtime.gpu_job import split
from tilescale.runtime.link_job import PING, TURNS, Case
from tilescale.runtime.rank import GroupAborted, RankContext, RankReport

WORKER = "tilescale.runtime.gpu_links:LinkRank"
PING_TEXT, PING_ENTRY, PING_THREADS = "#include <tilescale/links.cuh>\n\nTILESCALE_PING\n", "tilescale_ping", 32
TABLE_BYTES = 64 << 10
REPEATS = 4  # large copies between two events
_POISON = 0x7F


def ping_source(arch: str) -> Source:
    """The kernel that hands a flag to and fro."""
    return Source(PING_TEXT, PING_ENTRY, arch)


class LinkRank:
    """The worker of a rank. Settings: `share_sms` (0: the whole GPU), `bytes` (of the largest copy), `time_limit_s`.

    Jobs, each with its digest: "facts", once and first, with the kernels; "copy" and "check" of a case by the rank
    `actor` with `peer`; "together", a case by all ranks with all; "ping" of ranks `actor` (who serves) and `peer`.
    """

    def __init__(self, context: RankContext, open_driver: Callable[[RankContext], RankDriver] | None = None) -> None:
        self._context = context
        self._driver = (open_driver or _open)(context)
        self._half = int(context.settings["bytes"])
        self._limit_ns = int(float(context.settings["time_limit_s"]) * 1e9)
        self._functions: dict[str, tuple[int, int, int]] = {}
        self._memory: SymmetricMemory | None = None
        self._flags = 0

    def prepare(self, job: Mapping[str, Any], blob: bytes) -> str:
        return canon.digest(job)

    def run(self, job: Mapping[str, Any], blob: bytes) -> RankReport:
        acts: dict[str, Callable[[], RankReport]] = {
            "facts": lambda: self._facts(job, blob), "copy": lambda: self._copy(job), "check": lambda: self._check(job),
            "together": lambda: self._together(job), "ping": lambda: self._ping(job)}
        try:
            return acts[job["do"]]()
        except GroupAborted:
            raise
        except Exception as error:  # noqa: BLE001 - reported; what it left behind is not known
            return RankReport("launch_error", message=f"{type(error).__name__}: {error}", condemn=True)

    # -- once ----------------------------------------------------------------------------------------------------------
    def _facts(self, job: Mapping[str, Any], blob: bytes) -> RankReport:
        driver, context = self._driver, self._context
        facts = driver.facts()
        uuids = context.exchange("uuids", facts.uuid).values
        known = {"uuid": facts.uuid, "gpu": facts.name, "driver": facts.driver, "cuda": facts.cuda, "sms": driver.sms,
                 "groups": driver.share.groups if driver.share else 1, "torch": "", "blocks_per_sm": 1, "absent": 0,
                 "visible": os.environ.get("CUDA_VISIBLE_DEVICES", ""), "lacks": driver.reach(uuids)}
        if not any(any(lacks) for lacks in context.exchange("lacks", known["lacks"]).values):
            self._load(job, blob)
            self._open_memory()
        return RankReport("ok", message=json.dumps(known))

    def _load(self, job: Mapping[str, Any], blob: bytes) -> None:
        images = split([[name, size] for name, _, _, _, size in job["kernels"]], blob)
        for name, entry, threads, shared, _ in job["kernels"]:
            function = self._driver.function(self._driver.load_module(images[name]), entry)
            if shared:
                self._driver.set_shared_bytes(function, shared)
            self._functions[name] = (function, threads, shared)

    def _open_memory(self) -> None:
        """Of each rank: what it gives, what it is given, then state, counters and flags."""
        driver, context = self._driver, self._context
        size = 2 * self._half + STATE_BYTES + 2 * COUNTER_BYTES * 32
        self._memory = SymmetricMemory(driver, context.rank, size, lambda mine: context.exchange("m", None, mine).blobs)
        driver.upload(self._source(context.rank), _pattern(context.rank, self._half))
        self._tables, self._result = driver.allocate(TABLE_BYTES), driver.allocate(8)
        self._stream = driver.create_stream()
        self._events = driver.timer_event(), driver.timer_event()
        context.barrier("open")

    def _base(self, rank: int) -> int:
        if self._memory is None:
            raise RunnerError("a rank says its facts before it copies", "no facts", "start the group anew")
        return self._memory.addresses[rank]

    def _source(self, rank: int) -> int:
        return self._base(rank)

    def _target(self, rank: int) -> int:
        return self._base(rank) + self._half

    def _counters(self, rank: int) -> int:
        return self._base(rank) + 2 * self._half + STATE_BYTES

    # -- copies --------------------------------------------------------------------------------------------------------
    def _ends(self, case: Case, peer: int) -> tuple[int, int]:
        """Where this rank reads and writes."""
        own = self._context.rank
        return (self._source(own), self._target(peer)) if case.direction == "put" else (
            self._source(peer), self._target(own))

    def _launcher(self, case: Case, parts: Sequence[tuple[int, int, int, int]]) -> Callable[[], None]:
        """Enqueues one launch: copies, as (source, its offset, target, its offset), of `size_bytes` shared among them."""
        driver, stream, size = self._driver, self._stream, case.size_bytes // len(parts) // 16 * 16
        if case.transport == "copy_engine":
            def copy() -> None:
                for source, source_at, target, target_at in parts:
                    driver.copy(target + target_at, source + source_at, size, stream)

            return copy
        function, threads, shared = self._functions[case.transport]
        steps = [StepRow(KIND_COPY, i, 2 * i, 2 * i + 1, source_offset=part[1], target_offset=part[3], size=size)
                 for i, part in enumerate(parts)]
        if case.small:
            steps = [*steps, StepRow(KIND_SIGNAL, 0, source=self._context.rank, counter=1, value=1)] * TURNS
        rows = b"".join(step.pack() for step in steps)
        blocks = b"".join(BlockRow(ROLE_COPY, 0, len(steps), i, case.blocks).pack() for i in range(case.blocks))
        driver.upload(self._tables, rows + blocks)
        parameters = self._parameters([address for part in parts for address in (part[0], part[2])], len(rows))
        grid = Grid(case.blocks, threads, shared)
        return lambda: driver.launch(function, grid, stream, parameters)

    def _parameters(self, bases: Sequence[int], blocks_at: int, trips: int = 0, begin: int = 0, serves: int = 0
                    ) -> KernelParameters:
        world, rank = self._context.world, self._context.rank
        arguments = pack_arguments(
            bases, [0] * len(bases), [self._counters(peer) for peer in range(world)],
            state=self._counters(rank) - STATE_BYTES, steps=self._tables, blocks=self._tables + blocks_at,
            time_limit_ns=self._limit_ns, rank=rank, last=serves, n=trips, k=begin)
        return KernelParameters(arguments, len(bases))

    def _sample(self, case: Case, launch: Callable[[], None], count: int) -> list[float]:
        """Microseconds a copy; the first is not kept."""
        driver, (start, end) = self._driver, self._events
        turns = TURNS if case.small and case.blocks else 1
        repeats = REPEATS if not case.small else 1 if case.blocks else TURNS
        samples = []
        for _ in range(count + 1):
            driver.record(start, self._stream)
            for _ in range(repeats):
                launch()
            driver.record(end, self._stream)
            driver.synchronize(self._stream)
            samples.append(driver.elapsed_us(start, end) / (turns * repeats))
        return samples[1:]

    def _copy(self, job: Mapping[str, Any]) -> RankReport:
        if self._context.rank != job["actor"]:
            return RankReport("ok")
        samples = []
        for encoded in job["cases"]:
            case = canon.decode(Case, encoded)
            source, target = self._ends(case, job["peer"])
            samples.append(self._sample(case, self._launcher(case, [(source, 0, target, 0)]), job["samples"]))
        return RankReport("ok", message=json.dumps(samples))

    def _together(self, job: Mapping[str, Any]) -> RankReport:
        """Every rank to or from every other, beginning with the next one, each its own part of what they are given."""
        rank, world = self._context.rank, self._context.world
        samples = []
        for encoded in job["cases"]:
            case = canon.decode(Case, encoded)
            each = case.size_bytes // (world - 1) // 16 * 16
            parts = []
            for step in range(1, world):
                peer = (rank + step) % world
                source, target = self._ends(case, peer)
                # The receiver has a part for every sender: its distance to it.
                parts.append((source, (step - 1) * each, target, (step - 1) * each))
            launch = self._launcher(case, parts)
            self._context.barrier("together")
            samples.append(self._sample(case, launch, job["samples"]))
            self._context.barrier("apart")
        return RankReport("ok", message=json.dumps(samples))

    def _check(self, job: Mapping[str, Any]) -> RankReport:
        """Whether the bytes of a case arrive, all of them and no others: on poisoned memory, seen by their owner."""
        rank, actor, peer = self._context.rank, job["actor"], job["peer"]
        case = canon.decode(Case, job["cases"][0])
        giver, taker = (actor, peer) if case.direction == "put" else (peer, actor)
        size = min(self._half, case.size_bytes + 4096)
        if rank == taker:
            self._driver.fill(self._target(rank), _POISON, size, self._stream)
            self._driver.synchronize(self._stream)
        self._context.barrier("poisoned")
        if rank == actor:
            source, target = self._ends(case, peer)
            self._launcher(case, [(source, 0, target, 0)])()
            self._driver.synchronize(self._stream)
        self._context.barrier("copied")
        if rank != taker:
            return RankReport("ok")
        found = np.frombuffer(self._driver.download(self._target(rank), size), np.uint8)
        wanted = np.full(size, _POISON, np.uint8)
        wanted[: case.size_bytes] = np.frombuffer(_pattern(giver, case.size_bytes), np.uint8)
        wrong = np.flatnonzero(found != wanted)
        if wrong.size:
            return RankReport("wrong_result", message=f"{case.label} from rank {giver}: {wrong.size} bytes are wrong, the "
                                                      f"first at {wrong[0]}", condemn=True)
        return RankReport("ok")

    # -- flags ---------------------------------------------------------------------------------------------------------
    def _ping(self, job: Mapping[str, Any]) -> RankReport:
        """Round trips in microseconds, as the one who serves sees them."""
        rank, actor, peer, trips = self._context.rank, job["actor"], job["peer"], job["trips"]
        driver, samples = self._driver, []
        function, threads, shared = self._functions[PING]
        for number in range(job["samples"] + 1):
            if rank in (actor, peer):
                other = peer if rank == actor else actor
                bases = [self._counters(rank), self._counters(other), self._result]
                flags = int.from_bytes(driver.download(self._counters(rank), COUNTER_BYTES), "little")
                parameters = self._parameters(bases, 0, trips, flags, int(rank == actor))
            self._context.barrier("ping")  # the flags are read: now they may grow
            if rank in (actor, peer):
                driver.launch(function, Grid(1, threads, shared), self._stream, parameters)
                driver.synchronize(self._stream)
                nanoseconds = int.from_bytes(driver.download(self._result, 8), "little")
                if not nanoseconds:
                    lost = f"a flag between ranks {actor} and {peer} did not come"
                    return RankReport("timeout", message=lost, condemn=True)
                if number and rank == actor:
                    samples.append(nanoseconds / 1e3 / (trips - 1))
            self._context.barrier("pong")
        return RankReport("ok", message=json.dumps([samples]) if rank == actor else "")


def _pattern(rank: int, size: int) -> bytes:
    """Bytes that differ by rank and place."""
    words = np.arange(math.ceil(size / 4), dtype=np.uint32) * np.uint32(2654435761) + np.uint32(40503 * (rank + 1))
    return words.tobytes()[:size]


def _open(context: RankContext) -> RankDriver:
    """This rank's GPU, or its share of the first one that is visible. No torch."""
    share = int(context.settings["share_sms"])
    return RankDriver(0 if share else context.rank, context.rank, context.world, share, 0)
