"""A plan whose products are stored at the peer and signalled, which no schedule lowers to."""

from __future__ import annotations

from support import topology

from tilescale.schedules.plan import Buffer, Copy, Gemm, Goal, Launch, Plan, Region, Role, Signal, Wait
from tilescale.schedules.schedule import Schedule
from tilescale.schedules.sums import WINDOW_BYTES
from tilescale.schedules.tile import shared_bytes, threads
from tilescale.spec.op import Spec, matmul
from tilescale.spec.tensor import Tensor
from tilescale.spec.views import FullRow, Replicate


def between_two() -> Spec:
    """What `there_and_back` carries out: each of two ranks multiplies its rows, with tails in all dimensions."""
    return matmul(Tensor((512, 152), "bfloat16", FullRow), Tensor((152, 280), "bfloat16", Replicate, order="col"),
                  out=FullRow, topology=topology(2))


def there_and_back(spec: Spec, schedule: Schedule) -> Plan:
    """Each rank multiplies into its peer's memory and signals; the peer sends the product back: it becomes the output."""
    (m, k), (_, n) = (tensor.local_shape(0, 2) for tensor in spec.inputs)
    half, row, out_row = m // 2, k * 2, n * spec.output.itemsize
    size, blocks = m * out_row, 2

    def launches(rank: int) -> tuple[Launch, ...]:
        peer = 1 - rank
        b = Region("b", rank, 0, k * n * 2)
        steps = [Gemm(Region("a", rank, i * half * row, half * row), b,
                      Region("there", peer, i * half * out_row, half * out_row), half, n, k) for i in range(2)]
        work = Role("work", "blocks", blocks, (steps[0], steps[1], Signal(peer, 0), Signal(rank, 2)))
        send = Role("send", "blocks", 2, (Wait(0, blocks), Wait(2, blocks), Copy(Region("there", rank, 0, size),
                                          Region("back", peer, 0, size)), Signal(peer, 1)))
        take = Role("take", "blocks", 2, (Wait(1, 2), Copy(Region("back", rank, 0, size), Region("out", rank, 0, size))))
        return (Launch("work", 0, (work,), (), "gemm", threads(spec, schedule), shared_bytes(spec, schedule)),
                Launch("send", 0, (send, take), (), "copy", 512, WINDOW_BYTES))

    buffers = (Buffer("a", "input", m * row), Buffer("b", "input", k * n * 2), Buffer("out", "output", size),
               Buffer("there", "workspace", size, True, 2), Buffer("back", "workspace", size, True, 2))
    return Plan("gemm", buffers, 3, (launches(0), launches(1)),
                Goal("a", "out", (0, m * row, 2 * m * row), row, out_row, True), 16, 232448)
