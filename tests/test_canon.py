"""canon: round trips, tags only where they are needed, and digests that no process or hash seed changes."""

from __future__ import annotations

import enum
import math
import os
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilescale import canon
from tilescale.errors import TilescaleError


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Put:
    peer: int
    rows: tuple[int, int] = (0, 1)


@dataclass(frozen=True)
class Get:
    peer: int
    rows: tuple[int, int] = (0, 1)


@dataclass(frozen=True)
class Shape:
    name: str = "s"


@dataclass(frozen=True)
class Circle(Shape):
    radius: float = 1.0


@dataclass(frozen=True)
class Everything:
    count: int
    rate: float
    text: str
    flag: bool
    colour: Colour
    step: Put | Get
    only: Put | None
    shape: Shape
    size: int | Put
    attributes: tuple[tuple[str, int | str], ...]
    table: dict[str, tuple[int, ...]]
    by_rank: dict[int, float]
    names: frozenset[str]
    mode: Literal["push", "pull"] = "push"
    steps: tuple[Put | Get, ...] = field(default=())


puts = st.builds(Put, st.integers(), st.tuples(st.integers(), st.integers()))
gets = st.builds(Get, st.integers())
floats = st.floats(allow_nan=False, allow_infinity=False)
everything = st.builds(
    Everything,
    count=st.integers(),
    rate=floats,
    text=st.text(),
    flag=st.booleans(),
    colour=st.sampled_from(Colour),
    step=puts | gets,
    only=st.none() | puts,
    shape=st.builds(Shape, st.text()) | st.builds(Circle, st.text(), floats),
    size=st.integers() | puts,
    attributes=st.lists(st.tuples(st.text(), st.integers() | st.text())).map(tuple),
    table=st.dictionaries(st.text(), st.lists(st.integers()).map(tuple), max_size=4),
    by_rank=st.dictionaries(st.integers(), floats, max_size=4),
    names=st.frozensets(st.text(), max_size=4),
    mode=st.sampled_from(["push", "pull"]),
    steps=st.lists(puts | gets, max_size=4).map(tuple),
)


@settings(deadline=None)
@given(everything)
def test_decode_of_encode_is_the_value(value: Everything) -> None:
    assert canon.decode(Everything, canon.encode(value)) == value
    assert canon.loads(Everything, canon.dumps(value)) == value


@settings(deadline=None)
@given(everything, everything)
def test_texts_are_equal_exactly_when_values_are(one: Everything, other: Everything) -> None:
    assert (canon.dumps(one) == canon.dumps(other)) == (one == other)


def test_a_tag_is_written_only_where_the_class_is_open() -> None:
    assert canon.encode(Put(1)) == {"peer": 1, "rows": [0, 1]}
    assert canon.encode(Circle()) == {"type": "Circle", "name": "s", "radius": 1.0}
    assert canon.encode((Put(1), Get(1))) == [
        {"type": "Put", "peer": 1, "rows": [0, 1]},
        {"type": "Get", "peer": 1, "rows": [0, 1]},
    ]
    assert canon.decode(Put | Get, {"type": "Get", "peer": 1}) == Get(1)
    assert canon.decode(Shape, canon.encode(Circle("c", 2.0))) == Circle("c", 2.0)


def test_text_is_canonical() -> None:
    assert canon.dumps({"b": (1, 2), "a": {"y": None, "x": True}}) == '{"a":{"x":true,"y":null},"b":[1,2]}'
    assert canon.dumps(Circle("c", 2)) == canon.dumps(Circle("c", 2.0))
    assert canon.dumps(Circle("c", -0.0)) == canon.dumps(Circle("c", 0.0))
    assert canon.digest({"a": 1}) == canon.digest_bytes(b'{"a":1}') == "015abd7f5cc57a2d"


@pytest.mark.parametrize("value", [math.nan, math.inf, object(), Circle("c", math.nan), {(1, 2): 3}, b"bytes"])
def test_what_json_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(TilescaleError, match=r"canonical JSON holds|keys of a mapping"):
        canon.dumps(value)


def test_a_field_of_the_wrong_type_is_refused_when_written() -> None:
    with pytest.raises(TilescaleError, match=r"fields of Put hold their declared types.*'str'"):
        canon.dumps(Put("one"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cls", "data", "words"),
    [
        (Put, {"peer": 1, "row": [0, 1]}, ["Put has only known keys", "got: row", "did you mean 'rows'"]),
        (Put, {}, ["Put has all its keys", "missing peer"]),
        (Put, {"peer": "x"}, ["peer is an integer", "'x'"]),
        (Put, {"peer": True}, ["peer is an integer", "True"]),
        (Put, {"peer": 1, "rows": [1]}, ["rows is a list of 2", "[1]"]),
        (Put, {"peer": 1, "rows": [1, 2.5]}, ["rows[1] is an integer", "2.5"]),
        (Put, 3, ["the value is a table (Put)", "3"]),
        (Put | Get, {"type": "Gett", "peer": 1}, ["type is known", "did you mean 'Get'"]),
        (Shape, {"type": "Square"}, ["type is known", "Square", "Circle"]),
        (Colour, "green", ["'blue'", "'green'"]),
        (Literal["push", "pull"], "pus", ["'push', 'pull'", "'pus'"]),
        (dict[str, int], [], ["a table", "[]"]),
        (tuple[int, ...], 5, ["a list", "5"]),
    ],
)
def test_a_wrong_text_is_refused_with_place_and_remedy(cls: Any, data: Any, words: list[str]) -> None:
    with pytest.raises(TilescaleError) as caught:
        canon.decode(cls, data)
    for word in words:
        assert word in str(caught.value)


def test_text_that_is_no_json_is_refused() -> None:
    with pytest.raises(TilescaleError, match=r"the text is JSON"):
        canon.loads(Put, "{")


def test_digests_are_equal_in_processes_with_other_hash_seeds() -> None:
    program = (
        "from tilescale import canon\n"
        "from tilescale.spec.op import matmul\n"
        "from tilescale.spec.tensor import Tensor\n"
        "from tilescale.spec.topology import Topology\n"
        "topology = Topology.named('8xH200-NVSwitch', ranks=4)\n"
        "spec = matmul(Tensor((64, 32), 'bfloat16', 'FullRow'), Tensor((32, 48), 'bfloat16', 'FullCol'), 'FullCol',"
        " topology)\n"
        "print(spec.digest, topology.digest, canon.digest(spec), canon.dumps({frozenset('abcdef'): 1}.popitem()))\n"
    )
    outputs = set()
    for seed in ("0", "1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        outputs.add(done.stdout)
    assert len(outputs) == 1
    assert len(outputs.pop().split()[0]) == 16
