"""Local products of 512 to 8192 rows against torch.mm.

    python benchmarks/gemm.py [--trials N] [--rounds N] [--seconds S] [-m M ...] [--only TEXT ...] [-o FILE] [--keep-older]
"""

from __future__ import annotations

import common
import products

NAME = "gemm"


def main() -> None:
    given = products.arguments(__doc__, NAME, rounds=4, rows_m=(512, 4096, 8192)).parse_args()
    found = products.table(NAME, given)
    products.measure(found, given)
    print(found.said)


if __name__ == "__main__":
    common.run(main)
