"""all_gather, reduce_scatter and all_reduce of 64 KB to 64 MB on ranks that share a GPU, beside torch's symmetric memory.

    python benchmarks/family_rows.py [-o FILE] [--ops OP ...] [--sizes "64 KB" ...] [--ranks 2 4 8]
        [--inputs ordinary symmetric] [--seconds 3]

The peer of a row is the fastest of torch's operators for it: all_gather and reduce_scatter by copies, one that reads
the addends of all, and one-shot and two-shot all_reduce. Sizes are those of the whole tensor. A row is written when it is
finished, and a second run of the same sources measures those that are missing. `--inputs symmetric`: operands lie where
peers read them, on both sides.
"""

from __future__ import annotations

import beside
import common


def main() -> None:
    parser = beside.arguments(__doc__, trials=60)
    parser.add_argument("--ops", nargs="+", choices=tuple(beside.MOVES), default=tuple(beside.MOVES))
    parser.add_argument("--sizes", nargs="+", choices=tuple(beside.SIZES), default=tuple(beside.SIZES))
    parser.add_argument("--inputs", nargs="+", choices=("ordinary", "symmetric"), default=("ordinary",))
    parser.set_defaults(seconds=3.0)
    given = parser.parse_args()
    beside.run([beside.family(given.ranks, given.ops, given.sizes, given.inputs)], given)


if __name__ == "__main__":
    common.run(main)
