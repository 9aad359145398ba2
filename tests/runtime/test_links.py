"""tilescale.runtime: links, link_job and gpu_links: what is asked, what ranks do, and what is made of it."""

from __future__ import annotations

import dataclasses
import json
import re
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deploy.fake_device import Arguments, FakeDriver
from process_support import SEARCH_PATH
from runtime.gpu_fakes import FakeRankDriver, Ranks

import tilescale as ts
from tilescale import canon
from tilescale.codegen.compile import Binary, Compiler
from tilescale.codegen.table import STEP, pack_arguments
from tilescale.errors import RunnerError
from tilescale.runtime import fake_links, gpu_links, link_job
from tilescale.runtime.emulator import ADVERSARIES, Machine, build_candidate
from tilescale.runtime.gpu_links import LinkRank, ping_source
from tilescale.runtime.link_job import PING, SMALL_BYTES, Case, Row, cases, copy_kernels, measured_link
from tilescale.runtime.links import LinkProbe

REAL = ts.Topology.named("8xH200-NVSwitch")
HALF = 1 << 16


# --- what is asked ---


def test_every_transport_direction_and_block_count_is_asked() -> None:
    found = cases(132)
    assert {(case.transport, case.direction) for case in found} == {
        (transport, direction) for transport in link_job.TRANSPORTS for direction in link_job.DIRECTIONS}
    assert [case.blocks for case in found if (case.transport, case.direction) == ("tma", "get")] == [1, *link_job.BLOCKS]
    assert max(case.blocks for case in cases(8)) == 8
    assert len(set(found)) == len(found)


def test_kernels_are_those_of_schedules_and_wait_for_no_modelled_link() -> None:
    for topology in (REAL.with_ranks(2), ts.Topology.shared_gpu(2), ts.Topology.scale_model(REAL.name, 2)):
        texts = {each.transport: each.kernel.text for each in copy_kernels(topology)}
        assert set(texts) == {"peer_copy", "tma"}
        assert all("link_clock = false" in text for text in texts.values())
        assert "copy_tma = true" in texts["tma"]


def row(source: int, target: int, us: float, transport: str = "tma", direction: str = "put", size: int = 64 << 20) -> Row:
    return Row(source, target, Case(transport, direction, 8, size), ((us, us * 2, us),))


def test_a_link_is_as_fast_as_the_best_put_of_its_slowest_pair() -> None:
    rows = [row(0, 1, 200.0), row(0, 1, 180.0, "peer_copy"), row(1, 0, 190.0), row(1, 0, 100.0, direction="get"),
            row(0, 1, 1.0, size=SMALL_BYTES), row(-1, -1, 50.0), row(0, 1, 1.6, PING), row(1, 0, 1.8, PING)]
    link = measured_link(REAL.link, rows)
    assert (link.gbps, link.latency_us) == (round((64 << 20) / 190e3, 1), 0.9)
    assert (link.kind, link.nominal_gbps) == (REAL.link.kind, REAL.link.nominal_gbps)
    assert measured_link(REAL.link, []) == REAL.link


def test_a_row_counts_its_slowest_rank() -> None:
    found = Row(-1, -1, Case("tma", "put", 8, 1_000_000), ((10.0, 30.0, 10.0), (20.0, 20.0, 5.0)))
    assert found.us == 20.0
    assert found.gbps == pytest.approx(50.0)


# --- what ranks do, on the machine of the deploy tests ---


class LinkDriver(FakeRankDriver):
    """Ranks synchronize alone, and one kernel more can run: the flag's, which both ranks of a `pair` launch."""

    pair: threading.Barrier

    def enqueue(self, *arguments: Any, **named: Any) -> None:
        with self.machine.lock:
            super().enqueue(*arguments, **named)

    def synchronize(self, stream: int) -> None:
        FakeDriver.synchronize(self, stream)

    def launch(self, function: int, grid: Any, stream: int, parameters: Any) -> None:
        if self.functions[function][1] == gpu_links.PING_ENTRY:
            values = Arguments.unpack(parameters.values[0])
            self.enqueue(stream, ("ping",), start=lambda: [self._ping(values)])
            self.pair.wait()
        else:
            super().launch(function, grid, stream, parameters)

    def _ping(self, values: Arguments) -> Iterator[bool]:
        own, peer, result = values.base[:3]
        for trip in range(1, values.n + 1):
            if values.last:
                self.machine.add_u32(peer, 1)
                yield True
            while self.machine.u32(own) < values.k + trip:
                yield False
            if not values.last:
                self.machine.add_u32(peer, 1)
                yield True
        self.machine.at(result, 8)[:] = struct.pack("<Q", 1500 * (values.n - 1))


class LinkRanks(Ranks):
    def __init__(self, world: int) -> None:
        super().__init__(world, limit_s=10.0)
        barrier = threading.Barrier(world)
        LinkDriver.pair = threading.Barrier(2, timeout=10.0)
        self.drivers = [LinkDriver(self.machine, rank, barrier) for rank in range(world)]
        for rank, driver in enumerate(self.drivers):
            driver._facts = dataclasses.replace(driver._facts, uuid=f"gpu-{rank}")
        self.workers = [self._worker(rank) for rank in range(world)]

    def _worker(self, rank: int) -> Any:
        context = self._context(rank)
        object.__setattr__(context, "settings", {"share_sms": 0, "bytes": HALF, "time_limit_s": 2.0})
        return LinkRank(context, lambda _: self.drivers[rank])  # type: ignore[arg-type, return-value]

    def ask(self, **job: Any) -> list[Any]:
        return self.run(job, b"", canon.digest(json.loads(json.dumps(job))))

    def ready(self) -> LinkRanks:
        images = [each.kernel.text.encode() for each in copy_kernels(REAL)] + [b"tilescale_ping"]
        names = [("peer_copy", "tilescale_copy", 512, 0), ("tma", "tilescale_copy", 512, 65568),
                 (PING, "tilescale_ping", 32, 0)]
        job = {"do": "facts", "kernels": [[*name, len(image)] for name, image in zip(names, images, strict=True)]}
        reports = self.run(job, b"".join(images), canon.digest(job))
        assert [report.status for report in reports] == ["ok"] * self.world, reports
        return self


@pytest.fixture(scope="module")
def ranks() -> LinkRanks:
    return LinkRanks(3).ready()


LARGE = [case for case in cases(8, HALF // 2, (3,)) if not case.small]


@pytest.mark.parametrize("case", LARGE, ids=lambda case: case.label)
def test_copies_arrive_whole_and_are_timed_by_the_rank_that_copies(ranks: LinkRanks, case: Case) -> None:
    job = {"actor": 2, "peer": 0, "cases": [canon.encode(case)], "samples": 3}
    assert {report.status for report in ranks.ask(do="check", **job)} == {"ok"}
    reports = ranks.ask(do="copy", **job)
    assert [bool(report.message) for report in reports] == [False, False, True]
    assert [len(samples) for samples in json.loads(reports[2].message)] == [3]


def test_a_wrong_byte_is_found(ranks: LinkRanks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_links, "_pattern", lambda rank, size: b"\x01" * size)  # not what rank 0 was given
    job = {"actor": 0, "peer": 1, "cases": [canon.encode(Case("tma", "put", 3, 4096))], "samples": 1}
    reports = ranks.ask(do="check", **job)
    assert reports[1].status == "wrong_result"
    assert re.match(r"put tma 3 blocks 4096 B from rank 0: 40\d\d bytes are wrong, the first at 0", reports[1].message)
    assert reports[1].condemn


def test_all_ranks_at_once_write_apart(ranks: LinkRanks) -> None:
    found = ranks.ask(do="together", actor=0, peer=1, samples=2,
                      cases=[canon.encode(Case(t, d, 2, HALF)) for t in ("tma", "copy_engine") for d in ("put", "get")])
    assert all(len(json.loads(report.message)) == 4 for report in found), found
    each = HALF // 2 // 16 * 16
    for rank, worker in enumerate(ranks.workers):
        held = ranks.machine.at(worker._target(rank), 2 * each)  # type: ignore[attr-defined]
        patterns = [gpu_links._pattern((rank + step) % 3, HALF) for step in (1, 2)]
        assert bytes(held[:each]) == patterns[0][:each]
        assert bytes(held[each:]) == patterns[1][each : 2 * each]


def test_small_copies_are_followed_by_a_fence(ranks: LinkRanks) -> None:
    worker: Any = ranks.workers[0]
    worker._launcher(Case("tma", "put", 1, SMALL_BYTES), [(worker._source(0), 0, worker._target(1), 0)])
    kinds = [STEP.unpack(ranks.machine.at(worker._tables + i * STEP.size, STEP.size))[0] for i in range(4)]
    assert kinds == [1, 2, 1, 2]


def test_round_trips_are_timed_by_the_rank_that_serves_again_and_again(ranks: LinkRanks) -> None:
    for actor, peer in ((0, 2), (2, 0), (1, 2)):
        found = ranks.ask(do="ping", actor=actor, peer=peer, trips=5, samples=2, cases=[])
        assert [report.status for report in found] == ["ok"] * 3, found
        assert json.loads(found[actor].message) == [[1.5, 1.5]]


def test_a_job_before_the_facts_fails() -> None:
    job = {"actor": 0, "peer": 1, "cases": [canon.encode(Case("tma", "put", 1, 4096))], "samples": 1}
    assert "facts" in LinkRanks(2).ask(do="copy", **job)[0].message


# --- the flag ---


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_a_flag_goes_to_and_fro_as_often_as_asked(adversary: str) -> None:
    library = build_candidate(gpu_links.PING_TEXT)
    machine = Machine(1, adversary)
    flags = [machine.register_memory(rank, "flags", 32, kind="counters", data=struct.pack("<8I", 5 + rank, *[0] * 7))
             for rank in (0, 1)]
    results = [machine.register_memory(rank, "result", 8) for rank in (0, 1)]
    nodes = []
    for rank in (0, 1):
        arguments = pack_arguments(
            [flags[rank].address, flags[1 - rank].address, results[rank].address], [0] * 3, [], state=0, steps=0, blocks=0,
            time_limit_ns=1 << 40, rank=rank, last=int(rank == 0), n=4, k=5 + rank)
        nodes.append(machine.add_kernel(rank, f"ping{rank}", library, gpu_links.PING_ENTRY, arguments, b"", 1, 32, 0))
    reads = [machine.add_caller_read(rank, results[rank].address, 8, nodes) for rank in (0, 1)]
    report = machine.run()
    assert report.ok, report.error
    assert all(int.from_bytes(report.seen[read], "little") > 0 for read in reads)


def test_the_kernels_compile(tmp_path: Path) -> None:
    with Compiler(1, tmp_path) as compiler:
        (made,) = compiler.compile([ping_source("sm_90a")])
    assert isinstance(made, Binary), made
    assert made.spill_bytes == 0


# --- the parent, with ranks that have no GPU ---


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LinkProbe]:
    monkeypatch.setenv("PYTHONPATH", SEARCH_PATH)
    with LinkProbe(REAL.with_ranks(3), samples=2, cache_dir=tmp_path, worker=fake_links.WORKER) as found:
        yield found


def test_questions_are_answered_by_rows(probe: LinkProbe) -> None:
    probe.check(0, 2)
    wanted = cases(132)
    found = probe.copies(0, 2, wanted)
    assert [each.case for each in found] == wanted
    assert {(each.source, each.target, len(each.samples_us), len(each.samples_us[0])) for each in found} == {(0, 2, 1, 2)}
    assert found[0].us == pytest.approx(fake_links.copy_us(wanted[0]))
    assert probe.ping(1, 2).us == fake_links.TRIP_US
    (all_,) = probe.together([Case("tma", "put", 8, 1 << 20)])
    assert (all_.source, len(all_.samples_us)) == (-1, 3)
    link = measured_link(REAL.link, [*found, probe.ping(0, 2)])
    assert (300 < link.gbps < 380, link.latency_us) == (True, 0.8)
    assert [facts.uuid for facts in probe.facts] == ["fake-0", "fake-1", "fake-2"]


def test_a_scale_model_has_no_links() -> None:
    with pytest.raises(RunnerError, match="where they are"):
        LinkProbe(ts.Topology.scale_model(REAL.name, 2))
