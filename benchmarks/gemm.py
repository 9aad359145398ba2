"""Local products of 512 to 8192 rows against torch.mm.

    python benchmarks/gemm.py [--trials N] [--rounds N] [--seconds S]
"""

from __future__ import annotations

import argparse

import common
import products


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=8, help="candidates that the tuner measures for a row")
    parser.add_argument("--rounds", type=int, default=4, help="turns of both sides")
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--db", help="a performance database: searches learn from earlier rows and runs")
    parser.add_argument("-m", type=int, nargs="+", default=[512, 4096, 8192])
    given = parser.parse_args()
    products.write("gemm", products.measure(given.m, given.trials, given.rounds, given.seconds, given.db))


if __name__ == "__main__":
    common.run(main)
