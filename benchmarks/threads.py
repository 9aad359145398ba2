"""Ranks as threads of this process, on one GPU: a handle to a peer's memory is its address, so any plan can be run."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # streams of several ranks must not queue behind each other
os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")  # nothing is loaded while kernels wait for each other

from tilescale.deploy.cuda_driver import CudaDriver
from tilescale.deploy.launch import PreparedOperation
from tilescale.deploy.modules import Modules
from tilescale.spec.op import Spec

TIME_LIMIT_S = 2.0


class Peers(CudaDriver):
    """Ranks are threads of one process, so a handle is an address."""

    def export_memory(self, address: int) -> bytes:
        return address.to_bytes(8, "little")

    def open_memory(self, handle: bytes) -> int:
        return int.from_bytes(handle[:8], "little")

    def close_memory(self, address: int) -> None:
        pass


class Meeting:
    """An exchange between threads."""

    def __init__(self, world: int) -> None:
        self.barrier, self.slots = threading.Barrier(world, timeout=60), [b""] * world

    def of(self, rank: int) -> Any:
        def exchange(mine: bytes) -> Sequence[bytes]:
            self.slots[rank] = mine
            self.barrier.wait()
            answers = list(self.slots)
            self.barrier.wait()
            return answers

        return exchange


def prepared(spec: Spec, program: Any, binaries: dict[str, bytes]) -> list[PreparedOperation]:
    meeting, made = Meeting(spec.world), [None] * spec.world
    failures: list[BaseException] = []

    def make(rank: int) -> None:
        try:
            driver = Peers(0)
            made[rank] = PreparedOperation(
                spec,
                program,
                rank,
                driver,
                meeting.of(rank),
                Modules(driver, binaries),
                time_limit_s=TIME_LIMIT_S,
            )
        except BaseException as error:  # noqa: BLE001 (raised again by the caller)
            failures.append(error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=make, args=(rank,)) for rank in range(spec.world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return made


def threads_close(operations: list[PreparedOperation]) -> None:
    """Closing is collective, so every rank does it in a thread of its own."""
    threads = [threading.Thread(target=operation.close) for operation in operations]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
