"""all_reduce of 8 KB to 512 KB on ranks that share a GPU, beside torch's one-shot and two-shot."""

from __future__ import annotations

import beside
import common


def main() -> None:
    given = beside.arguments(__doc__, trials=60).parse_args()
    beside.run([beside.all_reduce_small(given.ranks)], given)


if __name__ == "__main__":
    common.run(main)
