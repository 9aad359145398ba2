"""Which experts tokens go to: as declared, and as they might."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support import routed

from tilescale.errors import RunnerError
from tilescale.runtime.routing import TURNS, routing_of, trace_routing


def rng() -> np.random.Generator:
    return np.random.default_rng(1)


def test_a_uniform_routing_meets_every_expert_and_none_twice_in_a_token() -> None:
    found = np.concatenate(routing_of(routed("dispatch", 2, tokens=400, experts=8, top_k=3), rng()))
    assert found.shape == (400, 3)
    assert set(found.flatten().tolist()) == set(range(8))
    assert all(len(set(row)) == 3 for row in found.tolist())
    share = np.bincount(found.flatten(), minlength=8) / found.size
    assert abs(share - 1 / 8).max() < 0.05


def test_a_histogram_is_met_and_an_expert_of_weight_zero_never_is() -> None:
    found = np.concatenate(routing_of(routed("combine", 2, tokens=2000, experts=4, top_k=1, routing="histogram:6,3,1,0"),
                                      rng()))
    share = np.bincount(found.flatten(), minlength=4) / found.size
    assert abs(share - np.array([0.6, 0.3, 0.1, 0.0])).max() < 0.05
    assert share[3] == 0


def test_where_fewer_experts_have_weight_than_a_token_wants_the_rest_is_none() -> None:
    found = np.concatenate(routing_of(routed("dispatch", 2, experts=4, top_k=3, routing="histogram:0,1,1,0"), rng()))
    assert {tuple(sorted(row)) for row in found.tolist()} == {(-1, 1, 2)}


def test_a_trace_is_replayed_and_known_by_what_it_holds(tmp_path: Path) -> None:
    rows = [[0, 3], [2, 1], [3, -1]]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(rows))
    spec = routed("dispatch", 2, tokens=6, experts=4, routing=trace_routing(str(path)))
    assert np.concatenate(routing_of(spec, rng())).tolist() == rows * 2
    path.write_text(json.dumps([[1, 1]]))
    other = routed("dispatch", 2, tokens=6, experts=4, routing=trace_routing(str(path)))
    assert other.digest != spec.digest
    from tilescale.runtime import routing

    routing._trace.cache_clear()
    with pytest.raises(RunnerError, match="holds what it held"):
        routing_of(spec, rng())


@pytest.mark.parametrize("text", ["no JSON", "[]", "[[1, 2], [3]]"])
def test_what_is_no_trace_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(RunnerError, match="a trace is"):
        trace_routing(str(path))


def test_turns_are_what_they_say() -> None:
    spec = routed("dispatch", 4, tokens=64, experts=8)
    assert len({tuple(row) for part in routing_of(spec, rng(), "one") for row in part.tolist()}) == 1
    gaps = routing_of(spec, rng(), "gaps")
    assert any((part == -1).all() for part in gaps)
    assert any((part != -1).any() for part in gaps)
    twice = np.concatenate(routing_of(spec, rng(), "twice"))
    assert (twice < 0).any()
    assert (twice >= 8).any()
    assert (twice[:, 0] == twice[:, 1]).any()
    assert TURNS[0] == "declared"


def test_the_skew_is_part_of_the_key() -> None:
    digests = {routed("dispatch", 2, experts=4, routing=routing).digest
               for routing in ("uniform", "histogram:1,1,1,2", "histogram:1,1,2,1")}
    assert len(digests) == 3
