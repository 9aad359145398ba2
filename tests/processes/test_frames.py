"""tilescale.processes.frames"""

from __future__ import annotations

from typing import Any

import pytest

from tilescale.processes.frames import BadFrame, Message, Reader, pack

MESSAGES: list[tuple[dict[str, Any], bytes]] = [
    ({"kind": "a", "time": 0.1 + 0.2}, b""),
    ({}, b"\0" * 1000),
    ({"kind": "\u00e9"}, b"TSF1"),
]
STREAM = b"".join(pack(header, blob) for header, blob in MESSAGES)


@pytest.mark.parametrize("size", [1, 7, 100, len(STREAM)])
def test_messages_survive_any_cutting(size: int) -> None:
    reader = Reader()
    found = [m for start in range(0, len(STREAM), size) for m in reader.feed(STREAM[start : start + size])]
    assert found == [Message(header, blob) for header, blob in MESSAGES]
    assert [m.kind for m in found] == ["a", "", "\u00e9"]


def test_half_a_message_is_none() -> None:
    assert list(Reader().feed(STREAM[:20])) == []


@pytest.mark.parametrize(
    "wrong",
    [
        b"some text that a library printed",
        pack({}).replace(b"{}", b"{]"),
        pack({}).replace(b"{}", b"[]"),
        b"TSF1" + b"\xff" * 8,
    ],
)
def test_other_bytes_are_refused(wrong: bytes) -> None:
    with pytest.raises(BadFrame):
        list(Reader().feed(wrong))


def test_nan_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        pack({"value": float("nan")})
