"""Device meshes, accepted as torch has them, without importing torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilescale.errors import TopologyError


def is_device_mesh(value: object) -> bool:
    """Whether ``value`` is a torch DeviceMesh (by class name, so that torch is not imported for it)."""
    return any(base.__name__ == "DeviceMesh" for base in type(value).__mro__)


def mesh_ranks(mesh: Any) -> list[int]:
    """Ranks of a DeviceMesh in the job, in the order of its places; empty where it does not say."""
    places = getattr(mesh, "mesh", None)
    return [] if places is None else [int(rank) for rank in places.flatten().tolist()]


def mesh_axes(value: object) -> tuple[tuple[str, int], ...]:
    """(name, size) of each axis of a DeviceMesh, a mapping of names to sizes, or a sequence of such pairs.

    Axes without a name are named by their index. Raises TopologyError for anything else.
    """
    if is_device_mesh(value):
        mesh: Any = value
        ranks = mesh_ranks(mesh)
        if len(set(ranks)) < len(ranks):
            raise TopologyError("a mesh has every rank once", ranks, "give each place of the mesh a rank of its own")
        shape = tuple(int(size) for size in mesh.shape)
        names = mesh.mesh_dim_names or tuple(str(axis) for axis in range(len(shape)))
        return tuple((str(name), size) for name, size in zip(names, shape, strict=True))
    pairs: Any = value.items() if isinstance(value, Mapping) else value
    try:
        axes = tuple((name, size) for name, size in pairs)
    except (TypeError, ValueError):
        axes = ()
    if not axes or not all(isinstance(n, str) and n and type(s) is int and s > 0 for n, s in axes):
        raise TopologyError(
            "a mesh is a DeviceMesh or {axis name: size}", repr(value), 'for example {"dp": 2, "tp": 4}'
        )
    return axes
