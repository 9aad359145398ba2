"""One rank of test_members.py, in a process of its own: `python members_rank.py CASE BUNDLE INIT_FILE RANK WORLD`.

Prints one JSON object with what the case found.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))
from deploy.fake_device import H200, FakeDriver, Machine
from deploy.library_rank import expected, local_inputs
from deploy.library_rank import specs as every_spec
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from tilescale.deploy.library import Unfused
from tilescale.deploy.load import load
from tilescale.deploy.members import members_of
from tilescale.errors import TilescaleError


def refusal(act):
    try:
        act()
    except TilescaleError as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def rows(rank):
    """This rank of the job's rows."""
    return torch.arange(128 * 64).reshape(128, 64).remainder(7).add(rank * 8).to(torch.bfloat16)


def gathered(ops, ranks, rank):
    with torch.no_grad():
        found = ops.gather(rows(rank))
    return torch.equal(found, torch.cat([rows(each) for each in ranks]))


def subsets(bundle, rank, world):
    """B7: {0, 1, 2}, then all; {0, 1} and {1, 2}, loaded together; and in orders that are not the groups'."""
    found = {}
    for sets in (((0, 1, 2), (0, 1, 2, 3)), ((0, 1), (1, 2))):
        groups = [dist.new_group(list(ranks)) for ranks in sets]
        loaded = {ranks: load(bundle, group, "library")
                  for ranks, group in zip(sets, groups, strict=True) if rank in ranks}
        for _ in range(2):
            for ranks, ops in loaded.items():
                found[f"{ranks}"] = gathered(ops, ranks, rank)
    group = dist.new_group([0, 1, 2])
    if rank in (0, 1, 2):
        found["order"] = gathered(load(bundle, group, "library", ranks=(2, 0, 1)), (2, 0, 1), rank)
    found["whole order"] = gathered(load(bundle, None, "library", ranks=(3, 1, 0, 2)), (3, 1, 0, 2), rank)
    return found


def refused(bundle, rank, world):
    group = dist.new_group([0, 1, 2])
    pair = dist.new_group([2, 3])
    mesh = DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("dp", "tp"))
    found = {"two axes": refusal(lambda: load(bundle, mesh, "library"))}
    found["both"] = refusal(lambda: load(bundle, mesh["tp"], "library", ranks=(1, 0)))
    if rank == 3:
        found["no member"] = refusal(lambda: load(bundle, group, "library"))
    else:
        own = FakeDriver(Machine(), rank, replace(H200, uuid=f"gpu-{rank}"))
        found["size"] = refusal(lambda: load(bundle, group, find=lambda ordinal: own))
        found["other ranks"] = refusal(lambda: load(bundle, group, "library", ranks=(0, 1, 3)))
    if rank in (2, 3):  # a launcher that left both on one device
        crowded = FakeDriver(Machine(), rank, replace(H200, sms=100))
        found["sharing"] = refusal(lambda: load(bundle, pair, find=lambda ordinal: crowded))
    return found


def axes(bundle, rank, world):
    """Each axis of a 2-D mesh whose ranks are in no order, by kernels on fake devices and by the library."""
    mesh = DeviceMesh("cpu", [[2, 0], [1, 3]], mesh_dim_names=("dp", "tp"))
    found = {}
    warnings.simplefilter("ignore")
    for name in ("dp", "tp"):
        part = mesh[name]
        ranks = [int(each) for each in part.mesh]
        driver = FakeDriver(Machine(), rank, replace(H200, uuid=f"gpu-{rank}"))
        ready = load(bundle, part, find=lambda ordinal, driver=driver: driver)
        found[f"{name} place"] = ready.gather.rank == ranks.index(rank)
        ready.close()
        ops = load(bundle, part, "library")
        found[name] = gathered(ops, ranks, rank)
        whole = torch.cat([rows(each) for each in ranks])
        shard = DTensor.from_local(rows(rank), part, [Shard(0)])
        with torch.no_grad():
            out = ops.gather(shard)
            found[f"{name} dtensor"] = out.placements == (Replicate(),) and torch.equal(out.to_local(), whole)
            other = DTensor.from_local(rows(rank), DeviceMesh("cpu", [0, 1, 2, 3]), [Shard(0)])
            found[f"{name} other mesh"] = refusal(lambda ops=ops, other=other: ops.gather(other))
    return found


def reordered(bundle, rank, world):
    """Every operation by library calls, with ranks in another order than the group's."""
    members = members_of(torch, None, (2, 0, 1))
    found = {}
    for spec in every_spec(world):
        library = Unfused(torch, spec, members.group, members.distributed)
        inputs, wanted = local_inputs(spec, members.rank), expected(spec, members.rank, world)
        shape = library.shape([value.shape for value in inputs], world)
        out = torch.full_like(wanted, 77)
        library(inputs, out)
        found[f"{spec.label} {spec.output.view.label}"] = torch.equal(out, wanted) and list(wanted.shape) == list(shape)
    return found


def main():
    case, bundle, init, rank, world = sys.argv[1:]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{init}", rank=int(rank), world_size=int(world))
    print(json.dumps(globals()[case](bundle, int(rank), int(world))), flush=True)
    dist.barrier()
    os._exit(0)  # gloo's threads now and then abort a process that takes its groups apart


if __name__ == "__main__":
    main()
