"""Loading a bundle on every rank of a group: checked first, decided once for the group, then ready to call."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilescale.arguments import check_path
from tilescale.deploy import bundle as bundles
from tilescale.deploy.checking import check_files
from tilescale.deploy.cuda_driver import find_driver
from tilescale.deploy.driver import DeviceFacts, Driver
from tilescale.deploy.launch import TIME_LIMIT_S, PreparedOperation
from tilescale.deploy.library import TorchLibrary
from tilescale.deploy.manifest import OperationEntry, Variant
from tilescale.deploy.members import Members, members_of
from tilescale.deploy.modules import Modules
from tilescale.deploy.operation import LIBRARY, Operation, Serving
from tilescale.deploy.preflight import Problem, check_device, check_group, notes, runs_on
from tilescale.deploy.turns import turns_of
from tilescale.errors import BundleError, MissingDependency, TilescaleError, nearest

ERROR = "error"
_OFFLINE = "`tilescale bundle check` works without one"

# Gives the driver of the device with that ordinal, or says what is missing.
Find = Callable[[int], Driver | str]


class Operations:
    """The operations of a loaded bundle, by attribute (`ops.gate_up`) or item (`ops["gate_up"]`).

    `digest`: of the bundle. `reason`: why library calls serve instead of its kernels, "" where those do. `notes`: what
    a user must know though nothing is wrong, such as timings that are stale.
    """

    def __init__(
        self, digest: str, operations: dict[str, Operation], modules: Modules | None, reason: str, notes: Sequence[str]
    ) -> None:
        self._operations, self._modules = operations, modules
        self.digest, self.reason, self.notes = digest, reason, tuple(notes)

    def __getitem__(self, name: str) -> Operation:
        if name not in self._operations:
            raise BundleError("the operation is in the bundle", name, nearest(name, self._operations))
        return self._operations[name]

    def __getattr__(self, name: str) -> Operation:
        operations: dict[str, Operation] = self.__dict__.get("_operations", {})
        if name in operations:
            return operations[name]
        raise AttributeError(f"the bundle has no operation {name!r}; {nearest(name, operations)}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._operations)

    def __len__(self) -> int:
        return len(self._operations)

    def __dir__(self) -> list[str]:
        return sorted([*super().__dir__(), *self._operations])

    def check(self) -> None:
        """Wait for the calls on the current stream, and raise OperationFailed where one failed on this rank."""
        for operation in self._operations.values():
            operation.check()

    def close(self) -> None:
        """Give back memory and binaries, collectively."""
        for operation in self._operations.values():
            operation.close()
        if self._modules is not None:
            self._modules.close()


@dataclass(frozen=True)
class _Look:
    """What one rank sees: its bundle, its device, and what stands against either."""

    digest: str
    broken: Problem | None
    device: DeviceFacts | None
    mismatches: tuple[Problem, ...]


def load(
    path: str | Path, group: Any = None, on_mismatch: str = ERROR, *, ranks: Sequence[int] | None = None,
    time_limit_s: float = TIME_LIMIT_S, find: Find | None = None,
) -> Operations:
    """The operations of the bundle in folder `path`, ready on every rank of `group`: a torch process group (None: the
    default one), or a DeviceMesh of one axis, whose order of ranks is kept. `ranks`: those of the group in the job, in the
    order in which the operations count them, where that is not the group's. Collective: all ranks get them, or all raise.

    Groups may overlap. All calls of a process run one after the other on its device, so ranks must make the calls that
    they share in the same order, as with any collectives; a wait for a peer that does not come ends after the time limit.

    A bundle that is damaged is refused. Where it is whole but does not fit (no GPU, another architecture, an older
    driver, another number of ranks, ranks that crowd one GPU) `on_mismatch` decides: "error" raises BundleError,
    "library" gives operations that run torch.distributed and torch.mm, as do shapes that were not tuned.
    `time_limit_s`: how long a kernel waits for a peer before it gives up and reports. `find`: a driver of one's own.
    The variable TILESCALE_PEER_MEMORY says how ranks share memory: "ipc" (the default) or "vmm", on all alike.
    """
    check_path(path, "a bundle", BundleError)
    if on_mismatch not in (ERROR, LIBRARY):
        remedy = nearest(str(on_mismatch), (ERROR, LIBRARY))
        raise BundleError('on_mismatch is "error" or "library"', repr(on_mismatch), remedy)
    torch = _torch()
    found = find(0) if find else _find_device(torch)
    look, bundle = _look(path, found)
    if not _has_group(torch):
        for problem in (look.broken, *look.mismatches):
            if problem is not None and (problem is look.broken or on_mismatch == ERROR):
                raise problem.error()
        raise BundleError("loading needs a group of ranks", "torch.distributed is not initialised",
                          "start ranks with torchrun and call torch.distributed.init_process_group()")
    members = members_of(torch, group, ranks)
    looks: list[_Look] = members.gather(look)
    _refuse_broken(looks)
    assert bundle is not None  # a bundle that cannot be read is broken
    mismatch = _mismatch(bundle, looks)
    if mismatch is not None and on_mismatch == ERROR:
        raise mismatch.error()
    reason = str(mismatch) if mismatch is not None else ""
    driver = None if reason or isinstance(found, str) else found
    serve = _Server(torch, members, bundle, driver, on_mismatch, reason, time_limit_s)
    return serve.operations(notes(bundle.manifest, look.device))


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise MissingDependency("the loader needs torch", str(error), "pip install torch") from None


def _find_device(torch: Any) -> Driver | str:
    if not torch.cuda.is_available():
        found = find_driver()
        return found if isinstance(found, str) else f"torch {torch.__version__} sees no GPU; install a build for CUDA"
    torch.cuda.init()
    return find_driver(torch.cuda.current_device())


def _has_group(torch: Any) -> bool:
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


def _look(path: str | Path, found: Driver | str) -> tuple[_Look, bundles.Bundle | None]:
    try:
        bundle = bundles.read(path)
    except BundleError as error:
        return _Look("", Problem(error.rule, str(error.actual), error.remedy), None, ()), None
    broken = next(iter(check_files(bundle)), None)
    digest = bundle.manifest.digest
    if isinstance(found, str):
        return _Look(digest, broken, None, (Problem("the kernels of the bundle need a GPU", found, _OFFLINE),)), bundle
    facts = found.facts()
    return _Look(digest, broken, facts, tuple(check_device(bundle.manifest, facts))), bundle


def _refuse_broken(looks: Sequence[_Look]) -> None:
    for rank, look in enumerate(looks):
        if look.broken is not None:
            broken = look.broken
            raise BundleError(broken.rule, f"{broken.actual} (on rank {rank})", broken.remedy)
    digests = [look.digest for look in looks]
    if len(set(digests)) > 1:
        raise BundleError("all ranks load the same bundle", digests, "give every rank the same files")


def _mismatch(bundle: bundles.Bundle, looks: Sequence[_Look]) -> Problem | None:
    """The first thing that keeps the kernels from running; the same on every rank."""
    for rank, look in enumerate(looks):
        for problem in look.mismatches:
            return Problem(problem.rule, f"{problem.actual} (on rank {rank})", problem.remedy)
    devices = [look.device for look in looks if look.device is not None]
    return next(iter(check_group(bundle.manifest, len(looks), devices)), None)


class _Server:
    """Makes the operations of a bundle on one rank."""

    def __init__(
        self, torch: Any, members: Members, bundle: bundles.Bundle, driver: Driver | None, on_mismatch: str, reason: str,
        time_limit_s: float,
    ) -> None:
        self._torch, self._members = torch, members
        self._bundle, self._driver, self._on_mismatch, self._reason = bundle, driver, on_mismatch, reason
        self._time_limit_s = time_limit_s
        self._modules: Modules | None = None
        self._ready: list[PreparedOperation] = []

    def operations(self, remarks: Sequence[str]) -> Operations:
        manifest = self._bundle.manifest
        torch_ops = importlib.import_module("tilescale.deploy.torch_ops")
        if self._driver is not None:
            cubins = {kernel.digest: self._bundle.read(kernel.cubin) for kernel in manifest.kernels}
            self._modules = Modules(self._driver, cubins)
        made = {}
        try:
            for entry in manifest.operations:
                made[entry.name] = operation = self._operation(entry)
                operation.key = torch_ops.enrol(operation, f"{entry.name}@{manifest.digest}")
        except TilescaleError:
            for prepared in self._ready:  # every rank fails at the same place
                prepared.close()
            raise
        return Operations(manifest.digest, made, self._modules, self._reason, remarks)

    def _operation(self, entry: OperationEntry) -> Operation:
        reason, servings = self._reason, []
        if self._driver is not None:
            servings = [Serving(v, self._prepare(v)) for v in entry.variants if self._fits(v.spec.topology.gpu.arch)]
            if not servings:
                reason = f"no kernels of {entry.name} for this GPU"
        if reason and self._on_mismatch == ERROR:
            raise BundleError("the bundle has kernels of every operation for the GPU", reason, "export it for this GPU")
        members = self._members
        return Operation(self._torch, entry, servings, members.rank, members.world, members.group, self._on_mismatch,
                         reason, members)

    def _fits(self, arch: str) -> bool:
        return self._driver is not None and runs_on(arch, self._driver.facts().capability)

    def _prepare(self, variant: Variant) -> PreparedOperation:
        assert self._driver is not None
        assert self._modules is not None
        prepared = PreparedOperation(
            variant.spec, self._bundle.program(variant), self._members.rank, self._driver, self._members.gather,
            self._modules, library=TorchLibrary(self._torch), time_limit_s=self._time_limit_s,
            turns=turns_of(self._driver.facts().uuid))
        self._ready.append(prepared)
        return prepared
