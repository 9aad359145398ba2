"""The plans and schedules of all families that mutants are made of, small."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from handmade import chunked, fused_push, pull, ring
from reduce_plans import gemm_rs, reduce_scatter, stages
from support import ag_gemm, all_gather, contraction, in_blocks, reduction, routed, scaled
from support import gemm_rs as product

from tilescale.schedules.lower import lower
from tilescale.schedules.plan import Plan
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec
from tilescale.spec.topology import Topology
from tilescale.spec.views import FullRow, Replicate

TILE = {"block_m": 64, "block_n": 128, "block_k": 64, "num_stages": 3, "raster_group": 8}
FUSED = Schedule(overlap="fused", compute="generated", chunk_rows=64, depth=2, num_comm_blocks=4, **TILE)
LIBRARY = Schedule(overlap="chunked", compute="library", chunk_rows=64, depth=2, num_comm_blocks=4)
COPY = replace(LIBRARY, overlap="fused", compute="generated")
ENGINE = {"transport": "copy_engine", "num_comm_blocks": 0}
TILELESS = {"block_m": 0, "block_n": 0, "block_k": 0, "num_stages": 0, "raster_group": 0}
PLAIN = {"overlap": "none", "chunk_rows": 0, "depth": 1}
SCATTER = replace(FUSED, algorithm="scatter", depth=1, num_comm_blocks=0)
BESIDE = replace(SCATTER, chunk_order="chunk_major", sum_blocks=2)
SPANNING = replace(FUSED, depth=1, num_comm_blocks=2)
ONE_SHOT, TWO_SHOT, RING = ({"algorithm": name} for name in ("one_shot", "two_shot", "ring"))
GANG = Schedule(compute="generated", num_comm_blocks=2)
EXPERTS = replace(GANG, **TILE)
EXPERT_BYTES = replace(EXPERTS, block_k=128)
LOCAL = Schedule(compute="generated", **{**TILE, "num_stages": 6, "raster_group": 4})
SPLIT = replace(LOCAL, block_m=128, split_k=2)
STREAM = replace(LOCAL, stream_k=1)
TURNS = replace(LOCAL, consumers="pingpong", num_stages=4)
BYTES = replace(LOCAL, block_m=128, block_k=128, num_stages=3)
FEW = replace(LOCAL, block_m=16, block_n=64, block_k=128, split_k=2)


MULTIMEM = replace(COPY, transport="multimem")
SWITCHED = Topology.named("8xH200-NVSwitch", ranks=3)
BEFORE = Topology.named("4xA100-NVLink", ranks=3)  # of sm_80


def _spec(inputs: str = "ordinary", ranks: int = 3, on: Topology | None = None) -> Spec:
    return ag_gemm((128 * ranks, 128 * ranks, 128), ranks, inputs=inputs, on=on)


def _few() -> Spec:
    """Shards of half as many rows as a tile."""
    return ag_gemm((128, 256, 128), 4)


def _kept(inputs: str = "ordinary") -> Spec:
    """What is gathered is an output too."""
    return ag_gemm((384, 384, 128), 3, inputs=inputs, gathered=True)


def _gather(inputs: str = "ordinary", ranks: int = 3, on: Topology | None = None) -> Spec:
    return all_gather((128 * ranks, 256), ranks, inputs=inputs, on=on)


def _product(out: str = "FullRow", shape: tuple[int, int, int] = (384, 256, 384), on: Topology | None = None) -> Spec:
    return product(shape, 3, out=out, on=on)


def _local(rows: int = 304, order: str = "row", dtype: str = "bfloat16", depth: int = 816) -> Spec:
    """What every rank multiplies by itself: nothing is sent, and the parts stay where they are."""
    return product((rows, 304, depth), 2, out="Partial", order=order, dtype=dtype)


def _sum(to: object = Replicate, rows: int = 384, inputs: str = "ordinary", on: Topology | None = None) -> Spec:
    return reduction((rows, 24), 3, to=to, inputs=inputs, on=on)


def _contraction(name: str = "weights", inputs: str = "ordinary") -> Spec:
    return contraction(name, (192, 192, 384), 3, inputs=inputs)


SCHEDULES: dict[str, tuple[Spec, Schedule]] = {
    "fused peer_copy push": (_spec(), FUSED),
    "fused peer_copy pull": (_spec(), replace(FUSED, direction="pull", chunk_order="chunk_major")),
    "fused tma pull symmetric": (_spec("symmetric"), replace(FUSED, transport="tma", direction="pull")),
    "fused copy engine push": (_spec(), replace(FUSED, **ENGINE)),
    "fused copy engine pull": (_spec(), replace(FUSED, direction="pull", **ENGINE)),
    "kept push": (_kept(), FUSED),
    "kept pull symmetric": (_kept("symmetric"), replace(FUSED, direction="pull")),
    "kept on streams": (_kept(), LIBRARY),
    "kept by copy engine": (_kept(), replace(FUSED, **ENGINE)),
    "kept behind": (_kept(), replace(FUSED, overlap="none", chunk_rows=0, depth=1)),
    "gemm behind the copies": (_spec(), replace(FUSED, overlap="none", chunk_rows=0, depth=1)),
    "tiles of several shards": (_few(), SPANNING),
    "tiles of several shards, copy engine": (_few(), replace(SPANNING, **ENGINE)),
    "tiles of several shards, behind the copies": (_few(), replace(SPANNING, overlap="none", chunk_rows=0)),
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
    "gemm_rs push": (_product(), FUSED),
    "gemm_rs pull": (_product(), replace(FUSED, direction="pull", depth=1, num_comm_blocks=0)),
    "gemm_rs scatter": (_product(), SCATTER),
    "gemm_rs scatter behind": (_product(), replace(SCATTER, overlap="none", chunk_rows=0)),
    "gemm_rs scatter by chunk": (_product(), replace(SCATTER, chunk_order="chunk_major")),
    "gemm_rs of few rows": (_product(shape=(2, 256, 384)), replace(SCATTER, overlap="fused")),
    "gemm_rs copy engine": (_product(), replace(FUSED, **ENGINE)),
    "gemm_rs chunked library": (_product(), replace(LIBRARY, depth=2)),
    "gemm_ar one_shot": (_product("Replicate"), replace(FUSED, **ONE_SHOT)),
    "gemm_ar one_shot pull": (
        _product("Replicate"), replace(FUSED, direction="pull", num_comm_blocks=0, **ONE_SHOT, **PLAIN)),
    "gemm_ar two_shot": (_product("Replicate"), replace(FUSED, **TWO_SHOT)),
    "gemm_ar scatter": (_product("Replicate"), SCATTER),
    "gemm_ar scatter, sums beside": (_product("Replicate", (768, 256, 384)), BESIDE),
    "gemm_ar two_shot, sums beside": (
        _product("Replicate", (768, 256, 384)), replace(BESIDE, direction="pull", **TWO_SHOT)),
    "gemm_rs pull, sums beside": (_product(shape=(768, 256, 384)), replace(BESIDE, direction="pull", algorithm="direct")),
    "gemm_ar two_shot chunked": (_product("Replicate"), replace(FUSED, overlap="chunked", **TWO_SHOT)),
    "all_reduce one_shot push": (_sum(), replace(COPY, **ONE_SHOT, **PLAIN)),
    "all_reduce one_shot pull": (_sum(), replace(COPY, direction="pull", **ONE_SHOT)),
    "all_reduce two_shot push": (_sum(), replace(COPY, transport="tma", **TWO_SHOT)),
    "all_reduce two_shot pull": (_sum(), replace(COPY, direction="pull", **TWO_SHOT, **PLAIN)),
    "all_reduce symmetric": (_sum(inputs="symmetric"), replace(COPY, direction="pull", **ONE_SHOT, **PLAIN)),
    "all_reduce in packets": (_sum(), replace(COPY, protocol="ll", **ONE_SHOT, **PLAIN)),
    "all_reduce in packets twice": (_sum(), replace(COPY, protocol="ll", **TWO_SHOT, **PLAIN)),
    "all_gather in packets": (_gather(), replace(COPY, protocol="ll", **PLAIN)),
    "reduce_scatter in packets": (_sum(FullRow), replace(COPY, protocol="ll", **PLAIN)),
    "all_reduce in packets, then bias": (
        reduction((96, 24), 3, then=("bias", "accumulate")), replace(COPY, protocol="ll", **ONE_SHOT, **PLAIN)),
    "all_reduce copy engine": (_sum(), replace(COPY, **TWO_SHOT, **ENGINE)),
    "reduce_scatter uneven": (_sum(FullRow, 100), replace(COPY, depth=1, num_comm_blocks=2)),
    "reduce_scatter pull": (_sum(FullRow), replace(COPY, direction="pull", **PLAIN)),
    "all_gather multimem": (_gather(on=SWITCHED), MULTIMEM),
    "ag_gemm multimem": (_spec(on=SWITCHED), replace(FUSED, transport="multimem")),
    "reduce_scatter multimem": (_sum(FullRow, on=SWITCHED), replace(MULTIMEM, direction="pull")),
    "all_reduce multimem one_shot": (_sum(on=SWITCHED), replace(MULTIMEM, direction="pull", **ONE_SHOT, **PLAIN)),
    "all_reduce multimem two_shot": (_sum(on=SWITCHED), replace(MULTIMEM, direction="pull", **TWO_SHOT)),
    "gemm_ar multimem": (_product("Replicate", on=SWITCHED), replace(
        FUSED, transport="multimem", direction="pull", depth=1, num_comm_blocks=0, **ONE_SHOT)),
    "weights push": (_contraction(), FUSED),
    "weights pull": (_contraction(), replace(FUSED, direction="pull", chunk_order="chunk_major")),
    "weights pull symmetric": (_contraction(inputs="symmetric"), replace(FUSED, transport="tma", direction="pull")),
    "weights copy engine": (_contraction(), replace(FUSED, **ENGINE)),
    "weights behind the copies": (_contraction(), replace(FUSED, overlap="none", chunk_rows=0, depth=1)),
    "weights in whole shards": (_contraction("weights col"), replace(FUSED, chunk_rows=128, depth=1)),
    "weights by the library": (_contraction(), replace(LIBRARY, overlap="none", chunk_rows=0, depth=1)),
    "summa": (in_blocks(), replace(FUSED, chunk_rows=0)),
    "summa behind": (in_blocks(), replace(FUSED, overlap="none", chunk_rows=0, depth=1)),
    "cannon": (in_blocks(algorithm="cannon"), replace(FUSED, chunk_rows=0, depth=1, algorithm="ring")),
    "summa in slots": (in_blocks(), replace(FUSED, chunk_rows=0, protocol="credit")),
    "summa in slots, in passes": (in_blocks(8, (72, 40, 72)), replace(FUSED, chunk_rows=0, depth=1, protocol="credit")),
    "cannon in slots": (
        in_blocks(algorithm="cannon"), replace(FUSED, chunk_rows=0, depth=1, algorithm="ring", protocol="credit")),
    "gradients push": (_contraction("gradients"), FUSED),
    "gradients on streams": (_contraction("gradients"), replace(FUSED, overlap="chunked")),
    "gradients pulled on streams": (_contraction("gradients"), replace(FUSED, overlap="chunked", direction="pull")),
    "dispatch push": (routed("dispatch", 3), GANG),
    "dispatch pull": (routed("dispatch", 3), replace(GANG, direction="pull")),
    "dispatch pull symmetric": (routed("dispatch", 3, inputs="symmetric"), replace(GANG, direction="pull")),
    "dispatch beside": (routed("dispatch", 3), replace(GANG, overlap="fused")),
    "combine beside": (routed("combine", 3), replace(GANG, overlap="fused")),
    "combine push": (routed("combine", 3), GANG),
    "combine pull symmetric": (routed("combine", 3, inputs="symmetric"), replace(GANG, direction="pull")),
    "dispatch before products": (routed("dispatch_gemm", 3), EXPERTS),
    "dispatch beside products": (routed("dispatch_gemm", 3), replace(EXPERTS, overlap="fused")),
    "dispatch in groups beside products": (routed("dispatch_gemm", 3), replace(EXPERTS, overlap="fused", depth=2)),
    "dispatch before products, then bias and swiglu": (
        routed("dispatch_gemm", 3, columns=160, then=("bias", "swiglu")), EXPERTS),
    "dispatch in groups beside products, then bias and silu": (
        routed("dispatch_gemm", 3, then=("bias", "silu")), replace(EXPERTS, overlap="fused", depth=2)),
    "scaled bytes of experts": (
        routed("dispatch_gemm", 3, dtype="float8_e4m3fn", order="col", hidden=272, scales="rowcol"), EXPERT_BYTES),
    "scaled bytes of experts beside their dispatch": (
        routed("dispatch_gemm", 3, dtype="float8_e4m3fn", order="col", hidden=272, columns=160, scales="block",
               then=("bias", "swiglu")), replace(EXPERT_BYTES, overlap="fused", depth=2)),
    "scaled bytes of experts beside a combine": (
        routed("gemm_combine", 3, dtype="float8_e4m3fn", order="col", hidden=272, scales="rowcol"),
        replace(EXPERT_BYTES, overlap="fused", depth=2)),
    "products before combine": (routed("gemm_combine", 3), EXPERTS),
    "products beside combine": (routed("gemm_combine", 3), replace(EXPERTS, overlap="fused", depth=2)),
    "uneven copies": (all_gather((200, 24), 3), COPY),
    "uneven copies pulled": (all_gather((200, 24), 3), replace(COPY, direction="pull")),
    "copies of an empty shard": (all_gather((4, 24), 3), replace(COPY, **PLAIN)),
    "product of uneven rows": (ag_gemm((200, 384, 128), 3), LIBRARY),
    "ring of copies": (_gather(), replace(COPY, **RING)),
    "ring of a copy engine": (_gather(), replace(COPY, overlap="chunked", **RING, **ENGINE)),
    "ring before a product": (_spec(), replace(FUSED, **RING)),
    "ring of sums": (_sum(FullRow), replace(COPY, **RING)),
    "ring of uneven sums": (_sum(FullRow, 100), replace(COPY, **RING, **PLAIN)),
    "ring of all sums": (_sum(), replace(COPY, **RING)),
    "ring of products": (_product(), replace(FUSED, **RING, **PLAIN)),
    "products of warps, fused": (_spec(on=BEFORE), FUSED),
    "products of warps, scattered": (_product(on=BEFORE), SCATTER),
    "product": (_local(), LOCAL),
    "ring of sums then bias": (reduction((96, 24), 3, to=FullRow, then=("bias", "accumulate")), replace(COPY, **RING)),
    "ring of all sums accumulated": (reduction((384, 24), 3, then=("accumulate",)), replace(COPY, **RING)),
    "product in clusters": (_local(), replace(LOCAL, block_m=128, cluster_m=2)),
    "product with a shared contraction": (_local(), SPLIT),
    "product by turns": (_local(), TURNS),
    "product with streamed tiles": (_local(), STREAM),
    "product of few rows": (_local(13, "col"), FEW),
    "ag_gemm then bias and silu": (ag_gemm((384, 384, 128), 3, then=("bias", "silu")), FUSED),
    "ag_gemm accumulated": (ag_gemm((384, 384, 128), 3, then=("accumulate",)), replace(FUSED, direction="pull")),
    "ag_gemm then swiglu": (ag_gemm((384, 384, 128), 3, then=("bias", "swiglu")), FUSED),
    "gemm_rs then bias and gelu": (product((384, 256, 384), 3, then=("bias", "gelu")), FUSED),
    "gemm_rs normalised": (product((384, 256, 384), 3, then=("residual_rmsnorm",)), SCATTER),
    "gemm_ar accumulated": (
        product((384, 256, 384), 3, out="Replicate", then=("accumulate",)), replace(FUSED, **TWO_SHOT)),
    "all_reduce normalised": (
        reduction((384, 24), 3, then=("residual_rmsnorm",)), replace(COPY, **TWO_SHOT, **PLAIN)),
    "gemm_ar normalised, and the sum": (
        product((384, 256, 384), 3, out="Replicate", then=("add_rmsnorm",)), replace(FUSED, **TWO_SHOT)),
    "reduce_scatter normalised, and the sum": (
        reduction((100, 24), 3, to=FullRow, then=("add_rmsnorm",)), replace(COPY, **PLAIN)),
    "all_reduce then bias": (reduction((384, 24), 3, then=("bias",)), replace(COPY, **ONE_SHOT, **PLAIN)),
    "product of bytes": (_local(304, "col", "float8_e4m3fn", 800), BYTES),
    "gemm_rs of scaled bytes": (
        scaled(product((384, 256, 384), 3, order="col", dtype="float8_e4m3fn"), "block"), replace(FUSED, block_k=128)),
    "ag_gemm of scaled bytes": (
        scaled(ag_gemm((384, 384, 128), 3, dtype="float8_e4m3fn"), "rowcol"), replace(FUSED, block_k=128)),
    "gemm_rs of bytes": (product((384, 256, 384), 3, order="col", dtype="float8_e4m3fn"), replace(FUSED, block_k=128)),
    "gemm_ar of bytes": (product((384, 256, 384), 3, out="Replicate", order="col", dtype="float8_e4m3fn"),
                         replace(FUSED, block_k=128, **TWO_SHOT)),
    "ag_gemm of bytes": (ag_gemm((384, 384, 128), 3, dtype="float8_e4m3fn"), replace(FUSED, block_k=128)),
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
