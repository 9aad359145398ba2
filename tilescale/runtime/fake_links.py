"""A rank of a calibration that has no GPU: gives times of links that are made up, in the same words as a real one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tilescale import canon
from tilescale.runtime.link_job import Case
from tilescale.runtime.rank import RankContext, RankReport

WORKER = "tilescale.runtime.fake_links:FakeLinkRank"
BLOCK_GBPS, LINK_GBPS, START_US, TRIP_US = 30.0, 380.0, 2.0, 1.6
_WHOLE_SMS = 132


def copy_us(case: Case) -> float:
    """A rate that grows with the blocks up to the link's, behind a start; gets are a tenth slower."""
    rate = min(LINK_GBPS, case.blocks * BLOCK_GBPS) if case.blocks else LINK_GBPS
    return (START_US + case.size_bytes / rate / 1e3) * (1.1 if case.direction == "get" else 1.0)


class FakeLinkRank:
    """Jobs as of gpu_links.LinkRank. Ranks have a GPU each, or with `share_sms` one together."""

    def __init__(self, context: RankContext) -> None:
        self._context = context

    def prepare(self, job: Mapping[str, Any], blob: bytes) -> str:
        return canon.digest(job)

    def run(self, job: Mapping[str, Any], blob: bytes) -> RankReport:
        rank, world, share = self._context.rank, self._context.world, int(self._context.settings["share_sms"])
        if job["do"] == "facts":
            known = {"uuid": f"fake-{0 if share else rank}", "gpu": "none", "driver": "", "cuda": 0, "torch": "",
                     "sms": share or _WHOLE_SMS, "groups": world if share else 1, "blocks_per_sm": 1, "absent": 0,
                     "visible": "", "lacks": [""] * world}
            return RankReport("ok", message=json.dumps(known))
        if job["do"] == "check" or (job["do"] != "together" and rank != job["actor"]):
            return RankReport("ok")
        if job["do"] == "ping":
            return RankReport("ok", message=json.dumps([[TRIP_US] * job["samples"]]))
        cases = [canon.decode(Case, encoded) for encoded in job["cases"]]
        return RankReport("ok", message=json.dumps([[copy_us(case)] * job["samples"] for case in cases]))
