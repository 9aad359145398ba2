"""Changes of texts: statements lost, repeated, exchanged; counts, parities, offsets and widths off by one.

Each is one edit of one header of the device library, caught by a static rule or by an emulation of schedules that run
the changed lines.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tilescale.codegen.host.build import INCLUDE

# Lines of these functions run in the scale model alone, in time that the emulator does not model.
PACED = ("walk_links", "walk_packets", "reserve_links", "pace_step", "links_of", "next_store", "drain", "charge_rows")
HEADERS = ("carry.cuh", "comm.cuh", "contract.cuh", "copy.cuh", "epilogue.cuh", "gemm.cuh", "gemm_mma.cuh",
           "gemm_owners.cuh", "gemm_pingpong.cuh", "gemm_split.cuh", "gemm_store.cuh", "gemm_stream.cuh", "grouped.cuh",
           "kernels.cuh", "moe.cuh", "multimem.cuh", "norm.cuh", "packets.cuh", "scales.cuh", "share.cuh", "small_m.cuh",
           "sum.cuh")


@dataclass(frozen=True)
class TextMutant:
    """`kind` of change to `header`: its text becomes `text`. `runs`: schedules that execute it. `harmless`: why it changes
    nothing, where it does not."""

    kind: str
    header: str
    place: str
    text: str
    runs: tuple[str, ...]
    harmless: str = ""


# Lost statements, by what is lost.
LOST: dict[str, str] = {
    "lost fence": "fence_system|fence_alias|fence_async_global|fence_async_smem|mb_fence_init|wg_fence|grid_wait",
    "lost block barrier": "sync|named_barrier|warp_sync|take_turn|pass_turn",
    "lost meeting of a cluster": "cluster_sync",
    "lost signal": "signal_add|signal_step|tell_left",
    "lost wait": ("wait_step|wait_left|copy_async_wait|barrier_wait|bulk_wait|bulk_wait_read|wg_wait|pause_until|"
                  "packet_pause|await_packets"),
    "lost commit": "bulk_commit|wg_commit|copy_async_commit",
    "lost arrival": "mb_arrive|mb_expect|cluster_mb_arrive|release|named_arrive",
    "lost copy": (
        "bulk_load|bulk_store|tma_load_3d|tma_load_2d|tma_load_2d_multicast|load_next|load_stage|load_b|load_segment|load_parts|"
        "load_tile|load_group_stage|copy_rows|copy_stage|copy_ahead|copy_async|load_fragments|load_matrices|"
        "load_matrices_turned"),
    "lost product": (
        "wgmma|wgmma_turned|multiply_stage|multiply_tile|multiply_tile_promoted|small_multiply|small_stage|multiply_segment|"
        "contract_tile|mma_tile|warp_multiply|warp_segment"),
    "lost store": ("store|store_pair|store_four|store_chunk|store_chunks|store_registers|tma_store_3d|send_part|small_put|"
                   "leave_part|store_warp_tile|store_rows|cluster_store|store_private|multimem_store|multi_store|write_sum|"
                   "packet_store|send_packets|put_packets|deal_parts|deal_packets|round"),
    "lost sum": ("sum_units|sum_step|add_parts|carry_units|carry_step|promote|promote_scaled|small_promote|multi_sum|"
                 "join_parts|add_left_part|sum_packets|get_packets|put_all|sum_all|gather_all|sum_dealt|packet_role"),
    "lost scale": "scale_rows|scale_four|load_scales",
    "lost task": (
        "route_step|total_step|send_step|place_step|tally_step|return_step|weigh_step|ragged_step|add_warps|begin_rows|"
        "find_rows|move_row|place_row|weigh_token|add_weighted|tell_failed|arrange_step|send_group_step|place_group_step|"
        "read_heads|group_step|tell_group|return_group_step"
    ),
    "lost setting up": "mb_init",
    "lost end of a call": "finish",
    "lost move of the ring": r"ring\.next|ring\.skip_stages",
}
REPEATED: dict[str, str] = {
    "repeated signal": "signal_add|signal_step|tell_left",
    "repeated arrival": "mb_arrive|mb_expect|cluster_mb_arrive|release",
    "repeated product": "multiply_stage|small_multiply|multiply_segment|mma_tile|warp_multiply",
    "repeated copy": "bulk_load|load_next|load_stage|load_b|load_segment",
    "repeated move of the ring": r"ring\.next",
}

_PROMOTED = "multiply_stage<C>(part, smem + ring.stage * GemmLayout<C>::stage_bytes, warpgroup, 0u)"
# Lost statements that change nothing, with the reason; those of edits.toml say so there.
HARMLESS: dict[tuple[str, str], str] = {
    ("lost wait", "await_packets: packet_pause(at, ex.mark)"): "it polls without a pause",
    ("lost wait", "wait_step: pause_until(counter, target)"): "it polls without a pause; the acquire is the wait",
    ("lost wait", "gemm_consumer: wait_left<C>(call, step, GemmLayout<C>::consumers * 128)"): (
        "a block that adds nothing up needs none: that all wait only makes the plan say what each does"),
    ("lost meeting of a cluster", "gemm_role: cluster_sync()"): "threads that have ended are not waited for",
    ("lost block barrier", "sum_over_cluster: warp_sync()"): "all lanes of a warp take the branch before it",
    ("lost block barrier", "copy_role: warp_sync()"): "lanes that do nothing but wait for it; a warp begins together",
    **{("lost block barrier", f"{name}: warp_sync()"): "threads of the emulator arrive one by one"
       for name in ("put_all", "sum_dealt")},
    ("lost block barrier", "grouped_producer: warp_sync()"): "it keeps lanes from polling while one loads, no more",
    ("lost block barrier", "moe_role: sync()"): (
        "at the end: all threads have met before, so they have read the epoch; behind waits: none fails in these runs"
    ),
    ("repeated product", "multiply_tile_promoted: " + _PROMOTED): "the first product of a group replaces what is there",
    ("repeated product", "small_stage: small_multiply<C, kAtOnce>(part, stage, warpgroup, from, 0u)"): (
        "the first product of a group replaces what is there"),
}

# What stands before a block barrier of the scale model alone.
IN_THE_MODEL = "if constexpr (C::link_clock) "


def edits() -> tuple[dict[str, str], ...]:
    """The edits of edits.toml."""
    return tuple(tomllib.loads((Path(__file__).parent / "edits.toml").read_text())["edit"])


def texts() -> dict[str, str]:
    return {name: (INCLUDE / "tilescale" / name).read_text() for name in HEADERS}


def text_mutants() -> Iterator[TextMutant]:
    """All of them, in a fixed order. Raises AssertionError where an edit no longer finds its place."""
    sources = texts()
    for header, text in sources.items():
        for kind, names in LOST.items():
            for place, begin, end in _statements(text, names):
                yield _mutant(kind, header, text, place, text[:begin] + ";" + text[end:], begin)
        for kind, names in REPEATED.items():
            for place, begin, end in _statements(text, names):
                twice = "{ " + text[begin:end] + " " + text[begin:end] + " }"
                yield _mutant(kind, header, text, place, text[:begin] + twice + text[end:], begin)
    for edit in edits():
        kind, header, old, new = (edit[key] for key in ("kind", "header", "old", "new"))
        text = sources[header]
        assert text.count(old) >= 1, f"{header} no longer holds the place of {kind!r}: {old}"
        at = text.index(old)
        place = f"{old.splitlines()[0].strip()} -> {new.strip().splitlines()[0]}"
        changed = text[:at] + new + text[at + len(old) :]
        yield _mutant(kind, header, text, place, changed, at, edit.get("harmless", ""))


def _mutant(kind: str, header: str, text: str, place: str, changed: str, at: int, harmless: str = "") -> TextMutant:
    line = text.count("\n", 0, at) + 1
    function = _function(text, at)
    reason = harmless or HARMLESS.get((kind, f"{function}: {place}"), "")
    if kind == "lost block barrier" and text[:at].endswith(IN_THE_MODEL):
        reason = "a signal has a block barrier of its own; this one only makes the links' time part of the step"
    return TextMutant(
        kind, header, f"{header}:{line} {function}: {place}", changed, _runs(header, function, place), reason
    )


def _function(text: str, at: int) -> str:
    names = re.findall(r"^(?:template <[^\n]*>\s*|  )?(?:static )?TS_DEV [^\n(]*?(\w+)\(", text[:at], re.MULTILINE)
    return names[-1] if names else ""


def _statements(text: str, names: str) -> Iterator[tuple[str, int, int]]:
    """(text, begin, end) of the statements that are a call of one of `names`."""
    for found in re.finditer(rf"(?<![\w.>])(?:{names})(?:<[^;(){{}}]*?>)?\(", text):
        before = text[: found.start()].rstrip(" \n")
        if _function(text, found.start()) in PACED or not before.endswith((";", "{", "}", ")", "else", "\n")):
            continue
        line = text[text.rfind("\n", 0, found.start()) + 1 : found.start()]
        if "//" in line or "TS_DEV" in line or before.endswith("unroll"):
            continue
        depth, end = 0, found.end() - 1
        while True:
            depth += (text[end] == "(") - (text[end] == ")")
            end += 1
            if depth == 0:
                break
        if text[end] == ";":
            yield " ".join(text[found.start() : end].split()), found.start(), end + 1


# Schedules that execute a function, by header; "": its other functions.
_TILES = ("gemm", "row", "fp32 large", "odd columns", "product", "scatter large", "tall tiles")
_OWNERS = ("owners together", "owners in a tile", "owners by chunk", "shards together", "row")
_STAGED = ("parts", "parts pulled", "product", "fp32 large")
_FEW = ("few rows", "few rows of odd columns", "few rows of floats")
_BYTES = ("product of bytes", "few rows of bytes")
_SCALED = ("scaled rows and columns", "scaled blocks", "few rows scaled", "few rows in blocks", "gathered rows scaled",
           "scaled", "bytes of experts scaled", "bytes of experts in blocks", "bytes of experts in whole")
_PACKETS = ("packets", "packets of three", "packets twice", "packets of two, twice", "packets gathered",
            "packets of owners")
_SMALL_COPIES = ("small copies", "small copies handed out", "small copies of ten")
_SUMS = ("sum", "sum of floats", "sum of odd sizes", "sum of three", "sum handed out", "scatter")
_SWITCH = ("switch stores", "switch sums", "switch sums floats")
_DISPATCHES, _COMBINES = ("dispatch", "dispatch pulled"), ("combine", "combine pulled", "products of experts back")
_THEN_EXPERTS = ("experts beside, then bias and swiglu", "experts behind, then gelu and bias")
_EXPERT_BYTES = ("bytes of experts scaled", "bytes of experts in blocks", "bytes of experts in whole",
                 "bytes of experts back")
_TURNS = ("turns", "turns in clusters")
_STREAMED = ("streamed", "streamed in clusters", "one tile streamed")
_WARPS = ("warps", "warps, row-major B", "warps, odd columns", "warps, then bias and swiglu")
_CLUSTERS = ("product in clusters", "product in clusters, col")
RUNS_OF: dict[str, dict[str, tuple[str, ...]]] = {
    "contract.cuh": {"load_segment": ("segments", "segments, col", "segments, turned", "panels", "panels in slots"),
                     **dict.fromkeys(("await_loads", "add_sums", "leave_sums"), ("panels in slots",)),
                     **dict.fromkeys(("load_tile", "contract_producer", "contract_consumer"), (
                         "segments", "segments, col", "segments, turned", "panels in slots",
                         "panels of few tiles in slots")),
                     "contract_tile": ("segments", "segments, large", "panels"),
                     "": ("segments", "segments, col", "segments, turned")},
    "copy.cuh": {
        "copy_by_tma": ("tma", "tma small", "rows at pitches"),
        "fetch": ("copy last of a window", "many steps"),
        **dict.fromkeys(("copies_by_threads", "copy_steps", "copies", "alike"), _SMALL_COPIES),
        "": ("copy", "copy behind", "fused pull", "sum handed out", "sum of three", "odd columns", "many steps")},
    "epilogue.cuh": {"": (
        "then bias and silu", "accumulated", "then gelu, shared contraction", "then swiglu", "then swiglu, few rows",
        "summed, then bias and addend", "normalised", "normalised, and the sum", *_THEN_EXPERTS)},
    "norm.cuh": {"": ("normalised", "normalised, handed out", "normalised, and the sum")},
    "gemm.cuh": {
        "gemm_producer": ("fused pull", "gemm", "parts", "product"), "load_b": (*_CLUSTERS, "row", "gemm"),
        "load_stage": ("gemm", *_CLUSTERS),
        **dict.fromkeys(("release", "release_previous"), (*_CLUSTERS, "gemm", "tall tiles in clusters")),
        "for_tiles": (*_CLUSTERS, "streamed in clusters", *_TILES),
        "tiles_of": (*_STREAMED, *_TURNS),
        "k_range": ("shared contraction",), "Finish": ("parts stored by tensor", *_TILES),
        "gemm_consumer": (
            "parts stored by tensor", "parts", "parts pulled", "scatter", "scatter large", "shared contraction",
            "product of bytes", "scaled rows and columns", "scaled product"),
        "gemm_role": ("gemm", *_CLUSTERS, "shared contraction"), "multiply_tile_promoted": _BYTES, "promote": _BYTES,
        "load_scales": ("scaled blocks",), "promote_scaled": ("scaled blocks",),
        "begun": _STREAMED, **dict.fromkeys(("skip_stages", "part_of_tile", "tiles_of_block"), _TURNS), "": _TILES},
    "gemm_owners.cuh": {"": _OWNERS},
    "gemm_stream.cuh": {"": _STREAMED},
    "gemm_pingpong.cuh": {"": _TURNS},
    "gemm_mma.cuh": {"": _WARPS},
    "gemm_split.cuh": {"": ("shared contraction",)},
    "gemm_store.cuh": {
        "store_four": _FEW, "store_finished": (*_FEW, "then swiglu, few rows"),
        "store_pair": ("odd columns", "odd columns of floats", *_FEW), "store_registers": ("odd columns",),
        "copy_chunk": ("scatter", "scatter large"),
        "store_chunk": ("parts stored by tensor", *_STAGED, "scatter", "then swiglu", "gemm"),
        "store_rows": (*_STAGED, "odd columns"), "": _STAGED},
    "multimem.cuh": {"": _SWITCH},
    "scales.cuh": {"": _SCALED},
    "small_m.cuh": {
        "small_stage": (*_BYTES, "few rows", "few rows in blocks"), "small_promote": ("few rows in blocks",),
        "small_store": (*_FEW, "few rows scaled"),
        "small_consumer": (*_FEW, "few rows scaled"), "": _FEW},
    "packets.cuh": {**dict.fromkeys(("sum_dealt", "deal_packets"), (*_PACKETS, "packets of ten, twice")), "": _PACKETS},
    "kernels.cuh": {"block_of": ("many steps", "signals")},  # of two gangs
    "share.cuh": {"lane": ("groups",), "share_of_group": ("groups",), "": ("copy", "tma", "sum", *_BYTES)},
    "moe.cuh": {
        **dict.fromkeys(("slot_of", "send_step", "place_step", "place_row"), _DISPATCHES),
        **dict.fromkeys(("tally_step", "return_step", "find_rows", "weigh_step", "weigh_token", "add_weighted"), _COMBINES),
        **dict.fromkeys(("route_step", "begin_rows"), ("dispatch", "combine pulled", "experts beside")),
        "": ("dispatch", "combine pulled")},
    "grouped.cuh": {
        **dict.fromkeys(("tell_group", "for_group_tiles"), ("experts beside", "products of experts back")),
        "return_group_step": ("products go back beside",),
        **dict.fromkeys(("send_group_step", "place_group_step", "load_group_stage", "sent_scales"), (
            "experts beside", "experts behind", *_EXPERT_BYTES)),
        "grouped_consumer": ("experts beside", "products go back beside", *_THEN_EXPERTS, *_EXPERT_BYTES),
        "": ("experts beside", "experts behind")},
    "carry.cuh": {"": ("carried", "carried odd", "carried, then bias", "carried, then addend, by all")},
    "sum.cuh": {"": _SUMS},
}
_OTHERS = ("fused pull", "gemm", "tma", "parts")
BY_PLACE = {  # of functions that other schedules run as well
    "multi_": _SWITCH, **dict.fromkeys(("carry_step", "step, row + 1"), ("carried",)), "sum_step": ("sum",),
    **dict.fromkeys(("promote_scaled", "load_scales"), ("scaled blocks",)),
    "return_group_step": ("products go back beside",), "group_step": ("experts beside",),
    "if (me.role == kGemmRole)": ("experts beside", *_OTHERS),
    "store_rows<Stored>(halved, staging, &maps.out, rows": _THEN_EXPERTS[:1],
    "store_rows<Stored>(halved, staging, &maps": ("then swiglu",),
    **dict.fromkeys(("if constexpr (kOwners > 1)", "o * (C::block_m", "Together<C>::owners > 1"), _OWNERS),
    "i += copies": _SMALL_COPIES,
    "return EpilogueOf<C>::halves ?": _WARPS[-1:], "warpgroup * kSubtiles + s": ("segments, large",),
}


_SHARING = ("leave_part", "tell_left", "wait_left", "join_parts", "(range.")  # what the lines of shared tiles hold
_TAKING = ("take_turn", "pass_turn", "skip_stages", "kStages", "Pingpong")  # and where warpgroups take turns
_BY_TMA = ("tma", "mb_", "pipe", "fence_async", "tile + done")  # what the lines of copies by TMA hold


def _runs(header: str, function: str, place: str) -> tuple[str, ...]:
    if header == "copy.cuh" and (function == "load_next" or any(word in place for word in _BY_TMA)):
        function = "copy_by_tma"
    if header == "gemm.cuh" and any(word in place for word in _TAKING):
        return _TURNS
    if header == "gemm.cuh" and any(word in place for word in _SHARING):
        return _STREAMED
    for begin, runs in BY_PLACE.items():
        if place.startswith(begin):
            return runs
    if header == "kernels.cuh" and "small" in place:
        return _FEW
    if header == "kernels.cuh" and "packet" in place:
        return _PACKETS
    known = RUNS_OF.get(header, {})
    return known.get(function, known.get("", _OTHERS))
