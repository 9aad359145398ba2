"""docs/performance.md from the committed results: every table headed by its source, rows that lose first.

python benchmarks/performance.py          # writes docs/performance.md
python benchmarks/performance.py --check  # exit 1 where it is not what the results say
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import inf
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import beside
import products

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "performance.md"
TITLES = {
    "gemm": "Products of one rank, whole GPU, beside torch.mm",
    "gemm_small_m": "Decode sizes, weights not in L2, beside torch.mm",
    "fused_ag_gemm": "ag_gemm on ranks that share one GPU",
    "fused_gemm_rs": "gemm_rs on ranks that share one GPU, products rounded before they are added up, as the peers do",
    "fused_gemm_ar": "gemm_ar on ranks that share one GPU, products rounded before they are added up, as the peers do",
    "fused_gemm_rs_fp32": "gemm_rs on ranks that share one GPU, sums of fp32, twice the bytes that the peers move",
    "fused_gemm_ar_fp32": "gemm_ar on ranks that share one GPU, sums of fp32, twice the bytes that the peers move",
    "all_reduce_small": "Small all_reduce on ranks that share one GPU",
    "family": "all_gather, reduce_scatter and all_reduce on ranks that share one GPU, beside torch's symmetric memory",
    "overlap": "Hidden communication in the scale model",
}
PLAIN = ("fused_ag_gemm", "fused_gemm_rs", "fused_gemm_ar", "fused_gemm_rs_fp32", "fused_gemm_ar_fp32", "overlap")
PRODUCTS = {"gemm": (512, 4096, 8192), "gemm_small_m": (1, 16, 64)}  # rows
RANKS = (2, 4, 8)
SYMMETRIC = "torch.symm_mem"
HIDDEN = ("`hidden` is (unfused - ours) / (unfused - compute_only), the least first. compute_only is the library's product "
          "alone; more than 1 is hidden where our product is faster than that.")
BODIES = "Registers and shared memory of compiled bodies"
PROFILE = "What binds the fastest product"
COUNTERS = (  # section, metric, what it says
    ("GPU Speed Of Light Throughput", "Duration", "one launch under the profiler"),
    ("GPU Speed Of Light Throughput", "SM Frequency", "clock of the SMs"),
    ("GPU Speed Of Light Throughput", "Compute (SM) Throughput", "busiest pipe of the SMs, of its peak"),
    ("GPU Speed Of Light Throughput", "L1/TEX Cache Throughput", "shared memory and L1, of its peak"),
    ("GPU Speed Of Light Throughput", "L2 Cache Throughput", "L2, of its peak"),
    ("GPU Speed Of Light Throughput", "DRAM Throughput", "memory, of its peak"),
    ("Command line profiler metrics", "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
     "cycles with the tensor cores at work"),
    ("Launch Statistics", "Registers Per Thread", "registers at launch, before they move to the multiplying warps"),
)
INTRODUCTION = """# Performance

Written by `python benchmarks/performance.py` from `benchmarks/results`, which hold the samples of both sides, the command
and the environment. Ratios are the peer's time over ours: above 1 we are faster. Both sides are measured in one run, round
by round, in CUDA graphs behind barriers on the GPU, on random data; schedules are found by the tuner. Losses come first.
`sources` is the digest of the sources that were measured, which may be older than those beside this page.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    page = "\n".join([INTRODUCTION, *_several_gpus(), *(line for name in TITLES for line in _table(name)),
                      *_bodies(), *_profile()]).rstrip() + "\n"
    if given.check:
        if not PAGE.exists() or PAGE.read_text() != page:
            print(f"{PAGE.relative_to(ROOT)} is not what the results say: run python benchmarks/performance.py")
            return 1
        return 0
    PAGE.write_text(page)
    print(f"{PAGE.relative_to(ROOT)}: {page.count(chr(10))} lines")
    return 0


def _read(name: str) -> dict[str, Any] | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def _source(result: Mapping[str, Any], source: str) -> list[str]:
    machine = result["environment"]
    known = [key for key in ("gpu", "driver", "cuda", "torch", "power_cap_w") if key in machine]
    facts = ", ".join(f"{key} {machine[key]}" for key in known)
    return [f"Source: `{source}`. `{result['command']}`; {facts}; sources {result['version']}.", ""]


def _several_gpus() -> Iterator[str]:
    """What real links gave."""
    result = _read("several_gpus")
    if result is None:
        return
    tuned = result["parts"]["tune"]["workloads"]
    rows = [(name, found) for name, found in tuned.items() if found.get("raced_us")]
    peers = list(dict.fromkeys(peer for _, found in rows for peer in found["over_ours"]))
    yield f"## {result['world']} GPUs with real links"
    yield ""
    yield from _source(result, result["source"])
    yield "| workload | ours, us | " + " | ".join(peers) + " | schedule |"
    yield "|---" * (len(peers) + 3) + "|"
    for name, found in sorted(rows, key=lambda row: min(v for k, v in row[1]["over_ours"].items() if k != "compute_only")):
        ratios = [f"{found['over_ours'][peer]:.2f}" if peer in found["over_ours"] else "" for peer in peers]
        ours = found["raced_us"]["tilescale"]
        yield f"| {name} {found['label'].split(' ', 1)[1]} | {ours:.1f} | {' | '.join(ratios)} | {found['raced']} |"
    yield ""
    yield "`compute_only` is no peer but a bound: the product alone, without any communication."
    yield ""


def _table(name: str) -> Iterator[str]:
    result = _read(name)
    if result is None:
        return
    rows = [row for row in result["rows"] if "ratio" in row]
    if not rows:
        return
    yield f"## {TITLES[name]}"
    yield ""
    yield from _source(result, rows[0].get("source", "measured"))
    old = sum(row.get("sources", result["version"]) != result["version"] for row in rows)
    if old:
        yield f"{old} rows are of other sources, which the result names."
        yield ""
    yield f"Geometric mean {result['geomean_ratio']:.3f}, worst row {result['min_ratio']:.3f}, {len(rows)} rows."
    yield ""
    lacking = [label for label in _labels(name) if label not in {_label(row) for row in rows}]
    if lacking:
        yield f"Not measured: {', '.join(lacking)}."
        yield ""
    if name == "overlap":
        yield HIDDEN
        yield ""
    if name in PLAIN:
        yield from _against_plain(rows)
    rows = [{**row, **_beside(row)} for row in rows]
    shown = ("of_read", "hidden", "compute_only, us", "computing is larger", "round_trips")
    extra = [key for key in shown if any(key in row for row in rows)]
    if any(not row["peer"].startswith(SYMMETRIC) for row in rows) and any(SYMMETRIC in row for row in rows):
        extra.append(SYMMETRIC)
    yield "| workload | ours, us | peer, us | ratio | " + "".join(f"{key} | " for key in extra) + "peer | schedule |"
    yield "|---" * (6 + len(extra)) + "|"
    for row in sorted(rows, key=_loss):
        more = "".join(f"{row.get(key, '')} | " for key in extra)
        yield (f"| {_label(row)} | {row['ours_us']:.1f} | {row['theirs_us']:.1f} | {row['ratio']:.3f} | {more}"
               f"{row['peer']} | {row['schedule']} |")
    yield ""


def _against_plain(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What is left of a table where a plain schedule that the searches timed counts as a peer, too."""
    plain = {row["label"]: min((us for tried, us in row.get("tried_us", {}).items() if us and " none library" in tried),
                               default=inf) for row in rows}
    ahead = [row for row in rows if plain[row["label"]] < row["peers_us"].get("unfused", 0.0)]
    if not ahead:
        return
    ratios = [min(row["theirs_us"], plain[row["label"]]) / row["ours_us"] for row in rows]
    told = (f"In {len(ahead)} rows the search timed a plain schedule (nothing overlaps, the library multiplies) below the "
            "`unfused` of the race, which was not the best choice of such schedules. With the faster of both as the peer, "
            f"which was not timed in turn with ours, the geometric mean is {geometric_mean(ratios):.3f}, the worst row "
            f"{min(ratios):.3f}")
    if "hidden" in rows[0]:
        shares = []
        for row in rows:
            unfused, alone = min(row["peers_us"]["unfused"], plain[row["label"]]), row["peers_us"][beside.BOUND]
            if 0 < unfused - alone < alone:
                shares.append((unfused - row["ours_us"]) / (unfused - alone))
        told += f"; computing is larger in {len(shares)} rows"
        if shares:
            told += (f", in which {min(shares):.2f} to {max(shares):.2f} are hidden, at least 0.85 in "
                     f"{sum(share >= 0.85 for share in shares)}")
    yield f"{told}."
    yield ""


def _loss(row: Mapping[str, Any]) -> float:
    """What rows are ordered by, losses first."""
    return float(row["ratio"] if row.get("hidden") is None else row["hidden"])


def _labels(name: str) -> list[str]:
    """Of all rows that a table has when it is complete."""
    if name in PRODUCTS:
        return [_label({"layer": layer.name, "m": m, "n": layer.n, "k": layer.k})
                for m, layer in product(PRODUCTS[name], products.layers())]
    return [row.label for row in beside.TABLES[name](RANKS).rows]


def _beside(row: Mapping[str, Any]) -> dict[str, str]:
    """What else a row says: how the fastest of torch's symmetric memory compares, and the bound of what can be hidden."""
    theirs = [us for name, us in row.get("peers_us", {}).items() if name.startswith(SYMMETRIC)]
    found = {SYMMETRIC: f"{min(theirs) / row['ours_us']:.3f}"} if theirs else {}
    if "hidden" in row:
        larger = "yes" if row["computing_is_larger"] else "no"
        found |= {"compute_only, us": f"{row['peers_us'][beside.BOUND]:.1f}", "computing is larger": larger}
    return found


def _bodies() -> Iterator[str]:
    result = _read("bodies")
    if result is None:
        return
    yield f"## {BODIES}"
    yield ""
    yield f"`{result['command']}`, from the compiler's log; sources {result['version']}."
    yield ""
    yield f"{result['bodies']} bodies, {result['spilling']} spill; at most {result['most_registers']} registers a thread."
    yield ""
    yield "| body | of a schedule | threads | registers | spilled bytes | stack | shared memory |"
    yield "|---" * 7 + "|"
    for row in result["rows"]:
        yield (f"| {row['body']} | {row['schedule']} | {row['threads']} | {row['registers']} | {row['spill_bytes']} | "
               f"{row['stack_bytes']} | {row['shared_bytes']} |")
    yield ""


def _profile() -> Iterator[str]:
    result = _read("gemm_profile")
    if result is None:
        return
    sides = [side for side in ("ours", "library") if side in result]
    row = result["product"]
    yield f"## {PROFILE}"
    yield ""
    yield from _source(result, "measured")
    yield f"{_label(row)}, `{row['schedule']}`, by Nsight Compute, which replays the launch and leaves clocks as they are."
    yield ""
    yield "| counter | " + " | ".join(sides) + " |"
    yield "|---" * (len(sides) + 1) + "|"
    for section, metric, meaning in COUNTERS:
        values = [result[side].get(section, {}).get(metric, "") for side in sides]
        if any(values):
            yield f"| {meaning} | " + " | ".join(values) + " |"
    yield ""


def _label(row: Mapping[str, Any]) -> str:
    if "label" in row:
        return str(row["label"])
    sizes: Sequence[Any] = [row[key] for key in ("m", "n", "k") if key in row]
    return f"{row.get('layer', '')} {'x'.join(map(str, sizes))}".strip()


if __name__ == "__main__":
    sys.exit(main())
