"""Places in one allocation, so that candidates share peer memory that was exchanged once."""

from __future__ import annotations

GRAIN = 4096


class Arena:
    """First fit in `size` bytes; offsets are multiples of GRAIN."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._live: dict[int, int] = {}

    @property
    def used(self) -> int:
        """Bytes in use."""
        return sum(self._live.values())

    def take(self, size: int) -> int | None:
        """The offset of a place of `size` bytes; None where none is free."""
        wanted, at = -(-max(size, 1) // GRAIN) * GRAIN, 0
        for start, length in sorted(self._live.items()):
            if start - at >= wanted:
                break
            at = start + length
        if at + wanted > self.size:
            return None
        self._live[at] = wanted
        return at

    def give(self, offset: int) -> None:
        """Free a place that was taken; KeyError for another."""
        del self._live[offset]
