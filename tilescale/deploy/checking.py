"""Checking a bundle: every file and digest always; what depends on a machine where there is one, and else said."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tilescale.codegen.program import Kernel, Program
from tilescale.codegen.table import BLOCK, STEP
from tilescale.deploy import elf
from tilescale.deploy.bundle import Bundle, read
from tilescale.deploy.cuda_driver import find_driver
from tilescale.deploy.driver import Driver
from tilescale.deploy.manifest import MANIFEST, KernelEntry, Manifest, Variant
from tilescale.deploy.preflight import Problem, check_device, notes
from tilescale.errors import BundleError

_AGAIN = "export the bundle again"


@dataclass(frozen=True)
class Report:
    """The outcome of a check. `unchecked`: what could not be looked at, and why. `notes`: what a user must know though
    nothing is wrong. `digest`: of the bundle, "" where its manifest cannot be read."""

    path: str
    digest: str
    files: int
    problems: tuple[Problem, ...]
    checked: tuple[str, ...]
    unchecked: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.problems

    def raise_if_failed(self) -> None:
        """BundleError of the first problem, which says how many more there are."""
        if self.problems:
            first, more = self.problems[0], len(self.problems) - 1
            raise BundleError(first.rule, first.actual + (f" (and {more} more problems)" if more else ""), first.remedy)

    def __str__(self) -> str:
        head = f"{self.path}: {'ok' if self.ok else 'FAILED'}, {self.files} files"
        head += f", {self.digest}" if self.digest else ""
        lines = [f"  problem: {problem}" for problem in self.problems]
        lines += [f"  checked: {text}" for text in self.checked]
        lines += [f"  not checked: {text}" for text in self.unchecked]
        lines += [f"  note: {text}" for text in self.notes]
        return "\n".join([head, *lines])


def check(path: str | Path, find: Callable[[], Driver | str] = find_driver) -> Report:
    """Check the bundle in folder `path`. Never raises for a bad bundle: the report holds the problems.

    `find` gives the driver of a device, or says in words what is missing; then the device is left unchecked.
    """
    try:
        bundle = read(path)
    except BundleError as error:
        problem = Problem(error.rule, str(error.actual), error.remedy, MANIFEST)
        return Report(str(path), "", 0, (problem,), (), ())
    manifest = bundle.manifest
    problems = list(_files(bundle))
    checked = ["size and SHA-256 of every file, none missing and none added"]
    if not problems:
        problems += [*_operations(bundle), *_kernels(bundle)]
        checked += ["programs, tables and digests", "entry points, architecture and compiler of every binary"]
    unchecked = ["that the group has as many ranks as the bundle, and what they share: the loader does"]
    driver, facts = find(), None
    if isinstance(driver, str):
        unchecked.insert(0, f"driver, architecture and SMs of the machine: {driver}")
    else:
        facts = driver.facts()
        problems += check_device(manifest, facts)
        checked.append(f"driver, architecture and SMs: {facts.name}")
    return Report(str(path), manifest.digest, len(manifest.files), tuple(problems), tuple(checked), tuple(unchecked),
                  tuple(notes(manifest, facts)))


def check_files(bundle: Bundle) -> list[Problem]:
    """What is wrong with the bundle itself; empty where it may be used on a machine that fits it."""
    return list(_files(bundle)) or [*_operations(bundle), *_kernels(bundle)]


def _files(bundle: Bundle) -> Iterator[Problem]:
    found = (path for path in bundle.root.rglob("*") if not path.is_dir() or path.is_symlink())
    present = {path.relative_to(bundle.root).as_posix() for path in found}
    listed = {entry.path for entry in bundle.manifest.files}
    for entry in bundle.manifest.files:
        if entry.path not in present:
            yield Problem(f"{entry.path} is in the bundle", "it is missing", _AGAIN, entry.path)
            continue
        data = (bundle.root / entry.path).read_bytes()
        if len(data) != entry.size:
            yield Problem(f"{entry.path} has {entry.size} bytes", str(len(data)), _AGAIN, entry.path)
        elif hashlib.sha256(data).hexdigest() != entry.sha256:
            yield Problem(f"{entry.path} is as it was exported", "another SHA-256", _AGAIN, entry.path)
    for path in sorted(present - listed - {MANIFEST}):
        yield Problem("a bundle holds the files of its manifest alone", f"{path} is none of them", "remove it", path)


def _operations(bundle: Bundle) -> Iterator[Problem]:
    for operation in bundle.manifest.operations:
        for variant in operation.variants:
            try:
                program = bundle.program(variant)
            except BundleError as error:
                yield Problem(error.rule, str(error.actual), error.remedy, variant.table)
                continue
            rule = f"the program of {operation.name} is the one that was tuned"
            for actual in (*_identity(variant), *_structure(bundle.manifest, variant, program)):
                yield Problem(rule, actual, _AGAIN, variant.table)


def _identity(variant: Variant) -> Iterator[str]:
    spec, schedule = variant.spec, variant.schedule
    if (spec.digest, schedule.digest) != (variant.spec_digest, variant.schedule_digest):
        yield "other digests of spec and schedule"


def _structure(manifest: Manifest, variant: Variant, program: Program) -> Iterator[str]:
    if (program.op, program.world) != (variant.spec.op, manifest.world):
        yield f"{program.op} of {program.world} ranks"
    if len(program.ranks) != program.world:
        yield f"launches of {len(program.ranks)} ranks"
    if tuple(kernel.digest for kernel in program.kernels) != variant.kernels:
        yield "other kernels"
    for launch in (launch for launches in program.ranks for launch in launches):
        if launch.kernel is None:
            continue
        rows, steps = len(launch.block_rows) // 2, len(launch.steps) // 2
        if launch.kernel >= len(program.kernels) or rows != launch.blocks * BLOCK.size or steps % STEP.size:
            yield f"launch {launch.name} has tables of another size"


def _kernels(bundle: Bundle) -> Iterator[Problem]:
    for kernel in bundle.manifest.kernels:
        try:
            found = list(_kernel(bundle, kernel))
        except BundleError as error:
            found = [str(error)]
        for actual in found:
            yield Problem(f"{kernel.cubin} is kernel {kernel.entry} for {kernel.arch}", actual, _AGAIN, kernel.cubin)


def _kernel(bundle: Bundle, kernel: KernelEntry) -> Iterator[str]:
    binary = elf.read(bundle.read(kernel.cubin))
    if kernel.entry not in binary.entries:
        yield "entry points " + (", ".join(binary.entries) or "(none)")
    if binary.arch not in (kernel.arch, kernel.arch.rstrip("af")):
        yield f"architecture {binary.arch}"
    if Kernel(kernel.entry, bundle.read(kernel.text).decode(), kernel.arch).digest != kernel.digest:
        yield f"{kernel.text} is another text"
    if binary.cuda is not None and binary.cuda[0] * 1000 + binary.cuda[1] * 10 > bundle.manifest.minimum_cuda:
        yield f"made by CUDA {binary.cuda[0]}.{binary.cuda[1]}, newer than the minimum driver's"
