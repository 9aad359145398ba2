"""All tables of ranks that share a GPU in one run: ranks of one kind are started once for all of them.

    python benchmarks/shared_gpu.py [-o FOLDER] [--tables NAME ...]
"""

from __future__ import annotations

import beside
import common


def main() -> None:
    parser = beside.arguments(__doc__, trials=60)
    parser.add_argument("--tables", nargs="+", choices=sorted(beside.TABLES), default=sorted(beside.TABLES))
    given = parser.parse_args()
    beside.run([beside.TABLES[name](given.ranks) for name in given.tables], given)


if __name__ == "__main__":
    common.run(main)
