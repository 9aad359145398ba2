"""Library paths that a rank can time beside programs: what a user has without this project. Rank processes only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilescale.deploy.epilogues import finished
from tilescale.deploy.library import local_product
from tilescale.errors import RunnerError, nearest
from tilescale.runtime import gpu_peers
from tilescale.runtime.gpu_check import CALLS, TIMED_CALLS, Workload
from tilescale.runtime.gpu_contestant import Rank, Recording, Timed
from tilescale.runtime.gpu_peers import Meet, Path


class LibraryContestant:
    """A path of library calls, captured by torch, which keeps the memory that the calls allocate."""

    def __init__(self, rank: Rank, name: str, work: Workload, path: Path) -> None:
        self.name = name
        self._rank, self._work, self._path = rank, work, path

    def verify(self) -> None:
        self._work.poison()
        for number in range(CALLS):
            out = self._path.call(number)
            self._synchronize()
            self._path.check(number, out)
        for number in TIMED_CALLS:  # warm: capturing must load and allocate nothing new
            self._path.call(number)
        self._synchronize()

    def record(self, calls: int) -> Recording:
        torch = self._rank.device.torch
        graph = torch.cuda.CUDAGraph()
        self._rank.exchange(b"")
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"):
            for number in range(calls):
                self._path.call(TIMED_CALLS[number % len(TIMED_CALLS)])
        self._rank.exchange(b"")
        return Recording(graph.replay, calls, graph.reset)

    def conclude(self) -> None:
        self._synchronize()

    def close(self) -> None:
        pass

    def _synchronize(self) -> None:
        self._rank.device.driver.synchronize(self._rank.device.stream)


def make(name: str, rank: Rank, work: Workload, meet: Meet) -> Timed:
    """The path called `name`. Collective. RunnerError for one that does not exist for the operation."""
    if name not in MAKERS:
        raise RunnerError("a library path is known", name, nearest(name, MAKERS))
    return LibraryContestant(rank, name, work, MAKERS[name](rank, work, meet))


def _compute_only(rank: Rank, work: Workload, meet: Meet) -> Path:
    """cuBLAS on this rank's SMs, a gathered operand gathered already, and nothing summed: what no overlap can beat."""
    if not work.multiplies:
        raise RunnerError("compute_only goes with operations that multiply", work.spec.op)
    torch = rank.device.torch
    moves, b, out = work.spec.operation.moves, work.calls[0].inputs[1], work.calls[0].out

    def factors(number: int) -> list[Any]:
        found = list(work.calls[number].inputs)
        for move in moves if work.kind == "gather" else ():
            found[move.operand] = work.whole(number, move.operand)
        return found

    pairs = [factors(number) for number in range(CALLS)]
    sums = work.kind not in ("gather", "none")  # then the local product is no output
    apart = sums or bool(work.spec.then)
    part = torch.empty((pairs[0][0].shape[0], b.shape[1]), dtype=out.dtype, device=out.device) if apart else None

    def call(number: int) -> Any:
        data = work.calls[number]
        target = data.out if part is None else part
        local_product(torch, work.spec, pairs[number][0], pairs[number], target)
        return target

    return Path(call, lambda number, out: work.check(number, out, work.local(number) if apart else None))


def _unfused(rank: Rank, work: Workload, meet: Meet) -> Path:
    """A product by cuBLAS in fp32, and its epilogues by torch, rounded once; a gathered operand is gathered before."""
    if not work.multiplies or work.kind not in ("gather", "none"):
        raise RunnerError("this path goes with products that are complete on their rank", work.spec.op,
                          "use the schedule of that name")
    torch, spec = rank.device.torch, work.spec
    gather = gpu_peers.gathered(rank, work, meet) if work.kind == "gather" else lambda number: work.calls[number].inputs[0]
    first = work.calls[0]
    wide = torch.empty((first.out.shape[0], first.inputs[1].shape[1]), dtype=torch.float32, device=first.out.device)

    def call(number: int) -> Any:
        data = work.calls[number]
        local_product(torch, spec, gather(number), data.inputs, wide)
        data.out.copy_(finished(torch, spec, wide, data.inputs[2:]))
        return data.out

    return Path(call, work.check)


MAKERS: dict[str, Callable[[Rank, Workload, Meet], Path]] = {
    "compute_only": _compute_only, "torch.symm_mem": gpu_peers.symm_mem,
    "torch.symm_mem.one_shot": gpu_peers.symm_mem_one_shot, "torch.symm_mem.two_shot": gpu_peers.symm_mem_two_shot,
    "nccl+cublas": gpu_peers.nccl, "unfused": _unfused,
}
