"""`tune` under torchrun, where every rank calls it: rank 0 searches for all, and all get its answer.

Rank 0 measures in rank processes of its own, one a GPU, so that a schedule that hangs or crashes takes no process of the
job along. The others wait in the store of the launcher, and their GPUs are idle meanwhile.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from tilescale.errors import RunnerError, TopologyError
from tilescale.spec.op import Spec

T = TypeVar("T")
_CALLS = itertools.count()  # calls of this process: all ranks make them in one order
_MEETING_S = 300.0  # for all ranks to call tune
_WAIT_S = 30 * 86400.0  # for rank 0's answer; a job that loses a rank is ended by its launcher


class Store(Protocol):
    """As torch.distributed.Store: `get` waits for the key."""

    def set(self, key: str, value: bytes) -> None: ...
    def get(self, key: str) -> bytes: ...
    def set_timeout(self, timeout: timedelta) -> None: ...


@dataclass(frozen=True)
class Launch:
    """This process among those that torchrun started. `host_world`: on this host."""

    rank: int
    world: int
    host_world: int

    @classmethod
    def here(cls, environment: Mapping[str, str] | None = None) -> Launch | None:
        """None where torchrun did not start this process, or started it alone."""
        found = os.environ if environment is None else environment
        if "TORCHELASTIC_RUN_ID" not in found or int(found.get("WORLD_SIZE", "1")) < 2:
            return None
        world = int(found["WORLD_SIZE"])
        return cls(int(found["RANK"]), world, int(found.get("LOCAL_WORLD_SIZE", world)))


def together(launch: Launch | None, specs: Mapping[str, Spec], search: Callable[[], T],
             store: Callable[[], Store] | None = None) -> T:
    """What `search` returns on rank 0, on every rank; without a launch, just that. Collective.

    Raises RunnerError on every rank where the ranks ask for different things, are on several hosts, or see one GPU each
    that is the same for two of them; what the search raises on rank 0, and RunnerError with its message on the others.
    """
    if launch is None:
        return search()
    if launch.host_world != launch.world:
        raise RunnerError("tune measures on the GPUs of one host", f"{launch.world} ranks, {launch.host_world} on this one",
                          "tune under torchrun --nnodes 1, export, and load the bundle on all hosts")
    number, found = next(_CALLS), (store or launcher_store)()
    found.set_timeout(timedelta(seconds=_MEETING_S))
    mine = {"specs": {name: spec.digest for name, spec in specs.items()}, "gpus": _visible()}
    found.set(f"tilescale/tune/{number}/rank{launch.rank}", pickle.dumps(mine))
    asked = [pickle.loads(found.get(f"tilescale/tune/{number}/rank{rank}")) for rank in range(launch.world)]
    gpus = _agreed(specs, asked)
    key = f"tilescale/tune/{number}/answer"
    if launch.rank == 0:
        with _seeing(gpus):
            return _answered(found, key, search)
    found.set_timeout(timedelta(seconds=_WAIT_S))
    answer, failure = pickle.loads(found.get(key))
    if failure:
        raise RunnerError("rank 0 finds the schedules of all ranks", failure, "see what rank 0 says")
    result: T = answer
    return result


def _answered(store: Store, key: str, search: Callable[[], T]) -> T:
    """The search's result, once the other ranks can have it too; a failure reaches them as well."""
    try:
        result = search()
    except BaseException as error:
        store.set(key, pickle.dumps((None, f"{type(error).__name__}: {error}")))
        raise
    store.set(key, pickle.dumps((result, "")))
    return result


def _agreed(specs: Mapping[str, Spec], asked: Sequence[Mapping[str, Any]]) -> list[str]:
    """The GPUs of the ranks where each sees one of its own, else none: all see the same then. RunnerError as above."""
    wanted = [rank["specs"] for rank in asked]
    if any(each != wanted[0] for each in wanted):
        listed = "; ".join(f"rank {rank}: {', '.join(each.values())}" for rank, each in enumerate(wanted))
        raise RunnerError("all ranks tune the same specs", listed, "declare them alike on every rank")
    seen = [rank["gpus"] for rank in asked]
    if any(len(gpus) != 1 for gpus in seen):
        return []
    gpus = [one[0] for one in seen]
    where = ", ".join(f"rank {rank}: {gpu}" for rank, gpu in enumerate(gpus))
    if len(set(gpus)) < len(gpus) and any(spec.topology.kind == "real" for spec in specs.values()):
        raise RunnerError("ranks of a real topology have a GPU each", where,
                          "let every rank see all GPUs, or one of its own, or use Topology.shared_gpu to share on purpose")
    return gpus


def _visible() -> list[str]:
    """UUIDs of the GPUs that this process may use; none where NVML does not say."""
    from tilescale.spec import detect

    try:
        return [device.uuid for device in detect.devices()]
    except TopologyError:
        return []


@contextlib.contextmanager
def _seeing(gpus: Sequence[str]) -> Iterator[None]:
    """Processes that are started meanwhile see these GPUs, where any are named."""
    name = "CUDA_VISIBLE_DEVICES"
    before = os.environ.get(name)
    if gpus:
        os.environ[name] = ",".join(dict.fromkeys(gpus))
    try:
        yield
    finally:
        if gpus and before is not None:
            os.environ[name] = before
        elif gpus:
            os.environ.pop(name, None)


def launcher_store() -> Store:
    """The store that torchrun's agent keeps, else that of the process group. RunnerError where there is neither."""
    distributed: Any = importlib.import_module("torch.distributed")
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        found: Store = distributed.TCPStore(host, port, is_master=False)
        return found
    if distributed.is_initialized():
        kept: Store = importlib.import_module("torch.distributed.distributed_c10d")._get_default_store()
        return kept
    raise RunnerError("ranks that tune together meet in the store of their launcher", "torchrun keeps none here",
                      "call torch.distributed.init_process_group() before tune")
