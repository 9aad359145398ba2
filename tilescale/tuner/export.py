"""From results to a bundle: kernels compiled, programs and evidence gathered, written, and checked."""

from __future__ import annotations

import contextlib
import datetime
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tilescale
from tilescale import canon
from tilescale.codegen.emit import emit
from tilescale.codegen.program import Kernel, Program
from tilescale.deploy import bundle, elf, header
from tilescale.deploy.checking import check
from tilescale.deploy.manifest import (
    FORMAT,
    Evidence,
    KernelEntry,
    Manifest,
    OperationEntry,
    SampleSummary,
    TopologyEntry,
    Variant,
    tolerance_of,
)
from tilescale.deploy.preflight import branch_of
from tilescale.errors import BundleError, CompileError, EmulationError, MissingDependency, PlanError
from tilescale.schedules.lower import lower
from tilescale.schedules.plan import Plan
from tilescale.schedules.verify import verify
from tilescale.spec.topology import Topology
from tilescale.tuner.result import Result

if TYPE_CHECKING:
    from tilescale.codegen.cache import Binary
    from tilescale.codegen.compile import Compiler

OneOrMore = Result | Sequence[Result]

# Says in words what the emulator found, or that it was not asked.
Emulate = Callable[[Result], str]
NOT_EMULATED = "not run"


@dataclass(frozen=True)
class _Chosen:
    """A result on its way into the bundle."""

    name: str
    result: Result
    program: Program
    proof: str
    emulation: str


def export(
    results: OneOrMore | Mapping[str, OneOrMore], directory: str | Path, *, emulate: Emulate | None = None,
    environment: Mapping[str, str] | None = None, compiler: Compiler | None = None, created: str | None = None,
) -> Path:
    """Write the best schedules of `results` as a bundle to `directory`, and return its path.

    One result is named by its own name; a mapping names operations, and a list under one name holds the shapes of one
    operation. `emulate` gives the emulator's verdict, as `emulated` does. `environment`: facts of the machine that
    measured. `compiler`: one to use instead of a new one. `created`: ISO 8601, by default now.
    An older bundle at `directory` is replaced at once; on failure it stays. Raises BundleError for results that do not
    go together, PlanError for a best schedule that is not proved, CompileError, MissingDependency without NVRTC.
    """
    target = Path(directory).absolute()
    bundle.check_replaceable(target)
    chosen = [_choose(name, result, emulate) for name, result in _named(results)]
    _check_together(chosen)
    kernels = {kernel.digest: kernel for one in chosen for kernel in one.program.kernels}
    binaries = _compile(list(kernels.values()), compiler) if kernels else {}
    manifest = _manifest(chosen, kernels, binaries, environment or {}, created or _now())
    bundle.write(target, manifest, _files(manifest, chosen, kernels, binaries))
    check(target, find=lambda: "an export does not ask for a machine").raise_if_failed()
    return target


def emulated(result: Result) -> str:
    """The emulator's report on the best schedule. Where the emulator cannot run it says why; where the kernel is wrong
    it raises EmulationError, so that it is not exported."""
    from tilescale.runtime.emulate import emulate

    try:
        emulation = emulate(result.spec, result.best)
    except MissingDependency as error:
        return f"{NOT_EMULATED}: {error}"
    if not emulation.ok:
        raise EmulationError("an exported schedule is right under the emulator", emulation.report, "report it")
    return emulation.report


def _named(results: OneOrMore | Mapping[str, OneOrMore]) -> Iterator[tuple[str, Result]]:
    if isinstance(results, Mapping):
        for name, value in results.items():
            for result in value if isinstance(value, Sequence) else (value,):
                yield name, result
    else:
        for result in results if isinstance(results, Sequence) else (results,):
            yield result.name, result


def _choose(name: str, result: Result, emulate: Emulate | None) -> _Chosen:
    plan = lower(result.spec, result.best)
    program = emit(result.spec, result.best, plan)
    return _Chosen(name, result, program, _prove(name, plan), emulate(result) if emulate else NOT_EMULATED)


def _prove(name: str, plan: Plan) -> str:
    proof = verify(plan)
    if not proof.ok:
        raise PlanError(f"the schedule of {name} is proved before it is exported", str(proof), "report this schedule")
    return proof.digest


def _check_together(chosen: Sequence[_Chosen]) -> None:
    if not chosen:
        raise BundleError("a bundle holds at least one operation", "no results", "tune something first")
    worlds = sorted({one.result.spec.world for one in chosen})
    if len(worlds) > 1:
        raise BundleError("operations of a bundle have one number of ranks", worlds, "export a bundle for each")
    kinds: dict[str, object] = {}
    seen: set[tuple[str, str]] = set()
    for one in chosen:
        spec = one.result.spec
        kind = (spec.op, spec.placement, spec.then, spec.attributes, [(t.dtype, t.view, t.order) for t in spec.inputs],
                (spec.output.dtype, spec.output.view))
        if kinds.setdefault(one.name, kind) != kind:
            raise BundleError(f"results under {one.name} differ in sizes alone", spec.label, "give it another name")
        if (one.name, spec.digest) in seen:
            raise BundleError(f"results under {one.name} are of different shapes", spec.label, "export one of them")
        seen.add((one.name, spec.digest))


def _compile(kernels: Sequence[Kernel], compiler: Compiler | None) -> dict[str, Binary]:
    from tilescale.codegen.compile import CompileFailure, Compiler, Source

    sources = [Source(kernel.text, kernel.entry, kernel.arch) for kernel in kernels]
    with contextlib.ExitStack() as stack:
        outcomes = (compiler or stack.enter_context(Compiler())).compile(sources)
    binaries = {}
    for kernel, outcome in zip(kernels, outcomes, strict=True):
        if isinstance(outcome, CompileFailure):
            raise CompileError(f"kernel {kernel.entry} compiles for {kernel.arch} ({outcome.status})", outcome.message)
        binaries[kernel.digest] = outcome
    return binaries


def _manifest(
    chosen: Sequence[_Chosen], kernels: Mapping[str, Kernel], binaries: Mapping[str, Binary],
    environment: Mapping[str, str], created: str,
) -> Manifest:
    entries = tuple(_kernel_entry(kernel, binaries[digest]) for digest, kernel in sorted(kernels.items()))
    tables = _table_paths(chosen)
    operations: dict[str, list[Variant]] = {}
    for one, table in zip(chosen, tables, strict=True):
        operations.setdefault(one.name, []).append(_variant(one, table, environment))
    topologies = {one.result.spec.topology.digest: one.result.spec.topology for one in chosen}
    cuda = max((_cuda(binary) for binary in binaries.values()), default=0)
    return Manifest(
        format=FORMAT, tilescale=tilescale.__version__, created=created, world=chosen[0].result.spec.world,
        topologies=tuple(_topology_entry(topology) for _, topology in sorted(topologies.items())),
        archs=tuple(sorted({entry.arch for entry in entries})), minimum_cuda=cuda, minimum_driver=branch_of(cuda),
        operations=tuple(OperationEntry(name, variants[0].spec.op, tuple(variants))
                         for name, variants in sorted(operations.items())),
        kernels=entries, files=())


def _kernel_entry(kernel: Kernel, binary: Binary) -> KernelEntry:
    cuda = elf.read(binary.cubin).cuda
    return KernelEntry(
        digest=kernel.digest, entry=kernel.entry, arch=kernel.arch, cubin=f"cubin/{kernel.digest}.{kernel.arch}.cubin",
        text=f"text/{kernel.digest}.cu", registers=binary.registers, spill_bytes=binary.spill_bytes,
        cuda=".".join(map(str, cuda)) if cuda else "")


def _cuda(binary: Binary) -> int:
    """CUDA version of the compiler that made a binary, by its own note: 13000 for 13.0."""
    cuda = elf.read(binary.cubin).cuda
    if cuda is None:
        raise BundleError("a binary says which CUDA made it", f"{binary.entry}: no note", "compile with NVRTC 13.0")
    return cuda[0] * 1000 + cuda[1] * 10


def _topology_entry(topology: Topology) -> TopologyEntry:
    return TopologyEntry(
        topology.name, topology.kind, topology.digest, topology.gpu.arch, topology.ranks, topology.sm_share)


def _variant(one: _Chosen, table: str, environment: Mapping[str, str]) -> Variant:
    spec, best, program = one.result.spec, one.result.best, one.program
    return Variant(
        spec=spec, spec_digest=spec.digest, schedule=best, schedule_digest=best.digest, program_digest=program.digest,
        binary_digest=program.binary_digest, table_digest=program.table_digest, table=table,
        kernels=tuple(kernel.digest for kernel in program.kernels), tolerance=tolerance_of(spec),
        evidence=_evidence(one, environment))


def _evidence(one: _Chosen, environment: Mapping[str, str]) -> Evidence:
    result = one.result
    finite = result.best_us == result.best_us and abs(result.best_us) != float("inf")
    return Evidence(
        source=result.source, status=result.status, best_us=result.best_us if finite else None,
        samples=_samples(result), baselines=tuple(sorted(result.baselines.items())), ties=tuple(result.ties),
        proof=one.proof, emulation=one.emulation, environment=tuple(sorted(environment.items())))


def _samples(result: Result) -> SampleSummary | None:
    """Of the best schedule's trial, where its samples are at hand."""
    for trial in result.rows:
        if trial.schedule == result.best and trial.ok and trial.samples_us:
            calls = [max(call) for call in zip(*trial.samples_us, strict=True)]
            return SampleSummary(len(calls), statistics.median(calls), min(calls), max(calls))
    return None


def _table_paths(chosen: Sequence[_Chosen]) -> list[str]:
    """A file a program, named after its operation as far as file names allow."""
    paths: list[str] = []
    for one in chosen:
        plain = "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "_" for c in one.name) or "operation"
        number, path = 1, f"tables/{plain}.json"
        while path in paths:
            path, number = f"tables/{plain}.{number}.json", number + 1
        paths.append(path)
    return paths


def _files(
    manifest: Manifest, chosen: Sequence[_Chosen], kernels: Mapping[str, Kernel], binaries: Mapping[str, Binary]
) -> Iterator[tuple[str, bytes]]:
    from tilescale.codegen.compile import INCLUDE

    for entry in manifest.kernels:
        yield entry.cubin, binaries[entry.digest].cubin
        yield entry.text, kernels[entry.digest].text.encode()
    for one, table in zip(chosen, _table_paths(chosen), strict=True):
        yield table, (canon.dumps(one.program) + "\n").encode()
    for path in sorted(INCLUDE.rglob("*.cuh")):
        yield f"include/{path.relative_to(INCLUDE).as_posix()}", path.read_bytes()
    yield bundle.HEADER, header.text(manifest).encode()


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
