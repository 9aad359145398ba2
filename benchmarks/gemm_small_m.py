"""Local products of 1 to 64 rows against torch.mm, and against a plain read of the weights, with cold caches.

    python benchmarks/gemm_small_m.py [--trials N] [--rounds N] [--seconds S] [-m M ...] [--only TEXT ...]
        [-o FILE] [--keep-older]
"""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import common
import products
import written

from tilescale.codegen.compile import compile_text
from tilescale.runtime.gpu_driver import RankDriver

NAME = "gemm_small_m"
TEXT = "#include <tilescale/measure.cuh>\n\nTILESCALE_READ\n"
ENTRY, THREADS, BLOCKS_PER_SM = "tilescale_read", 512, (1, 2, 4)
FLUSH_BYTES = 256 << 20
SAMPLES = 12


class ReadArguments(ctypes.Structure):
    """As in measure.cuh."""

    _fields_ = [("source", ctypes.c_uint64), ("units", ctypes.c_uint64), ("sink", ctypes.c_uint64)]


def read_us(sizes: set[int]) -> dict[int, float]:
    """Microseconds of a plain read of so many bytes: of the fastest grid, measured as the products are."""
    driver = RankDriver(0, 0, 1, 0, 0)
    kernel = driver.function(driver.load_module(compile_text(TEXT, ENTRY).cubin), ENTRY)
    stream, flush = driver.create_stream(), driver.allocate(FLUSH_BYTES)
    start, end = driver.timer_event(), driver.timer_event()
    found = {}
    for size in sorted(sizes):
        buffers = [driver.allocate(size) for _ in range(2)]
        medians = []
        for blocks in BLOCKS_PER_SM:
            arguments = [ReadArguments(buffer, size // 16, flush) for buffer in buffers]

            def enqueue(arguments: Any = arguments, blocks: int = blocks) -> None:
                for argument in arguments:
                    driver.launch_struct(kernel, blocks * driver.sms, THREADS, 0, stream, argument)

            graph, samples = driver.capture(stream, enqueue), []
            for number in range(SAMPLES + 2):
                driver.fill(flush, number, FLUSH_BYTES, stream)
                driver.record(start, stream)
                driver.replay(graph, stream)
                driver.record(end, stream)
                driver.synchronize(stream)
                samples.append(driver.elapsed_us(start, end) / 2)
            medians.append(statistics.median(samples[2:]))
            driver.drop_graph(graph)
        found[size] = min(medians)
        for buffer in buffers:
            driver.free(buffer)
    return found


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a table says of itself; shares of a plain read of those rows that have one."""
    shares = [row["of_read"] for row in rows if "of_read" in row]
    mean = {"geomean_of_read": round(statistics.geometric_mean(shares), 4), "min_of_read": min(shares)} if shares else {}
    return {**written.ratios(rows), **mean}


def compare(found: written.Written, read: Callable[[set[int]], Mapping[int, float]]) -> None:
    """Hold the new rows against `read`, which says the microseconds of a plain read of so many bytes. A run that was cut
    before leaves them to the next one."""
    rows = {id(row): 2 * row["n"] * row["k"] for row in found.mine if "of_read" not in row}
    reads = read(set(rows.values())) if rows else {}
    for row in found.mine:
        if id(row) in rows:
            weights = rows[id(row)]
            row["read_us"] = round(reads[weights], 2)
            row["gbps"], row["read_gbps"] = round(weights / row["ours_us"] / 1e3), round(weights / row["read_us"] / 1e3)
            row["of_read"] = round(row["read_us"] / row["ours_us"], 4)
    found.write()


def main() -> None:
    given = products.arguments(__doc__, NAME, rounds=6, rows_m=(1, 16, 64)).parse_args()
    found = products.table(NAME, given, summary)
    products.measure(found, given)
    compare(found, read_us)
    print(found.said)


if __name__ == "__main__":
    common.run(main)
