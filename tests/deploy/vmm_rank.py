"""One rank of test_vmm.py, in a process of its own: `python vmm_rank.py INIT_FILE RANK WORLD`.

Makes symmetric memory with the other ranks, writes into every rank's, and prints as JSON what they wrote into its own.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))
from deploy.fake_vmm import VmmDriver

from tilescale.deploy.members import members_of
from tilescale.deploy.symmetric import SymmetricMemory


def main():
    init, rank, world = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    dist.init_process_group("gloo", init_method=f"file://{init}", rank=rank, world_size=world)
    driver, found = VmmDriver(rank), {"before": len(os.listdir("/proc/self/fd"))}
    exchange = members_of(torch).gather
    for round_ in range(2):
        memory = SymmetricMemory(driver, rank, 3 << 20, exchange)
        found["zeroed"] = not any(driver.download(memory.own, 4096))
        for peer, address in enumerate(memory.addresses):
            driver.upload(address + (1 << 20) + 8 * rank, bytes([round_, rank, peer]))
        exchange(b"")
        found[f"written {round_}"] = [list(driver.download(memory.own + (1 << 20) + 8 * peer, 3)) for peer in range(world)]
        memory.close()
    found["left"] = driver._cu.live
    found["after"] = len(os.listdir("/proc/self/fd"))
    print(json.dumps(found), flush=True)
    dist.barrier()
    os._exit(0)  # gloo's threads now and then abort a process that takes its groups apart


if __name__ == "__main__":
    main()
