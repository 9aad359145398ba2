"""Transports: how bytes get to or from a peer. One file each; sorted discovery finds them."""

from __future__ import annotations

from dataclasses import dataclass

from tilescale.registry import Registry


@dataclass(frozen=True)
class Transport:
    """What lowering and emission need to know of a transport.

    `agent`: "blocks" (copy blocks of a kernel) or "copy_engine" (copies recorded by the host). `arches`: prefixes of
    architectures it compiles for; empty means all. `alignment`: bytes that offsets and sizes must be multiples of.
    `config`: constants of the kernel's Config, as (name, value) pairs. `shared_bytes`: what its pipeline takes.
    `multicast`: it reaches all ranks at once, through a switch: where ranks push, everyone receives the same bytes; where
    they pull, they receive a sum.
    """

    name: str
    summary: str
    agent: str
    alignment: int
    arches: tuple[str, ...] = ()
    config: tuple[tuple[str, int], ...] = ()
    shared_bytes: int = 0
    multicast: bool = False

    def compiles_for(self, arch: str) -> bool:
        return not self.arches or arch.startswith(self.arches)


TRANSPORTS: Registry[Transport] = Registry("transport", package="tilescale.schedules.transports")
