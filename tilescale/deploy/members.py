"""The ranks of an operation among those of the job: a process group, or one axis of a mesh, in any order.

Torch numbers the ranks of most groups in ascending order, whatever order they were given in. A mesh keeps its order, and so
does a DTensor placed on it: its shard 0 lies on the first rank of the mesh. Members hold that order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilescale.errors import BundleError
from tilescale.spec.mesh import is_device_mesh, mesh_ranks

_MEMBERS_ONLY = "call load on members alone"


@dataclass(frozen=True)
class Members:
    """`ranks[i]` is the rank in the job of the operation's rank i, `rank` the one that this process has among them.
    `group`: the torch process group of all. `distributed`: torch.distributed, or the same calls in the order of `ranks`."""

    group: Any
    ranks: tuple[int, ...]
    rank: int
    distributed: Any

    @property
    def world(self) -> int:
        return len(self.ranks)

    def gather(self, value: Any) -> list[Any]:
        """What every rank gives, in their order."""
        answers: list[Any] = [None] * self.world
        self.distributed.all_gather_object(answers, value, group=self.group)
        return answers


def members_of(torch: Any, group: Any = None, ranks: Sequence[int] | None = None) -> Members:
    """Those of `group`: a process group, None for the default one, or a DeviceMesh of one axis, in the order of the mesh.
    `ranks`: their ranks in the job, in another order. Not collective; BundleError where this process is none of them."""
    distributed = torch.distributed
    if is_device_mesh(group):
        if ranks is not None:
            raise BundleError("a mesh has the order of its ranks", f"also ranks={list(ranks)}", "give one of them")
        group, ranks = _of_mesh(group)
    if distributed.get_rank(group) < 0:
        raise BundleError("a rank that loads is in the group", "this one is not", _MEMBERS_ONLY)
    listed = [int(rank) for rank in distributed.get_process_group_ranks(group)]
    wanted = listed if ranks is None else list(ranks)
    if sorted(wanted) != sorted(listed):
        raise BundleError(f"ranks orders the ranks of the group: {sorted(listed)}, each once", wanted,
                          "make a group of those ranks with torch.distributed.new_group")
    if wanted == listed:
        return Members(group, tuple(listed), int(distributed.get_rank(group)), distributed)
    reordered = Reordered(torch, [listed.index(rank) for rank in wanted])
    group = distributed.group.WORLD if group is None else group  # broadcast asks it for the rank in the job
    return Members(group, tuple(wanted), reordered.get_rank(group), reordered)


def _of_mesh(mesh: Any) -> tuple[Any, list[int]]:
    if mesh.ndim != 1:
        remedy = 'pass one axis of it, such as mesh["tp"], or flatten it'
        raise BundleError("operations are loaded on a mesh of one axis", f"{mesh.ndim} axes", remedy)
    if mesh.get_coordinate() is None:
        raise BundleError("a rank that loads is in the mesh", "this one is not", _MEMBERS_ONLY)
    return mesh.get_group(), mesh_ranks(mesh)


class Reordered:
    """The calls of torch.distributed that this room makes, with ranks counted in another order than the group's.

    `order[i]`: rank in the group of the rank that counts as i. Lists and shards come and go in the order of `order`.
    """

    def __init__(self, torch: Any, order: Sequence[int]) -> None:
        self._torch, self._real = torch, torch.distributed
        self._order = tuple(order)
        self._places = tuple(self._order.index(rank) for rank in range(len(self._order)))

    def get_rank(self, group: Any = None) -> int:
        return self._places[int(self._real.get_rank(group))]

    def get_world_size(self, group: Any = None) -> int:
        return len(self._order)

    def get_global_rank(self, group: Any, rank: int) -> int:
        return int(self._real.get_process_group_ranks(group)[self._order[rank]])

    def all_gather_object(self, answers: list[Any], value: Any, group: Any = None) -> None:
        found: list[Any] = [None] * len(self._order)
        self._real.all_gather_object(found, value, group=group)
        answers[:] = self._counted(found)

    def all_gather_into_tensor(self, whole: Any, part: Any, group: Any = None) -> None:
        found = [self._torch.empty_like(part) for _ in self._order]
        self._real.all_gather(found, part, group=group)
        for target, value in zip(whole.chunk(len(self._order)), self._counted(found), strict=True):
            target.copy_(value)

    def reduce_scatter_tensor(self, part: Any, addend: Any, group: Any = None) -> None:
        shards = addend.chunk(len(self._order))
        self._real.reduce_scatter_tensor(part, self._torch.cat(self._listed(shards)), group=group)

    def all_reduce(self, value: Any, group: Any = None) -> None:
        self._real.all_reduce(value, group=group)

    def broadcast(self, value: Any, source: int, group: Any = None) -> None:
        """`source` is a rank of the job, as torch has it."""
        self._real.broadcast(value, source, group=group)

    def all_to_all_single(
        self, received: Any, sent: Any, received_sizes: Sequence[int], sent_sizes: Sequence[int], group: Any = None
    ) -> None:
        found, sizes = self._torch.empty_like(received), self._listed(received_sizes)
        given = self._torch.cat(self._listed(sent.split(list(sent_sizes))))
        self._real.all_to_all_single(found, given, sizes, self._listed(sent_sizes), group=group)
        received.copy_(self._torch.cat(self._counted(found.split(sizes))))

    def _counted(self, values: Sequence[Any]) -> list[Any]:
        """From the order of the group to this one."""
        return [values[rank] for rank in self._order]

    def _listed(self, values: Sequence[Any]) -> list[Any]:
        """From this order to that of the group."""
        return [values[place] for place in self._places]
