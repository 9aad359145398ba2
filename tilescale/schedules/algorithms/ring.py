"""ring: ranks stand in a ring, and all that a rank sends goes to the next one, chunk by chunk, so that each link between
neighbours carries everything once, and no other link anything.

In a gather, a rank sends its own shard and passes on what it receives, until every shard has come to the rank before its
owner: world - 1 hops. In a sum, what travels is a sum that is not complete: the rank behind an owner starts it with its own
part, every rank adds its part, and the owner, which is reached last, rounds it. Such a sum is float32 whatever the parts
are, so it is rounded once, as that of other algorithms is; it is added in the order of the ring, which begins behind the
owner. Sums that every rank wants go round once more.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilescale.schedules.algorithms import ALGORITHMS, Algorithm, Transfer


def _hops(world: int, chunks: int, order: str) -> Iterator[tuple[int, int]]:
    """(distance from the owner, chunk) in order."""
    if order == "peer_major":
        yield from ((d, c) for d in range(world - 1) for c in range(chunks))
    else:
        yield from ((d, c) for c in range(chunks) for d in range(world - 1))


def outgoing(rank: int, world: int, chunks: int, order: str) -> tuple[Transfer, ...]:
    """What `rank` sends to the next one: its own chunks, then those that came from ever further."""
    return tuple(Transfer((rank - d) % world, (rank + 1) % world, c) for d, c in _hops(world, chunks, order))


def incoming(rank: int, world: int, chunks: int, order: str) -> tuple[Transfer, ...]:
    """What `rank` receives from the one before: that one's chunks first."""
    return tuple(Transfer((rank - 1 - d) % world, rank, c) for d, c in _hops(world, chunks, order))


ALGORITHMS.register(Algorithm(
    "ring", "everything to the next rank, which passes it on, or adds its part to it",
    ("gather", "reduce_scatter", "all_reduce"), outgoing, incoming, forwards=True))
