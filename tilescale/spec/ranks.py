"""Which ranks a declaration is about: the mesh axis its views lie on, and the topology of that axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilescale.errors import SpecError, nearest
from tilescale.spec.mesh import is_device_mesh, mesh_ranks
from tilescale.spec.tensor import Tensor
from tilescale.spec.topology import Topology
from tilescale.spec.views import BlockView, ReplicateView


def as_topology(value: object) -> Topology:
    """A Topology as it is; a torch DeviceMesh means the GPUs at hand with the axes of that mesh."""
    if isinstance(value, Topology):
        return value
    if is_device_mesh(value):
        mesh: Any = value
        return _described(mesh_ranks(mesh), len(mesh.shape)).with_ranks(int(mesh.size())).with_mesh(mesh)
    raise SpecError(
        "topology is a Topology or a DeviceMesh", repr(value), 'for example Topology.named("8xH200-NVSwitch", ranks=4)'
    )


def _described(ranks: Sequence[int], axes: int) -> Topology:
    """The GPUs at hand; of a mesh of one axis within this host, those of its ranks: pairs may be joined by other links."""
    here = Topology.detect()
    part = axes == 1 and 0 < len(ranks) < here.ranks and max(ranks) < here.ranks
    return Topology.detect(ranks) if part else here


def resolve(topology: object, tensors: Sequence[Tensor]) -> tuple[Topology, list[Tensor]]:
    """The topology of the ranks that take part, and the tensors with views free of mesh axes.

    On a mesh with several axes a declaration lies on one of them, and is about ranks along that axis only; Block views
    take both axes of a 2-D mesh. Equal work on equal ranks thereby gives equal specs, whatever the axis is called.
    """
    machine = as_topology(topology)
    bare = [tensor.with_view(tensor.view.bare()) for tensor in tensors]
    named = sorted({tensor.view.mesh_axis for tensor in tensors if tensor.view.mesh_axis})
    if any(isinstance(tensor.view, BlockView) for tensor in tensors):
        return _block(machine, named), bare
    if len(named) > 1:
        raise SpecError("the views of a declaration lie on one mesh axis", named, "redistribute along one axis first")
    unnamed = [t.view.label for t in tensors if not t.view.mesh_axis and not isinstance(t.view, ReplicateView)]
    if named and unnamed:
        raise SpecError(
            "every view of a declaration names the mesh axis, or none does",
            f"{', '.join(unnamed)} without one, others on {named[0]!r}",
            f"add .on({named[0]!r})",
        )
    return _along(machine, named[0] if named else None), bare


def _block(machine: Topology, named: list[str]) -> Topology:
    if named or len(machine.mesh) not in (0, 2):
        raise SpecError(
            "Block views lie on both axes of a 2-D mesh",
            f"mesh {machine.mesh}, axes named {named}",
            'give topology.with_mesh({"row": 2, "col": 2}) and Block without .on()',
        )
    return machine


def _along(machine: Topology, axis: str | None) -> Topology:
    if not machine.mesh:
        return machine
    sizes = dict(machine.mesh)
    names = list(sizes)
    if axis is None:
        wide = [name for name, size in machine.mesh if size > 1]
        if len(wide) > 1:
            raise SpecError("on a mesh with several axes a view names its own", f"mesh {sizes}", "use view.on(axis)")
        return machine.with_ranks(machine.ranks)
    if axis not in sizes and axis.isdigit() and int(axis) < len(names):
        axis = names[int(axis)]
    if axis not in sizes:
        raise SpecError("a view lies on an axis of the mesh", repr(axis), nearest(axis, names))
    if sizes[axis] != machine.ranks and machine.kind != "real":
        raise SpecError(
            "on a shared GPU every rank takes part",
            f"axis {axis!r} has {sizes[axis]} of {machine.ranks} ranks",
            f"make the topology with ranks={sizes[axis]}",
        )
    return machine.with_ranks(sizes[axis])
