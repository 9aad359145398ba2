"""views: words, DTensor placements, mesh axes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilescale import canon
from tilescale.errors import SpecError
from tilescale.spec.views import (
    Block,
    FullCol,
    FullRow,
    Partial,
    Replica,
    Replicate,
    Shard,
    View,
    as_view,
    parse_view,
)

views = st.sampled_from([Replicate, Partial, Block]) | st.integers(-4, 4).map(Shard)
on_axes = st.one_of(views, st.tuples(views, st.sampled_from(["tp", "dp"])).map(lambda pair: pair[0].on(pair[1])))


@given(on_axes)
def test_a_view_survives_canonical_json(view: View) -> None:
    assert canon.decode(View, canon.encode(view)) == view
    assert hash(canon.decode(View, canon.encode(view))) == hash(view)


@given(views, views)
def test_views_are_equal_exactly_when_their_digests_are(one: View, other: View) -> None:
    assert (one == other) == (canon.digest(one) == canon.digest(other))


@given(views)
def test_the_label_of_a_view_is_read_back(view: View) -> None:
    assert parse_view(view.label) == view


def test_public_words() -> None:
    assert FullRow == Shard(0)
    assert FullCol == Shard(-1)
    assert Replica is Replicate
    assert Replicate() == Replicate
    assert Partial() == Partial
    assert Partial("sum") == Partial
    assert Block() == Block
    assert FullRow.on("tp").label == "FullRow.on('tp')"
    assert FullRow.on("tp") != FullRow
    assert FullRow.on("tp").bare() == FullRow


def test_dtensor_placements_are_views() -> None:
    placements = pytest.importorskip("torch.distributed.tensor")
    assert as_view(placements.Shard(0)) == FullRow
    assert as_view(placements.Shard(-1)) == FullCol
    assert as_view(placements.Replicate()) == Replicate
    assert as_view(placements.Partial()) == Partial
    assert as_view([placements.Shard(1)]) == Shard(1)
    assert as_view((placements.Replicate(), placements.Replicate())) == Replicate
    assert as_view((placements.Replicate(), placements.Shard(0))) == FullRow.on("1")
    assert as_view((placements.Shard(0), placements.Shard(1))) == Block
    with pytest.raises(SpecError, match=r"a pending reduction is a sum; got: reduce_op='max'"):
        as_view(placements.Partial("max"))
    with pytest.raises(SpecError, match=r"placements on several mesh axes"):
        as_view((placements.Shard(1), placements.Shard(0)))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("FulRow", "a view is known; got: 'FulRow'; did you mean 'FullRow'"),
        ("Shard(x)", "a view is known"),
        (Shard, "Shard names its dimension"),
        (3, "a view is a tilescale view or a DTensor placement"),
    ],
)
def test_what_is_no_view_is_refused(value: object, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        as_view(value)
    assert message in str(caught.value)


def test_wrong_dimensions_and_axes_are_refused() -> None:
    with pytest.raises(SpecError, match=r"integer dimension"):
        Shard("0")  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"a mesh axis is a non-empty name"):
        FullRow.on("")
