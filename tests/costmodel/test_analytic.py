"""Predictions of whole schedules: bounds that hold for any parameters, and orders that any machine has."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite

import pytest

from tilescale import canon
from tilescale.costmodel.analytic import Prediction, predict
from tilescale.costmodel.costs import DEFAULT
from tilescale.costmodel.features import features
from tilescale.costmodel.ranking import rank
from tilescale.schedules.lower import lower
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.space import space
from tilescale.spec.op import Spec, matmul, redistribute
from tilescale.spec.tensor import Tensor
from tilescale.spec.topology import Topology
from tilescale.spec.views import FullCol, FullRow, Replicate

H200 = "8xH200-NVSwitch"


def product(topology: Topology, m: int = 4096, n: int = 10240, k: int = 8192) -> Spec:
    return matmul(
        Tensor((m, k), "bfloat16", FullRow),
        Tensor((k, n), "bfloat16", FullCol, order="col"),
        out=FullCol,
        topology=topology,
    )


def gather(topology: Topology, rows: int = 8192) -> Spec:
    return redistribute(Tensor((rows, 4096), "bfloat16", FullRow), to=Replicate, topology=topology)


def sample(spec: Spec, count: int = 24) -> list[Schedule]:
    found = space(spec).schedules
    return list(found[:: max(1, len(found) // count)])


SPECS = {
    "product on real links": product(Topology.named(H200, 4)),
    "product on a model": product(Topology.scale_model(H200, 4)),
    "small product": product(Topology.scale_model(H200, 2), m=512),
    "gather": gather(Topology.scale_model(H200, 4)),
    "gather on a shared GPU": gather(Topology.shared_gpu(2)),
}


@pytest.mark.parametrize("name", sorted(SPECS))
def test_predictions_obey_the_machine(name: str) -> None:
    spec = SPECS[name]
    topology = spec.topology
    share = topology.sm_share / topology.gpu.sms
    rate = topology.gpu.rate_tflops("bfloat16") * share * DEFAULT.library_efficiency
    bound = max(spec.link_bytes / 1e3 / topology.link.gbps, spec.flops / 1e6 / rate)
    for schedule in sample(spec):
        found = predict(spec, schedule)
        assert isfinite(found.us)
        assert found.us >= bound
        assert found.low_us <= found.us <= found.high_us
        assert found.source == "predicted"
        assert sum(us for _, us in found.parts) == pytest.approx(found.us)
        assert all(us >= 0 for _, us in found.parts)


def test_a_given_plan_is_used() -> None:
    spec = SPECS["gather"]
    schedule = sample(spec)[0]
    assert predict(spec, schedule, lower(spec, schedule)) == predict(spec, schedule)


def test_overlap_pays_where_links_and_products_are_both_long() -> None:
    spec = SPECS["product on a model"]
    common = {
        "transport": "peer_copy",
        "compute": "generated",
        "num_comm_blocks": 4,
        "block_m": 128,
        "block_n": 256,
        "block_k": 64,
        "num_stages": 4,
        "raster_group": 8,
    }
    apart = predict(spec, Schedule(**common))  # type: ignore[arg-type]
    fused = predict(spec, Schedule(**common, overlap="fused", chunk_rows=256))  # type: ignore[arg-type]
    assert fused.us < 0.85 * apart.us
    assert dict(apart.parts)["link"] > dict(fused.parts)["link"]


def test_a_slower_link_is_never_faster() -> None:
    spec = SPECS["product on a model"]
    topology = spec.topology
    node = topology.level("node")
    assert node.link is not None
    slow = replace(node, link=replace(node.link, gbps=node.link.gbps / 4))
    slower = replace(spec, topology=replace(topology, levels=(*topology.levels[:-1], slow)))
    pairs = [(predict(spec, s).us, predict(slower, s).us) for s in sample(spec)]
    assert all(before <= after for before, after in pairs)
    assert any(1.5 * before < after for before, after in pairs)


def test_parameters_matter() -> None:
    spec = SPECS["gather"]
    schedule = Schedule(transport="peer_copy", num_comm_blocks=2)
    halved = replace(DEFAULT, copy_block_gbps=DEFAULT.copy_block_gbps / 4)
    assert predict(spec, schedule, parameters=halved).us > 1.2 * predict(spec, schedule).us


def test_predictions_survive_canonical_json() -> None:
    spec = SPECS["gather"]
    found = predict(spec, sample(spec)[0])
    assert canon.decode(Prediction, canon.encode(found)) == found


def test_ranking_is_sorted_and_does_not_depend_on_the_order_of_input() -> None:
    spec = SPECS["product on a model"]
    schedules = sample(spec, 40)
    ranked = rank(spec, schedules)
    assert [r.prediction.us for r in ranked] == sorted(r.prediction.us for r in ranked)
    assert rank(spec, schedules[::-1]) == ranked
    assert {r.schedule for r in ranked} == set(schedules)


def test_equal_predictions_rank_by_digest() -> None:
    spec = SPECS["gather"]
    # The model charges bulk copies as it does stores, so these two tie.
    tied = [Schedule(transport=t, num_comm_blocks=4) for t in ("peer_copy", "tma")]
    ranked = rank(spec, tied)
    assert ranked[0].prediction.us == ranked[1].prediction.us
    assert [r.schedule.digest for r in ranked] == sorted(s.digest for s in tied)


def test_features_have_one_set_of_names_and_are_finite() -> None:
    names = set()
    for spec in SPECS.values():
        for schedule in sample(spec, 6):
            found = features(spec, schedule)
            assert all(isinstance(v, float) and isfinite(v) for v in found.values())
            names.add(tuple(found))
    assert len(names) == 1


def test_features_tell_schedules_specs_and_machines_apart() -> None:
    schedule = Schedule(transport="peer_copy", num_comm_blocks=4)
    vectors = [
        tuple(features(spec, schedule).values())
        for spec in (
            gather(Topology.named(H200, 4)),
            gather(Topology.named(H200, 2)),
            gather(Topology.scale_model(H200, 4)),
            gather(Topology.named(H200, 4), 4096),
        )
    ]
    vectors += [
        tuple(features(gather(Topology.named(H200, 4)), s).values())
        for s in (
            replace(schedule, num_comm_blocks=8),
            replace(schedule, transport="tma"),
            replace(schedule, direction="pull"),
        )
    ]
    assert len(set(vectors)) == len(vectors)


# Ranks that share one H200, CUDA graphs: M, N, ranks, microseconds of a gather and then cuBLAS (K = 8192 or 4096).
MEASURED = ((4096, 10240, 8192, 2, 1060), (4096, 10240, 8192, 4, 1320), (4096, 10240, 8192, 8, 1317),
            (512, 14336, 4096, 2, 141), (512, 14336, 4096, 4, 164))  # fmt: skip


@pytest.mark.parametrize(("m", "n", "k", "ranks", "us"), MEASURED)
def test_unfused_calls_are_predicted_near_what_was_measured(m: int, n: int, k: int, ranks: int, us: float) -> None:
    spec = product(Topology.shared_gpu(ranks), m, n, k)
    unfused = space(spec, {"overlap": ["none"], "compute": ["library"]})
    assert 0.7 < rank(spec, unfused)[0].prediction.us / us < 1.3
