"""Scripts of tests/deploy run as ranks: a process each, what each printed last as JSON."""

from __future__ import annotations

import json
import subprocess
import sys


def run_ranks(command, world, limit_s=100):
    """`command` with the rank and the world behind it, on every rank; the last line of each, decoded."""
    ranks = [
        subprocess.Popen([sys.executable, *map(str, command), str(rank), str(world)], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True)
        for rank in range(world)
    ]
    try:
        outputs = [rank.communicate(timeout=limit_s) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    for rank, (_, errors) in zip(ranks, outputs, strict=True):
        assert rank.returncode == 0, errors
    return [json.loads(text.splitlines()[-1]) for text, _ in outputs]
