"""How much of the communication is hidden, in the scale model of a machine: (unfused - ours) / (unfused - compute only)."""

from __future__ import annotations

import beside
import common


def main() -> None:
    parser = beside.arguments(__doc__, trials=60)
    parser.set_defaults(ranks=[4, 8])
    given = parser.parse_args()
    beside.run([beside.overlap(given.ranks)], given)


if __name__ == "__main__":
    common.run(main)
