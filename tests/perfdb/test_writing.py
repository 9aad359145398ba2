"""perfdb.writing: samples come back as they were, in the smaller encoding that keeps them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import perfdb
from perfdb.writing import pack, unpack

Make = Callable[..., perfdb.TrialRecord]


@pytest.mark.parametrize(
    ("values", "encoding"),
    [((1.0, 0.5, 1234.25), "<f4"), ((0.1, 1.0), "<f8"), ((1e300,), "<f8"), ((), "<f4")],
)
def test_samples_are_packed_without_loss(values: tuple[float, ...], encoding: str) -> None:
    packed = pack(values)
    assert packed[0] == encoding
    assert packed[1] == len(values)
    data = packed[2]
    assert isinstance(data, bytes)
    assert len(data) == len(values) * int(encoding[-1])
    assert unpack(encoding, data) == list(values)


def test_the_bytes_are_little_endian() -> None:
    assert pack((1.0,))[2] == b"\x00\x00\x80\x3f"


def test_keys_are_stored_once(db: perfdb.Database, make: Make) -> None:
    for _ in range(3):
        db.record(make(binary_digest="b", table_digest="t"))
    with db.read() as connection:
        for table in ("workload", "topology", "environment", "schedule", "artifact"):
            assert connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar() == 1
        assert connection.exec_driver_sql("SELECT count(*) FROM trial").scalar() == 3
