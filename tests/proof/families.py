"""The plans and schedules of all families that mutants are made of, small."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from handmade import chunked, fused_push, pull, ring
from reduce_plans import gemm_rs, reduce_scatter, stages
from support import ag_gemm, all_gather

from tilescale.schedules.lower import lower
from tilescale.schedules.plan import Plan
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec

TILE = {"block_m": 64, "block_n": 128, "block_k": 64, "num_stages": 3, "raster_group": 8}
FUSED = Schedule(overlap="fused", compute="generated", chunk_rows=64, depth=2, num_comm_blocks=4, **TILE)
LIBRARY = Schedule(overlap="chunked", compute="library", chunk_rows=64, depth=2, num_comm_blocks=4)
COPY = replace(LIBRARY, overlap="fused", compute="generated")
ENGINE = {"transport": "copy_engine", "num_comm_blocks": 0}


def _spec(inputs: str = "ordinary", ranks: int = 3) -> Spec:
    return ag_gemm((128 * ranks, 128 * ranks, 128), ranks, inputs=inputs)


def _gather(inputs: str = "ordinary", ranks: int = 3) -> Spec:
    return all_gather((128 * ranks, 256), ranks, inputs=inputs)


SCHEDULES: dict[str, tuple[Spec, Schedule]] = {
    "fused peer_copy push": (_spec(), FUSED),
    "fused peer_copy pull": (_spec(), replace(FUSED, direction="pull", chunk_order="chunk_major")),
    "fused tma pull symmetric": (_spec("symmetric"), replace(FUSED, transport="tma", direction="pull")),
    "fused copy engine push": (_spec(), replace(FUSED, **ENGINE)),
    "fused copy engine pull": (_spec(), replace(FUSED, direction="pull", **ENGINE)),
    "gemm behind the copies": (_spec(), replace(FUSED, overlap="none", chunk_rows=0, depth=1)),
    "chunked generated": (_spec(), replace(FUSED, overlap="chunked")),
    "chunked library": (_spec(), LIBRARY),
    "chunked library engine pull": (_spec(), replace(LIBRARY, direction="pull", **ENGINE)),
    "library behind the copies": (_spec(), replace(LIBRARY, overlap="none", chunk_rows=0, depth=1)),
    "library pull symmetric": (_spec("symmetric"), replace(LIBRARY, direction="pull")),
    "copy push": (_gather(), COPY),
    "copy tma pull": (_gather(), replace(COPY, transport="tma", direction="pull")),
    "copy pull symmetric": (_gather("symmetric"), replace(COPY, direction="pull")),
    "copy engine chunked": (_gather(), replace(COPY, overlap="chunked", **ENGINE)),
    "copy behind": (_gather(), replace(COPY, overlap="none", chunk_rows=0, depth=1)),
}


@cache
def plans() -> dict[str, Plan]:
    """One plan a family: those of lowered schedules, and protocols that no schedule lowers to yet."""
    found = {name: lower(spec, schedule) for name, (spec, schedule) in SCHEDULES.items()}
    return {
        **found,
        "by hand: fused push": fused_push(3, chunks=2),
        "by hand: pull of blocks": pull(3),
        "by hand: ring": ring(3, blocks=2),
        "by hand: chunked": chunked(3),
        "by hand: gemm_rs": gemm_rs(3, 2, 2),
        "by hand: reduce_scatter": reduce_scatter(3),
        "by hand: all_reduce": reduce_scatter(3, replicate=True),
        "by hand: stages by parity": stages(),
    }
