"""Reading cubins: ELF files with kernels as global functions. Enough to say what a binary holds and where it runs."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from tilescale.errors import BundleError

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_EM_CUDA = 190
_SHT_SYMTAB = 2
_STT_FUNC, _STB_GLOBAL = 2, 1
# From this ABI version on, the architecture is in the second byte of the flags; before, in the first.
_ABI_SECOND_BYTE = 8
_ARCH = re.compile(rb"-arch (sm_\d+[af]?)\b")
_RELEASE = re.compile(rb"release (\d+)\.(\d+)")


@dataclass(frozen=True)
class Cubin:
    """What an ELF file says of itself.

    `entries`: names of its kernels. `arch`: such as "sm_90a"; without a suffix where only the number is recorded.
    `cuda`: (major, minor) of the compiler, None where it left no note.
    """

    entries: tuple[str, ...]
    arch: str
    cuda: tuple[int, int] | None


def read(data: bytes) -> Cubin:
    """Raises BundleError where the bytes are no complete cubin."""
    try:
        return _read(data)
    except (struct.error, ValueError, IndexError) as error:
        rule = "a cubin is an ELF file for the CUDA architecture"
        raise BundleError(rule, str(error), "export the bundle again") from None


def _read(data: bytes) -> Cubin:
    ident, _, machine, _, _, _, sections_at, flags, _, _, _, section_size, count, _ = _HEADER.unpack_from(data)
    if ident[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"it starts with {ident[:4]!r}")
    if machine != _EM_CUDA:
        raise ValueError(f"its machine is number {machine}")
    if sections_at + section_size * count > len(data):
        raise ValueError(f"it ends at byte {len(data)}, inside its section table")
    sections = [_SECTION.unpack_from(data, sections_at + i * section_size) for i in range(count)]
    entries: list[str] = []
    for _, kind, _, _, offset, size, link, *_ in sections:
        if kind == _SHT_SYMTAB:
            _, _, _, _, names_at, names_size, *_ = sections[link]
            entries += _kernels(data[offset : offset + size], data[names_at : names_at + names_size])
    number = (flags >> 8 if ident[8] >= _ABI_SECOND_BYTE else flags) & 0xFF
    named, release = _ARCH.search(data), _RELEASE.search(data)
    arch = named.group(1).decode() if named and named.group(1).rstrip(b"af") == b"sm_%d" % number else f"sm_{number}"
    return Cubin(tuple(sorted(entries)), arch, (int(release[1]), int(release[2])) if release else None)


def _kernels(symbols: bytes, names: bytes) -> list[str]:
    found = []
    for name_at, info, _, _, _, size in _SYMBOL.iter_unpack(symbols):
        if info == _STB_GLOBAL << 4 | _STT_FUNC and size:
            found.append(names[name_at : names.index(b"\0", name_at)].decode())
    return found
