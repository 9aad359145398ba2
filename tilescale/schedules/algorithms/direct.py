"""direct: every shard goes straight from its owner to every other rank, each byte crossing one link once; in a sum, every
part goes straight to the owner of its rows.

Ranks start with different peers (rank r with r + 1), so that at any time every rank sends to one peer and receives from
one.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilescale.schedules.algorithms import ALGORITHMS, Algorithm, Transfer


def _steps(world: int, chunks: int, order: str) -> Iterator[tuple[int, int]]:
    """(distance, chunk) in order."""
    if order == "peer_major":
        yield from ((d, c) for d in range(1, world) for c in range(chunks))
    else:
        yield from ((d, c) for c in range(chunks) for d in range(1, world))


def outgoing(rank: int, world: int, chunks: int, order: str) -> tuple[Transfer, ...]:
    """What `rank` pushes: first to rank + 1."""
    return tuple(Transfer(rank, (rank + d) % world, c) for d, c in _steps(world, chunks, order))


def incoming(rank: int, world: int, chunks: int, order: str) -> tuple[Transfer, ...]:
    """What `rank` receives or pulls: first from rank - 1, which is when rank - 1 sends to it."""
    return tuple(Transfer((rank - d) % world, rank, c) for d, c in _steps(world, chunks, order))


ALGORITHMS.register(Algorithm(
    "direct", "each shard, or part of it, straight from where it is to where it is needed",
    ("exchange", "gather", "reduce_scatter"), outgoing, incoming))
