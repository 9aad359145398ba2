"""What may travel as packets: gathers and sums that multiply nothing, of shards that are whole packets."""

from __future__ import annotations

from math import prod

from tilescale.schedules.plan import PACKET_BYTES
from tilescale.schedules.sums import summed, sums
from tilescale.spec.op import Spec
from tilescale.spec.tensor import shard_sizes


def packable(spec: Spec) -> bool:
    """Whether an operation gathers rows, or sums, and multiplies nothing."""
    return spec.operation.compute != "gemm" and (sums(spec) or spec.op == "all_gather")


def packed_bytes(spec: Spec) -> int:
    """Bytes of the whole operand of one rank: of a gather those of all ranks."""
    if sums(spec):
        return summed(spec).rows * summed(spec).part_row_bytes
    return prod(spec.inputs[0].sizes) * spec.inputs[0].itemsize


def in_packets(spec: Spec, algorithm: str) -> bool:
    """Whether what goes from a rank to another is whole packets, one at least, and as much for all. Of two shots sums are
    as wide as parts, since both travel."""
    size = packed_bytes(spec)
    if algorithm == "one_shot":
        return size > 0 and size % PACKET_BYTES == 0
    rows = summed(spec).rows if sums(spec) else spec.inputs[0].sizes[0]
    even = len(set(shard_sizes(rows, spec.world))) == 1
    if algorithm == "two_shot":
        even = even and summed(spec).part_row_bytes == summed(spec).out_row_bytes
    return even and size > 0 and size // spec.world % PACKET_BYTES == 0
