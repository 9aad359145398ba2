"""gemm_rs of Llama 3 70B on ranks that share a GPU, beside the unfused path and torch's symmetric memory."""

from __future__ import annotations

import beside
import common


def main() -> None:
    given = beside.arguments(__doc__, trials=60).parse_args()
    beside.run([beside.fused("gemm_rs", given.ranks)], given)


if __name__ == "__main__":
    common.run(main)
