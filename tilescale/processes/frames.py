"""Messages on a pipe: a JSON header and a blob, with their sizes in front."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_HEAD = struct.Struct("<4sII")  # magic, bytes of JSON, bytes of blob
_MAGIC = b"TSF1"
LIMIT_BYTES = 1 << 30


class BadFrame(Exception):
    """The bytes on the pipe are no message: something else wrote to it."""


@dataclass(frozen=True)
class Message:
    """`header["kind"]` says what it is; `blob` holds bytes that JSON cannot."""

    header: Mapping[str, Any]
    blob: bytes = b""

    @property
    def kind(self) -> str:
        return str(self.header.get("kind", ""))


def pack(header: Mapping[str, Any], blob: bytes = b"") -> bytes:
    """The bytes of one message; floats survive exactly, nan is refused by a ValueError."""
    text = json.dumps(header, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    return _HEAD.pack(_MAGIC, len(text), len(blob)) + text + blob


@dataclass
class Reader:
    """Turns chunks of bytes into messages."""

    _buffer: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> Iterator[Message]:
        """The messages completed by `data`; raises BadFrame at the first byte that cannot belong to one."""
        self._buffer += data
        while len(self._buffer) >= _HEAD.size:
            magic, text_size, blob_size = _HEAD.unpack_from(self._buffer)
            if magic != _MAGIC or text_size + blob_size > LIMIT_BYTES:
                raise BadFrame(f"a message starts with {_MAGIC!r}, not {bytes(self._buffer[:16])!r}")
            end = _HEAD.size + text_size + blob_size
            if len(self._buffer) < end:
                return
            text = bytes(self._buffer[_HEAD.size : _HEAD.size + text_size])
            blob = bytes(self._buffer[_HEAD.size + text_size : end])
            del self._buffer[:end]
            yield Message(_parse(text), blob)


def _parse(text: bytes) -> Mapping[str, Any]:
    try:
        header = json.loads(text)
    except ValueError as error:
        raise BadFrame(f"a message's header is JSON: {error}") from None
    if not isinstance(header, dict):
        raise BadFrame(f"a message's header is a JSON object, not {text[:40]!r}")
    return header
