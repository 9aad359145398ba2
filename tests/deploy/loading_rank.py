"""One rank of test_load.py, in a process of its own: `python loading_rank.py CASE BUNDLE INIT_FILE RANK WORLD`.

Prints one JSON object with what the case found.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))
from deploy.fake_device import H200, FakeDriver, Machine

from tilescale.deploy.load import load
from tilescale.errors import TilescaleError


def refusal(act):
    try:
        act()
    except TilescaleError as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def exact(rank, *shape):
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(-2, 3, shape, generator=generator).to(torch.bfloat16)


def expected(world, rows, weight=None):
    whole = torch.cat([exact(rank, rows, 64) for rank in range(world)])
    return whole if weight is None else (whole.float() @ weight.t().float()).to(torch.bfloat16)


def library(bundle, rank, world):
    """Everything by library calls: tuned and untuned shapes, weights both ways, out=, DTensors, one warning."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        ops = load(bundle, on_mismatch="library")
        weight = exact(7, 64, 64)
        found = {}
        with torch.no_grad():
            for rows in (128, 40):
                out = torch.empty(world * rows, 64, dtype=torch.bfloat16)
                assert ops.gate_up(exact(rank, rows, 64), weight.t(), out=out) is out
                found[f"gemm {rows}"] = torch.equal(out, expected(world, rows, weight))
            wide = exact(8, 96, 64)
            found["weight"] = torch.equal(ops["gate_up"](exact(rank, 128, 64), wide), expected(world, 128, wide))
            found["gather"] = torch.equal(ops.gather(exact(rank, 128, 64)), expected(world, 128))
            found["dtensor"] = dtensor(ops, rank, world)
            found["bad k"] = refusal(lambda: ops.gate_up(exact(rank, 128, 64), exact(0, 65, 32)))
            found["bad out"] = refusal(lambda: ops.gather(exact(rank, 128, 64), out=torch.empty(3, 64).bfloat16()))
        found["gradient"] = refusal(lambda: ops.gate_up(exact(rank, 128, 64), torch.nn.Parameter(wide.float()).bfloat16()))
        found["warnings"] = sorted(str(w.message).split(":")[0] for w in seen if w.category.__name__ == "LibraryFallback")
        found["schedule"] = ops.gate_up.schedule_id
        ops.close()
    return found


def dtensor(ops, rank, world):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    mesh = init_device_mesh("cpu", (world,))
    shard = DTensor.from_local(exact(rank, 128, 64), mesh, [Shard(0)])
    out = ops.gather(shard)
    assert refusal(lambda: ops.gather(DTensor.from_local(exact(rank, 128, 64), mesh, [Replicate()]))).startswith("Bundle")
    return out.placements == (Replicate(),) and torch.equal(out.to_local(), expected(world, 128))


def compiled(bundle, rank, world):
    """E6: torch.compile(fullgraph=True) of matmul, op, gelu; then another bundle."""
    weight, inner = exact(7, 32, 64), torch.eye(64, dtype=torch.bfloat16)
    found = {"equal": [], "keys": []}
    ops = load(bundle, on_mismatch="library")

    def model(x):
        return torch.nn.functional.gelu(ops.gate_up(x @ inner, weight))

    warnings.simplefilter("ignore")
    fast = torch.compile(model, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        with torch.no_grad():
            found["equal"].append(torch.equal(fast(exact(rank, 128, 64)), model(exact(rank, 128, 64))))
        found["keys"].append(ops.gate_up.key)
        ops = load(bundle, on_mismatch="library")
    found["in place"] = in_place(ops, rank, world, weight)
    return found


def in_place(ops, rank, world, weight):
    def model(x, out):
        return ops.gate_up(x, weight, out=out) + 0

    out = torch.zeros(world * 128, 32, dtype=torch.bfloat16)
    with torch.no_grad():
        result = torch.compile(model, fullgraph=True, backend="aot_eager")(exact(rank, 128, 64), out)
    return torch.equal(out, expected(world, 128, weight)) and torch.equal(out, result)


def refused(bundle, rank, world):
    """Reasons that one rank has, told by all."""
    def faked(facts):
        return lambda ordinal: FakeDriver(Machine(), rank, facts)

    own = replace(H200, uuid=f"gpu-{rank}")
    old = replace(own, cuda=12080, driver="570.1")
    found = {
        "no gpu": refusal(lambda: load(bundle)),
        "old driver on rank 1": refusal(lambda: load(bundle, find=faked(old if rank == 1 else own))),
        "crowded": refusal(lambda: load(bundle, find=faked(replace(H200, sms=100)))),
        "mode": refusal(lambda: load(bundle, on_mismatch="ignore")),
    }
    mine = Path(bundle)
    if rank == 1:
        mine = shutil.copytree(bundle, mine.parent / "spoilt")
        next((mine / "text").iterdir()).write_text("spoilt")
    found["spoilt on rank 1"] = refusal(lambda: load(mine, on_mismatch="library"))
    return found


def prepared(bundle, rank, world):
    """Kernels ready on fake devices: what is tuned, what is refused before anything is enqueued."""
    driver = FakeDriver(Machine(), rank, replace(H200, uuid=f"gpu-{rank}"))
    ops = load(bundle, find=lambda ordinal: driver)
    found = {
        "names": list(ops), "shapes": ops.gate_up.shapes, "schedule": ops.gate_up.schedule_id, "reason": ops.reason,
        "untuned": refusal(lambda: ops.gate_up(exact(0, 40, 64), exact(0, 32, 64))),
        "unknown": refusal(lambda: ops["gate_pu"]),
        "on cpu": refusal(lambda: ops.gather(exact(0, 128, 64))),
        "count": refusal(lambda: ops.gather(exact(0, 128, 64), exact(0, 128, 64))),
    }
    found["enqueued"] = list(driver.calls)
    meta = torch.empty(128, 64, dtype=torch.bfloat16, device="meta")
    weight = torch.empty(64, 64, dtype=torch.bfloat16, device="meta").t()
    out = torch.ops.tilescale.call([meta, weight], ops.gate_up.key)
    found["meta"] = [list(out.shape), str(out.dtype), str(out.device)]
    found["meta untuned"] = refusal(lambda: torch.ops.tilescale.call([meta[:3], weight], ops.gate_up.key))
    ops.close()
    found["memory"] = len(driver.machine.memory) + len(driver.opened) + len(driver.modules)
    return found


def main():
    case, bundle, init, rank, world = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{init}", rank=int(rank), world_size=int(world))
    print(json.dumps(globals()[case](bundle, int(rank), int(world))), flush=True)
    dist.barrier()
    os._exit(0)  # gloo's threads now and then abort a process that takes its groups apart


if __name__ == "__main__":
    main()
