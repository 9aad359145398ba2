"""all_reduce of 8 KB to 512 KB on ranks that share a GPU, beside torch's one-shot and two-shot."""

from __future__ import annotations

import beside

import tilescale as ts

COLUMNS = 4096  # bfloat16: 8 KB a row
ROWS = (1, 4, 16, 64)


def main() -> None:
    given = beside.arguments(__doc__, trials=60).parse_args()
    rows = []
    for ranks in given.ranks:
        topology = ts.Topology.shared_gpu(ranks)
        for count in ROWS:
            tensor = ts.Tensor((count, COLUMNS), "bfloat16", ts.Partial)
            spec = ts.redistribute(tensor, to=ts.Replicate, topology=topology)
            rows.append(beside.Row(f"{count * 8} KB ranks={ranks}", spec))
    beside.run("all_reduce_small", rows, given)


if __name__ == "__main__":
    main()
