"""The manifest of a bundle: what it holds, what it was proved and measured to be, and the digest of every file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tilescale import canon
from tilescale.errors import BundleError, TilescaleError
from tilescale.schedules.schedule import Schedule
from tilescale.spec.declaration import Spec
from tilescale.spec.routed import allowed_of

FORMAT = 1
MANIFEST = "manifest.json"
KIND = "tilescale bundle"


@dataclass(frozen=True)
class FileEntry:
    """A file of the bundle: path below its root with forward slashes, bytes, and SHA-256 in hexadecimal."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class KernelEntry:
    """A binary and the text it was made from. `cuda`: version of the compiler, such as "13.0", "" where unknown."""

    digest: str
    entry: str
    arch: str
    cubin: str
    text: str
    registers: int
    spill_bytes: int
    cuda: str


@dataclass(frozen=True)
class SampleSummary:
    """What the samples of the best schedule say, in microseconds of the slowest rank."""

    calls: int
    median_us: float
    minimum_us: float
    maximum_us: float


@dataclass(frozen=True)
class Evidence:
    """Why this schedule was chosen and what shows that it is right.

    `source`: where times come from (runtime/measure.py names them). `best_us` is None where nothing was timed.
    `ties`: schedules that could not be told apart from it. `proof`: digest of the proved protocol. `emulation`: the
    emulator's verdict in words. `environment`: facts of the measuring machine, sorted pairs.
    """

    source: str
    status: str
    best_us: float | None
    samples: SampleSummary | None
    baselines: tuple[tuple[str, float], ...]
    ties: tuple[Schedule, ...]
    proof: str
    emulation: str
    environment: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Tolerance:
    """Bounds that a result meets: |out - exact| <= output_roundoff |exact| + accumulation sum|a||b|, elementwise; or of
    a sum over ranks, sum|a|. A spec with an attribute `partial_dtype` also lets every addend be rounded to that type.
    With epilogues the bounds are those of the sum that they are applied to (spec/epilogues has what becomes of them).
    """

    output_roundoff: float
    accumulation: float


@dataclass(frozen=True)
class Variant:
    """An operation at the shapes it was tuned for. `table`: path of its Program; `kernels`: digests of its binaries."""

    spec: Spec
    spec_digest: str
    schedule: Schedule
    schedule_digest: str
    program_digest: str
    binary_digest: str
    table_digest: str
    table: str
    kernels: tuple[str, ...]
    tolerance: Tolerance
    evidence: Evidence


@dataclass(frozen=True)
class OperationEntry:
    """A callable of the loaded bundle: `variants` differ in their shapes."""

    name: str
    op: str
    variants: tuple[Variant, ...]


@dataclass(frozen=True)
class TopologyEntry:
    """Ranks that variants were tuned for. `sm_share`: SMs a rank may use, so what a device must have for each rank."""

    name: str
    kind: str
    digest: str
    arch: str
    ranks: int
    sm_share: int


@dataclass(frozen=True)
class Manifest:
    """Everything about a bundle but the bytes of its files.

    `minimum_cuda`: lowest CUDA version of a driver that loads the binaries (13000 is 13.0; 0: it holds none).
    `minimum_driver`: the release branch of that driver. `created`: UTC, ISO 8601.
    """

    format: int
    tilescale: str
    created: str
    world: int
    topologies: tuple[TopologyEntry, ...]
    archs: tuple[str, ...]
    minimum_cuda: int
    minimum_driver: int
    operations: tuple[OperationEntry, ...]
    kernels: tuple[KernelEntry, ...]
    files: tuple[FileEntry, ...]

    @property
    def digest(self) -> str:
        """Identity of the bundle."""
        return canon.digest(self)

    def kernel(self, digest: str) -> KernelEntry:
        """The binary of that digest; BundleError where the manifest names none."""
        for kernel in self.kernels:
            if kernel.digest == digest:
                return kernel
        raise BundleError("every kernel of an operation is in the bundle", digest, "export the bundle again")


def tolerance_of(spec: Spec) -> Tolerance:
    """Those that every measurement was checked against; zero for operations that only move elements."""
    allowed = allowed_of(spec)
    return Tolerance(allowed.result, allowed.magnitude)


def dump(manifest: Manifest) -> bytes:
    """The text of manifest.json: readable, with a digest over the rest, so that an edit is noticed."""
    data = {"kind": KIND, "digest": manifest.digest, "manifest": canon.encode(manifest)}
    return (json.dumps(data, sort_keys=True, indent=1, allow_nan=False) + "\n").encode()


def is_manifest(text: bytes) -> bool:
    """Whether the text is the manifest of a bundle, of any format and even a damaged one."""
    return KIND.encode() in text


def parse(text: bytes) -> Manifest:
    """The manifest; raises BundleError for another format, a damaged text, or a value that is none."""
    try:
        data: Any = json.loads(text)
        body = data["manifest"]
        written = body["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise BundleError(f"{MANIFEST} is the manifest of a bundle", str(error), "export the bundle again") from None
    if written != FORMAT:
        remedy = "export it again with this version, or load it with the tilescale that made it"
        raise BundleError(f"the bundle has format {FORMAT}, which this version reads", f"format {written}", remedy)
    try:
        manifest = canon.decode(Manifest, body)
    except TilescaleError as error:
        raise BundleError(f"{MANIFEST} holds a manifest of format {FORMAT}", str(error), "export it again") from None
    if data.get("digest") != manifest.digest:
        actual = f"{data.get('digest')} written, {manifest.digest} computed"
        raise BundleError(f"the digest of {MANIFEST} is that of its content", actual, "export the bundle again")
    return manifest
