"""How much of the communication is hidden, in the scale model of a machine: (unfused - ours) / (unfused - compute only)."""

from __future__ import annotations

import json

import beside

MACHINE = "8xH200-NVSwitch"


def main() -> None:
    parser = beside.arguments(__doc__, trials=60)
    parser.add_argument("--ops", nargs="+", default=list(beside.SHAPES))
    parser.set_defaults(ranks=[4, 8])
    given = parser.parse_args()
    rows = [row for op in given.ops for ranks in given.ranks for row in beside.layers(op, ranks, MACHINE)]
    result = beside.run("overlap", rows, given, {"machine": MACHINE})
    for row in result["rows"]:
        if "peers_us" in row:
            unfused, alone = row["peers_us"]["unfused"], row["peers_us"][beside.BOUND]
            row["hidden"] = round((unfused - row["ours_us"]) / (unfused - alone), 3) if unfused > alone else None
            row["computing_is_larger"] = alone > unfused - alone
            print(f"{row['label']}: hidden {row['hidden']}")
    given.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
