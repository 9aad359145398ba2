"""What text mutants run on: small, with tails in rows and columns, several chunks, two waves."""

from __future__ import annotations

from dataclasses import replace

from families import (
    BYTES,
    EXPERT_BYTES,
    EXPERTS,
    FEW,
    FUSED,
    GANG,
    LOCAL,
    ONE_SHOT,
    PLAIN,
    RING,
    SCATTER,
    SPLIT,
    STREAM,
    TURNS,
    TWO_SHOT,
)
from product_support import between_two, there_and_back
from support import (
    ag_gemm,
    all_gather,
    contraction,
    exchange,
    gemm_rs,
    in_blocks,
    local_gemm,
    reduction,
    routed,
    scaled,
)

from tilescale.runtime.scaled import _few_sms
from tilescale.schedules.plan import Plan
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec, redistribute
from tilescale.spec.tensor import Tensor
from tilescale.spec.topology import Topology
from tilescale.spec.views import FullRow, Replicate

_ON = Topology.shared_gpu(ranks=2)
_REAL = Topology.named("8xH200-NVSwitch", ranks=2)  # whose share of SMs is any number
_BEFORE = Topology.named("4xA100-NVLink", ranks=2)  # of sm_80
_COPY = Schedule(overlap="fused", compute="generated", chunk_rows=64, depth=2, num_comm_blocks=4)
_LARGE = {"block_m": 128, "block_n": 256}
_copied = redistribute(Tensor((182, 1032), "bfloat16", FullRow), Replicate, topology=_ON)
RUNS: dict[str, tuple[Spec, Schedule]] = {
    "copy": (_copied, _COPY),
    "groups": (_copied, replace(_COPY, copy_scope="warp")),
    "copy behind": (_copied, replace(_COPY, overlap="none", chunk_rows=0, depth=1)),
    "small copies": (
        all_gather((36, 200), 4, on=Topology.shared_gpu(4)), replace(_COPY, overlap="none", chunk_rows=0, depth=1)),
    "small copies handed out": (
        reduction((182, 1032), 3, on=Topology.shared_gpu(3)), replace(_COPY, direction="pull", **TWO_SHOT, **PLAIN)),
    "small copies of ten": (  # more than are taken together, and one of fewer bytes
        reduction((39, 48), 10, on=Topology.shared_gpu(10)),
        replace(_COPY, direction="pull", num_comm_blocks=2, **TWO_SHOT, **PLAIN)),
    "tma": (all_gather((304, 16392), 2), replace(_COPY, transport="tma", num_comm_blocks=2)),
    "tma small": (all_gather((182, 296), 2), replace(_COPY, transport="tma", num_comm_blocks=2)),
    "many steps": (
        all_gather((5760, 8), 2), replace(_COPY, depth=1, num_comm_blocks=2)),
    "copy last of a window": (  # of steps, which the next window overwrites
        all_gather((8640, 8), 3, on=Topology.shared_gpu(ranks=3)), replace(_COPY, direction="pull", num_comm_blocks=2)),
    "rows at pitches": (exchange("columns", 2, on=_ON), replace(_COPY, transport="tma", num_comm_blocks=2)),
    "fused pull": (ag_gemm((400, 304, 152), 2, on=_ON), replace(FUSED, direction="pull")),
    "gemm": (ag_gemm((400, 304, 408), 2, on=_ON), replace(FUSED, transport="tma")),
    "row": (
        ag_gemm((400, 304, 152), 2, order="row", on=_ON),
        replace(FUSED, overlap="none", chunk_rows=0, depth=1, raster_group=2),
    ),
    "odd columns": (ag_gemm((144, 302, 72), 2, on=_ON), replace(FUSED, overlap="chunked", num_comm_blocks=2)),
    "fp32 large": (
        ag_gemm((400, 562, 152), 2, out_dtype="float32", on=_ON),
        replace(FUSED, chunk_rows=128, **_LARGE),
    ),
    "sum": (reduction((182, 1032), 2, on=_ON), replace(_COPY, **ONE_SHOT, **PLAIN)),
    "sum handed out": (reduction((182, 1032), 2, on=_ON), replace(_COPY, direction="pull", **TWO_SHOT)),
    "sum of floats": (reduction((122, 516), 2, dtype="float32", on=_ON), replace(_COPY, **ONE_SHOT, **PLAIN)),
    "sum of three": (reduction((37, 136), 3, on=Topology.shared_gpu(ranks=3)), replace(_COPY, **ONE_SHOT, **PLAIN)),
    "sum of odd sizes": (reduction((75, 77), 2, to=FullRow, on=_ON), replace(_COPY, depth=1, chunk_rows=0, overlap="none")),
    "packets": (reduction((40, 520), 2, on=_ON), replace(GANG, protocol="ll", **ONE_SHOT)),
    "packets of three": (
        reduction((35, 26), 3, dtype="float32", on=Topology.shared_gpu(ranks=3), then=("bias", "accumulate")),
        replace(GANG, protocol="ll", **ONE_SHOT)),
    "packets twice": (
        reduction((27, 200), 3, on=Topology.shared_gpu(3), then=("bias", "accumulate")),
        replace(GANG, protocol="ll", **TWO_SHOT)),
    "packets of two, twice": (reduction((96, 128), 2, on=_ON), replace(GANG, protocol="ll", **TWO_SHOT)),
    "packets gathered": (all_gather((9, 200), 3, on=Topology.shared_gpu(3)), replace(GANG, protocol="ll")),
    "packets of owners": (
        reduction((9, 200), 3, to=FullRow, on=Topology.shared_gpu(3), then=("bias", "accumulate")),
        replace(GANG, protocol="ll")),
    "packets of ten, twice": (  # more ranks than are loaded from together
        reduction((2, 40), 10, on=Topology.shared_gpu(10)), replace(GANG, protocol="ll", **TWO_SHOT)),
    "carried": (reduction((182, 1032), 3, on=Topology.shared_gpu(ranks=3)), replace(_COPY, **RING)),
    "carried, then bias": (
        reduction((75, 77), 3, to=FullRow, on=Topology.shared_gpu(ranks=3), then=("bias", "accumulate")),
        replace(_COPY, **RING, **PLAIN)),
    "carried, then addend, by all": (
        reduction((182, 1032), 3, on=Topology.shared_gpu(ranks=3), then=("accumulate",)), replace(_COPY, **RING)),
    "carried odd": (reduction((75, 77), 3, to=FullRow, on=Topology.shared_gpu(ranks=3)), replace(_COPY, **RING, **PLAIN)),
    "scatter": (gemm_rs((208, 304, 304), 2, on=_ON), SCATTER),
    "scatter large": (
        gemm_rs((400, 304, 304), 2, order="col", on=_ON), replace(SCATTER, chunk_rows=128, **_LARGE)),
    "owners together": (gemm_rs((416, 304, 304), 2, on=_ON), replace(SCATTER, overlap="none", chunk_rows=0)),
    "shards together": (  # of the gathered operand, which has two versions
        ag_gemm((576, 288, 152), 3, on=Topology.shared_gpu(3)),
        replace(FUSED, overlap="chunked", chunk_rows=64, depth=1, num_comm_blocks=2)),
    "owners in a tile": (
        gemm_rs((256, 304, 608), 4, on=Topology.shared_gpu(4)),
        replace(SCATTER, overlap="none", chunk_rows=0, block_m=128, raster_group=1)),
    "owners by chunk": (
        gemm_rs((624, 304, 456), 3, on=Topology.shared_gpu(3)),
        replace(SCATTER, chunk_order="chunk_major", chunk_rows=128)),
    "parts": (gemm_rs((208, 304, 304), 2, on=_ON), FUSED),
    "parts pulled": (
        gemm_rs((400, 304, 304), 2, order="col", on=_ON),
        replace(FUSED, direction="pull", chunk_rows=128, depth=1, num_comm_blocks=0, **_LARGE)),
    "parts stored by tensor": (  # in two versions, in segments
        gemm_rs((256, 304, 304), 2, on=_ON), replace(FUSED, direction="pull", depth=1, num_comm_blocks=0)),
    "odd columns of floats": (
        ag_gemm((144, 302, 72), 2, out_dtype="float32", on=_ON), replace(FUSED, overlap="chunked", num_comm_blocks=2)),
    "product": (gemm_rs((304, 304, 816), 2, out="Partial", on=_ON), LOCAL),
    "tall tiles": (  # whose warpgroups wait for their own products
        gemm_rs((304, 304, 816), 2, out="Partial", on=_ON), replace(LOCAL, block_m=256, num_stages=3)),
    "tall tiles in clusters": (
        gemm_rs((520, 304, 816), 2, out="Partial", on=_ON), replace(LOCAL, block_m=256, num_stages=3, cluster_m=2)),
    "product in clusters": (
        gemm_rs((304, 304, 816), 2, out="Partial", on=_ON), replace(LOCAL, block_m=128, cluster_m=2)),
    "product in clusters, col": (
        gemm_rs((304, 304, 816), 2, out="Partial", order="col", on=_ON), replace(LOCAL, block_m=64, cluster_m=2)),
    "shared contraction": (
        gemm_rs((304, 304, 816), 2, out="Partial", out_dtype="float32", on=_ON), replace(SPLIT, split_k=3)),
    "turns": (gemm_rs((130, 200, 640), 2, out="Partial", on=_few_sms(_REAL, 2)), TURNS),
    "turns in clusters": (
        gemm_rs((300, 200, 640), 2, out="Partial", order="col", on=_few_sms(_REAL, 4)), replace(TURNS, cluster_m=2)),
    "streamed": (gemm_rs((130, 200, 256), 2, out="Partial", on=_REAL), STREAM),
    "streamed in clusters": (
        gemm_rs((270, 200, 640), 2, out="Partial", on=_REAL), replace(STREAM, block_m=128, cluster_m=2)),
    "one tile streamed": (gemm_rs((60, 120, 640), 2, out="Partial", on=_ON), STREAM),
    "warps": (ag_gemm((400, 304, 152), 2, on=_BEFORE), replace(FUSED, block_n=64)),
    "warps, row-major B": (
        gemm_rs((208, 304, 304), 2, order="row", on=_BEFORE), replace(SCATTER, block_m=128, block_n=96, chunk_rows=128)),
    "warps, odd columns": (
        ag_gemm((144, 302, 72), 2, out_dtype="float32", on=_BEFORE),
        replace(FUSED, overlap="chunked", num_comm_blocks=2)),
    "warps, then bias and swiglu": (ag_gemm((144, 608, 72), 2, on=_BEFORE, then=("bias", "swiglu")), FUSED),
    "few rows": (gemm_rs((13, 304, 816), 2, out="Partial", order="col", on=_ON), FEW),
    "few rows of odd columns": (
        gemm_rs((13, 302, 816), 2, out="Partial", order="col", on=_ON),
        replace(FEW, split_k=1, block_n=128, num_stages=3)),
    "few rows of floats": (  # and of so short a contraction that a warpgroup may be a whole tile ahead of the other
        gemm_rs((13, 4112, 272), 2, out="Partial", order="col", out_dtype="float32", on=_ON),
        replace(FEW, split_k=1, block_n=128, num_stages=4)),
    "then bias and silu": (ag_gemm((144, 302, 72), 2, on=_ON, then=("bias", "silu")),
                           replace(FUSED, overlap="chunked", num_comm_blocks=2)),
    "accumulated": (gemm_rs((304, 304, 816), 2, out="Partial", out_dtype="float32", on=_ON, then=("accumulate",)), LOCAL),
    "then gelu, shared contraction": (local_gemm((304, 304, 816), then=("bias", "gelu")), SPLIT),
    "then swiglu, few rows": (local_gemm((13, 320, 816), then=("bias", "swiglu")), FEW),
    "then swiglu": (ag_gemm((144, 608, 72), 2, on=_ON, then=("bias", "swiglu")), FUSED),
    "summed, then bias and addend": (
        reduction((75, 77), 2, on=_ON, then=("bias", "accumulate")), replace(_COPY, **TWO_SHOT, **PLAIN)),
    "normalised": (reduction((37, 136), 2, on=_ON, then=("residual_rmsnorm",)), replace(_COPY, **ONE_SHOT, **PLAIN)),
    "normalised, and the sum": (
        reduction((150, 40), 2, on=_ON, then=("add_rmsnorm",)), replace(_COPY, **TWO_SHOT, chunk_rows=64)),
    "normalised, handed out": (
        reduction((75, 77), 2, on=_ON, then=("residual_rmsnorm",)), replace(_COPY, **TWO_SHOT, **PLAIN)),
}
RUNS |= {
    "segments": (contraction("weights", (400, 304, 304), 2, on=_ON), FUSED),
    "segments, large": (
        contraction("weights", (400, 304, 304), 2, on=_ON), replace(FUSED, block_m=256, block_n=128, num_stages=3)),
    "segments, col": (
        contraction("weights col", (400, 304, 304), 2, on=_ON), replace(FUSED, chunk_rows=256, depth=1, transport="tma")),
    "panels": (in_blocks(4, (88, 152, 88), on=Topology.shared_gpu(ranks=4)), replace(FUSED, chunk_rows=0)),
    "panels in slots": (
        in_blocks(8, (88, 152, 88), on=Topology.named("8xH200-NVSwitch", 8)),
        replace(FUSED, chunk_rows=0, depth=1, num_comm_blocks=2, protocol="credit")),
    "panels of few tiles in slots": (
        in_blocks(8, (88, 152, 88), on=Topology.shared_gpu(ranks=8)),
        replace(FUSED, chunk_rows=0, depth=1, num_comm_blocks=2, protocol="credit")),
    "segments, turned": (
        contraction("gradients", (304, 400, 304), 2, on=_ON), replace(FUSED, direction="pull", chunk_rows=128, **_LARGE)),
    "product of bytes": (gemm_rs((304, 304, 800), 2, out="Partial", order="col", dtype="float8_e4m3fn", on=_ON), BYTES),
    "few rows of bytes": (
        gemm_rs((13, 304, 1632), 2, out="Partial", order="col", dtype="float8_e4m3fn", on=_ON), replace(FEW, block_k=256)),
}
_SWITCHED = {ranks: Topology.named("8xH200-NVSwitch", ranks) for ranks in (2, 3)}
_MULTI = replace(_COPY, transport="multimem")
RUNS |= {
    "switch sums": (reduction((182, 1032), 3, on=_SWITCHED[3]), replace(_MULTI, direction="pull", **TWO_SHOT)),
    "switch sums floats": (
        gemm_rs((208, 304, 304), 2, on=_SWITCHED[2]),
        replace(FUSED, transport="multimem", direction="pull", depth=1, num_comm_blocks=0)),
    "switch stores": (redistribute(Tensor((546, 1032), "bfloat16", FullRow), Replicate, topology=_SWITCHED[3]), _MULTI),
}
_BYTES = {"order": "col", "dtype": "float8_e4m3fn", "on": _ON}
RUNS |= {
    "scaled": (scaled(gemm_rs((304, 304, 544), 2, **_BYTES), "tensor"), replace(SCATTER, block_k=128)),
    "scaled rows and columns": (scaled(gemm_rs((304, 304, 544), 2, **_BYTES), "rowcol"), replace(SCATTER, block_k=128)),
    "scaled blocks": (scaled(gemm_rs((304, 304, 768), 2, **_BYTES), "block"), replace(SCATTER, block_k=128)),
    "scaled product": (scaled(gemm_rs((304, 304, 800), 2, out="Partial", **_BYTES), "rowcol"), BYTES),
    "gathered rows scaled": (
        scaled(ag_gemm((384, 256, 272), 2, dtype="float8_e4m3fn", on=_ON), "rowcol"), replace(FUSED, block_k=128)),
    "few rows scaled": (scaled(gemm_rs((13, 304, 544), 2, out="Partial", **_BYTES), "rowcol"), replace(FEW, split_k=1)),
    "few rows in blocks": (
        scaled(gemm_rs((13, 304, 1280), 2, out="Partial", **_BYTES), "block"), replace(FEW, block_k=256)),
}
# Entries of a block in two turns, the second with a tail; rows of a turn of a warp and a tail, more than load together.
_ROUTED = {"tokens": 360, "hidden": 165, "experts": 8, "top_k": 6, "dtype": "float16", "on": _ON}
RUNS |= {
    "dispatch": (routed("dispatch", 2, **_ROUTED), GANG),  # type: ignore[arg-type]
    "dispatch pulled": (routed("dispatch", 2, **_ROUTED, inputs="symmetric"),  # type: ignore[arg-type]
                        replace(GANG, direction="pull")),
    "combine": (routed("combine", 2, **_ROUTED), GANG),  # type: ignore[arg-type]
    "combine pulled": (routed("combine", 2, **_ROUTED, inputs="symmetric"),  # type: ignore[arg-type]
                       replace(GANG, direction="pull")),
}
# Two groups of two experts; tiles with tails, more than one a block; tokens with experts of both groups.
_EXPERTS = {"tokens": 90, "hidden": 136, "experts": 8, "top_k": 3, "columns": 152, "dtype": "float16", "on": _ON}
RUNS |= {
    "experts behind": (routed("dispatch_gemm", 2, **_EXPERTS), EXPERTS),  # type: ignore[arg-type]
    "experts beside": (routed("dispatch_gemm", 2, **_EXPERTS),  # type: ignore[arg-type]
                       replace(EXPERTS, overlap="fused", depth=2)),
    "experts behind, then gelu and bias": (
        routed("dispatch_gemm", 2, **_EXPERTS, then=("gelu", "bias")), EXPERTS),  # type: ignore[arg-type]
    "experts beside, then bias and swiglu": (
        routed("dispatch_gemm", 2, **{**_EXPERTS, "columns": 304}, then=("bias", "swiglu")),  # type: ignore[arg-type]
        replace(EXPERTS, overlap="fused", depth=2)),
    "products of experts back": (routed("gemm_combine", 2, **_EXPERTS), EXPERTS),  # type: ignore[arg-type]
    "products go back beside": (routed("gemm_combine", 2, **_EXPERTS),  # type: ignore[arg-type]
                                replace(EXPERTS, overlap="fused", depth=2)),
}
# Contractions of two blocks and a tail, whose scales differ; two columns of tiles, and of blocks of scales.
_OF_BYTES = {**_EXPERTS, "hidden": 272, "dtype": "float8_e4m3fn", "order": "col"}
RUNS |= {
    "bytes of experts": (routed("dispatch_gemm", 2, **_OF_BYTES), EXPERT_BYTES),  # type: ignore[arg-type]
    "bytes of experts scaled": (routed("dispatch_gemm", 2, **_OF_BYTES, scales="rowcol"), EXPERT_BYTES),  # type: ignore[arg-type]
    "bytes of experts in blocks": (routed("dispatch_gemm", 2, **_OF_BYTES, scales="block"),  # type: ignore[arg-type]
                                   replace(EXPERT_BYTES, overlap="fused", depth=2)),
    "bytes of experts in whole": (routed("dispatch_gemm", 2, **_OF_BYTES, scales="tensor"), EXPERT_BYTES),  # type: ignore[arg-type]
    "bytes of experts back": (routed("gemm_combine", 2, **_OF_BYTES, scales="rowcol"),  # type: ignore[arg-type]
                              replace(EXPERT_BYTES, overlap="fused", depth=2)),
}
RUNS["signals"] = (between_two(), Schedule(
    compute="generated", block_m=128, block_n=256, block_k=64, num_stages=3, raster_group=4))
PLANS: dict[str, Plan] = {"signals": there_and_back(*RUNS["signals"])}
