"""The machine at hand as the package describes it: GPUs by UUID, SMs, memory, links, peer access, native atomics.

    python benchmarks/topology.py [-o benchmarks/results/topology.json]

Runs `tilescale topology here --json`, asks the CUDA driver for what it can confirm, and keeps one entry a machine in the
result: those of other machines stay.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import common

from tilescale.runtime.clocks import nvml_uuid
from tilescale.runtime.gpu_driver import RankDriver
from tilescale.spec.topology import Topology

RESULT = common.ROOT / "benchmarks" / "results" / "topology.json"


def described() -> dict[str, Any]:
    """What the command says."""
    command = [sys.executable, "-m", "tilescale.cli", "topology", "here", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=common.ROOT)
    if done.returncode:
        raise SystemExit(done.stderr.strip())
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def driven(count: int) -> list[dict[str, Any]]:
    """What the CUDA driver says of each visible GPU, in its own order."""
    drivers = [RankDriver(ordinal, 0, 1, 0, 0) for ordinal in range(count)]
    facts = [driver.facts() for driver in drivers]
    uuids = [each.uuid for each in facts]
    return [
        {
            "uuid": nvml_uuid(each.uuid),
            "name": each.name,
            "capability": list(each.capability),
            "sms": each.sms,
            "shared_bytes": each.shared_bytes,
            "driver": each.driver,
            "lacks": dict(zip(map(nvml_uuid, uuids), driver.reach(uuids), strict=True)),
        }
        for driver, each in zip(drivers, facts, strict=True)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=RESULT)
    given = parser.parse_args()
    topology = Topology.detect()
    command = described()
    cuda = driven(len(command["gpus"]))
    entry = {
        **common.header("topology"),
        "detected": {"name": topology.name, "digest": topology.digest, "ranks": topology.ranks},
        "described": command,
        "cuda": cuda,
        "agree": {
            "uuids": {gpu["uuid"] for gpu in command["gpus"]} == {gpu["uuid"] for gpu in cuda},
            "sms": {gpu["sms"] for gpu in cuda} == {topology.gpu.sms},
            "peers": topology.link.peer_access == (not any(any(gpu["lacks"].values()) for gpu in cuda)),
            "digest": command["digest"] == topology.digest,
        },
        # CUDA may count equal GPUs in an order of its own: ranks are therefore given their GPUs by UUID.
        "same_order": [gpu["uuid"] for gpu in command["gpus"]] == [gpu["uuid"] for gpu in cuda],
    }
    known = json.loads(given.output.read_text()) if given.output.exists() else {"name": "topology", "machines": {}}
    known["machines"][topology.name] = entry
    given.output.write_text(json.dumps(known, indent=1) + "\n")
    print(json.dumps({"detected": entry["detected"], "agree": entry["agree"], "gpus": command["gpus"]}))
    return 0 if all(entry["agree"].values()) else 1


if __name__ == "__main__":
    common.run(main)
