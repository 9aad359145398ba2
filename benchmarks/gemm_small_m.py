"""Local products of 1 to 64 rows against torch.mm, and against a plain read of the weights, with cold caches.

    python benchmarks/gemm_small_m.py [--trials N] [--rounds N] [--seconds S]
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
from typing import Any

import common
import products

from tilescale.codegen.compile import compile_text
from tilescale.runtime.gpu_driver import RankDriver

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=8, help="candidates that the tuner measures for a row")
    parser.add_argument("--rounds", type=int, default=6, help="turns of both sides")
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--db", help="a performance database: searches learn from earlier rows and runs")
    parser.add_argument("-m", type=int, nargs="+", default=[1, 16, 64])
    given = parser.parse_args()
    rows = products.measure(given.m, given.trials, given.rounds, given.seconds, given.db)
    reads = read_us({2 * row["n"] * row["k"] for row in rows})
    for row in rows:
        weights = 2 * row["n"] * row["k"]
        row["read_us"] = round(reads[weights], 2)
        row["gbps"], row["read_gbps"] = round(weights / row["ours_us"] / 1e3), round(weights / reads[weights] / 1e3)
        row["of_read"] = round(reads[weights] / row["ours_us"], 4)
    shares = [row["of_read"] for row in rows]
    mean = round(statistics.geometric_mean(shares), 4)
    products.write("gemm_small_m", rows, geomean_of_read=mean, min_of_read=min(shares))


if __name__ == "__main__":
    common.run(main)
