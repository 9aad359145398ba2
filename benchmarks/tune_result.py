"""What a tuning session left in a database, as a committed result: every candidate with its samples, best against best.

tilescale tune recipes/ag_gemm/llama-3-70b.toml -w attn_qkv_4096 --trials 170 --db perf.db
python benchmarks/tune_result.py perf.db -o benchmarks/results/tune_ag_gemm.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import common

import perfdb


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    with perfdb.open_database(given.database) as db:
        trials = perfdb.trials(db)
        rows: list[dict[str, Any]] = []
        for trial in trials.to_dict("records"):
            found = perfdb.samples(db, int(trial["trial_id"]))
            samples = (
                [[round(float(v), 2) for v in part.sort_values("sample")["us"]] for _, part in found.groupby("rank")]
                if len(found)
                else []
            )
            rows.append(
                {
                    "schedule": trial["schedule_label"],
                    "digest": trial["schedule"],
                    "status": trial["status"],
                    "us": trial["value_us"],
                    "source": trial["source"],
                    "rank_samples_us": samples,
                }
            )
    good = [row for row in rows if row["status"] == "ok"]
    best = {
        kind: min((r for r in good if kind in r["schedule"]), key=lambda r: r["us"])
        for kind in ("generated", "library")
    }
    times = trials["recorded_at"]
    result = {
        **common.header("tune_ag_gemm"),
        "workload": str(trials["workload_label"].iloc[0]),
        "candidates": len(rows),
        "right": len(good),
        "failed": len(rows) - len(good),
        "seconds_first_to_last": (times.max() - times.min()).total_seconds(),
        "best_generated": {k: best["generated"][k] for k in ("schedule", "us")},
        "best_library": {k: best["library"][k] for k in ("schedule", "us")},
        "ratio": best["library"]["us"] / best["generated"]["us"],
        "rows": rows,
    }
    given.output.write_text(json.dumps(result) + "\n")
    print({key: value for key, value in result.items() if key != "rows"})


if __name__ == "__main__":
    main()
