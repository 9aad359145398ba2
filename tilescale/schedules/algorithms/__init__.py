"""Algorithms: which rank sends which chunk to whom, in which order. One file each; sorted discovery finds them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilescale.registry import Registry


@dataclass(frozen=True)
class Transfer:
    """Chunk `chunk` of rank `source`'s shard goes to rank `target`, from `source` or from who passes it on."""

    source: int
    target: int
    chunk: int


@dataclass(frozen=True)
class Algorithm:
    """How what a rank holds reaches those who need it.

    `moves`: kinds of moves it carries out (see spec/operation.py); `computes`: it is about products alone; `forwards`:
    ranks pass on what they have received.
    `outgoing(rank, world, chunks, order)` and `incoming(...)` list the transfers that a rank pushes, and those that it
    pulls or expects, in order. `order` is "peer_major" or "chunk_major".
    """

    name: str
    summary: str
    moves: tuple[str, ...]
    outgoing: Callable[[int, int, int, str], tuple[Transfer, ...]]
    incoming: Callable[[int, int, int, str], tuple[Transfer, ...]]
    computes: bool = False
    forwards: bool = False


ALGORITHMS: Registry[Algorithm] = Registry("algorithm", package="tilescale.schedules.algorithms")
