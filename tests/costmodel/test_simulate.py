"""The simulation: steps take what the formulas say, links and engines are shared, and waits are kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilescale.costmodel.costs import Costs, Parameters
from tilescale.costmodel.simulate import simulate
from tilescale.errors import PlanError
from tilescale.schedules.plan import Buffer, Copy, Gemm, Goal, Launch, Plan, Region, Role, Signal, Step, Wait

FREE = Parameters(
    copy_engine_us=0,
    graph_us=0,
    kernel_gap_us=0,
    join_us=0,
    signal_us=0,
    next_signal_us=0,
    wait_us=0,
    load_latency_us=0,
    l2_gbps_per_sm=1e9,
    store_gbps_per_sm=1e9,
    generated_efficiency=1,
    library_efficiency=1,
)
COSTS = Costs(
    FREE,
    sm_tflops=1.0,
    sm_share=8,
    hbm_gbps=1000.0,
    link_gbps=50.0,
    link_latency_us=0.0,
    copy_engines=2,
    block_gbps=20.0,
    tile=(64, 64, 16, 4),
)
SIZE = 1_000_000  # 20 us on a link, 50 us by one block


def plan(*ranks: tuple[Launch, ...], counters: int = 4) -> Plan:
    buffers = (Buffer("a", "input", SIZE), Buffer("w", "workspace", 8 * SIZE, True), Buffer("out", "output", SIZE))
    return Plan("test", buffers, counters, ranks, Goal("a", "out", (0, SIZE), 1, 1, False), 8, 232448)


def launch(
    name: str, *steps: Step, stream: int = 0, blocks: int = 8, agent: str = "blocks", after: tuple[str, ...] = ()
) -> Launch:
    return Launch(name, stream, (Role(name, agent, blocks if agent == "blocks" else 1, steps),), after, "copy", 512)


def put(source: int, target: int, size: int = SIZE, slot: int = 0) -> Copy:
    return Copy(Region("a", source, 0, size), Region("w", target, slot * SIZE, size))


def test_a_put_takes_the_slower_of_blocks_and_link() -> None:
    assert simulate(plan((launch("x", put(0, 1), blocks=1),), ()), COSTS).us == pytest.approx(50)
    timeline = simulate(plan((launch("x", put(0, 1)),), ()), COSTS)
    assert timeline.us == pytest.approx(20)
    assert timeline.sent_bytes == (SIZE, 0)
    assert dict(timeline.parts)["copy"] == pytest.approx(SIZE / 1e3 / 160)
    assert dict(timeline.parts)["link"] == pytest.approx(20 - SIZE / 1e3 / 160)


def test_two_senders_into_one_receiver_share_its_ingress() -> None:
    timeline = simulate(plan((launch("x", put(0, 2)),), (launch("x", put(1, 2, slot=1)),), ()), COSTS)
    assert timeline.us == pytest.approx(40)
    apart = simulate(plan((launch("x", put(0, 2)),), (launch("x", put(1, 3)),), (), ()), COSTS)
    assert apart.us == pytest.approx(20)


def test_one_sender_to_two_receivers_shares_its_egress() -> None:
    streams = (launch("x", put(0, 1), blocks=4), launch("y", put(0, 2), stream=1, blocks=4))
    assert simulate(plan(streams, (), ()), COSTS).us == pytest.approx(40)


def test_a_get_takes_from_the_same_clocks_and_asks_first() -> None:
    get = Copy(Region("w", 1, 0, SIZE), Region("w", 0, 0, SIZE))
    slow = replace(COSTS, link_latency_us=1.5)
    assert simulate(plan((launch("x", get),), ()), slow).us == pytest.approx(21.5)
    assert simulate(plan((launch("x", get),), (launch("y", put(1, 0, slot=1)),)), COSTS).us == pytest.approx(40)


def test_local_copies_use_no_link() -> None:
    timeline = simulate(plan((launch("x", put(0, 0)),)), COSTS)
    assert timeline.us == pytest.approx(SIZE / 1e3 / 160)
    assert timeline.sent_bytes == (0,)


def test_copies_beyond_the_engines_wait_for_one() -> None:
    costs = replace(COSTS, parameters=replace(FREE, copy_engine_us=4))
    engine = SIZE / 1e3 / 500
    copies = tuple(launch(f"c{i}", put(0, 0, slot=i), stream=i, agent="copy_engine") for i in range(3))
    assert simulate(plan(copies[:2]), costs).us == pytest.approx(4 + engine)
    assert simulate(plan(copies), costs).us == pytest.approx(2 * (4 + engine))


def test_launches_follow_streams_and_after() -> None:
    costs = replace(COSTS, parameters=replace(FREE, graph_us=3, kernel_gap_us=1, join_us=2))
    local = SIZE / 1e3 / 160
    one, same = launch("x", put(0, 0)), launch("y", put(0, 0, slot=1))
    other = launch("y", put(0, 0, slot=1), stream=1, after=("x",))
    apart = launch("y", put(0, 0, slot=1), stream=1)
    assert simulate(plan((one, same)), costs).us == pytest.approx(3 + 2 * local + 1)
    assert simulate(plan((one, other)), costs).us == pytest.approx(3 + 2 * local + 2)
    assert simulate(plan((one, apart)), costs).us == pytest.approx(3 + local)


def test_a_wait_ends_when_its_signal_arrives_and_the_parts_follow_the_sender() -> None:
    costs = replace(COSTS, parameters=replace(FREE, signal_us=2, next_signal_us=0.5, wait_us=1), link_latency_us=1.5)
    sender = launch("s", put(0, 1), Signal(1, 0), Signal(1, 1))
    timeline = simulate(plan((sender,), (launch("r", Wait(1, 8)),)), costs)
    assert timeline.us == pytest.approx(20 + 2 + 0.5 + 1.5 + 1)
    assert dict(timeline.parts)["sync"] == pytest.approx(5)
    assert sum(us for _, us in timeline.parts) == pytest.approx(timeline.us)


def test_waits_count_all_blocks() -> None:
    ranks = (launch("a", put(0, 2), Signal(2, 0)),), (launch("b", put(1, 2, slot=1), Signal(2, 0)),)
    waiting = (launch("r", Wait(0, 16)),)
    assert simulate(plan(*ranks, waiting), COSTS).us == pytest.approx(40)
    with pytest.raises(PlanError, match="every wait is met; got: rank 2 launch r role r"):
        simulate(plan(*ranks, (launch("r", Wait(0, 17)),)), COSTS)


def product(rows: int, columns: int, k: int = 16, row: int = 0) -> Gemm:
    return Gemm(Region("w", 0, row, rows), Region("w", 0, 0, 1), Region("out", 0, 0, rows), rows, columns, k)


def gemm_plan(*launches: Launch) -> Plan:
    return replace(plan(launches), goal=Goal("a", "out", (0, SIZE), 32, 128, True))


def test_products_take_whole_waves_over_all_segments() -> None:
    tile = 2 * 64 * 64 * 16 / 1e6
    assert simulate(gemm_plan(launch("g", product(512, 64))), COSTS).us == pytest.approx(tile)  # 8 tiles, 8 blocks
    assert simulate(gemm_plan(launch("g", product(576, 64))), COSTS).us == pytest.approx(2 * tile)
    halves = launch("g", product(256, 64), product(256, 64), product(256, 64))  # 4 + 4 + 4 tiles
    assert simulate(gemm_plan(halves), COSTS).us == pytest.approx(2 * tile)


def test_a_library_call_uses_the_sms_that_others_leave() -> None:
    call = launch("g", product(512, 64), agent="library")
    alone = simulate(gemm_plan(call), COSTS).us
    beside = launch("busy", Wait(3, 4), stream=1, blocks=4)
    waker = launch("wake", Signal(0, 3), stream=2, blocks=4, after=("g",))
    assert simulate(gemm_plan(beside, call, waker), COSTS).us == pytest.approx(2 * alone)
