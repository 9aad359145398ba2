"""What must hold between a bundle and the machine before a kernel is launched. Facts in, problems out; no device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tilescale.deploy.driver import DeviceFacts
from tilescale.deploy.manifest import Manifest
from tilescale.errors import BundleError

# First release branch of the driver that supports a CUDA version ("CUDA Compatibility" in the CUDA documentation).
_BRANCHES = {
    12000: 525, 12010: 530, 12020: 535, 12030: 545, 12040: 550, 12050: 555, 12060: 560, 12080: 570, 12090: 575,
    13000: 580, 13010: 590,
}


@dataclass(frozen=True)
class Problem:
    """A rule that does not hold, as in an error; `file`: of the bundle, where it concerns one."""

    rule: str
    actual: str
    remedy: str = ""
    file: str = ""

    def error(self) -> BundleError:
        return BundleError(self.rule, self.actual, self.remedy)

    def __str__(self) -> str:
        return str(self.error())


def branch_of(cuda: int) -> int:
    """Release branch of the first driver for a CUDA version (13000 for 13.0); that of the newest known one below it."""
    return max((branch for version, branch in _BRANCHES.items() if version <= cuda), default=0)


def cuda_text(cuda: int) -> str:
    """Such as "13.0"."""
    return f"{cuda // 1000}.{cuda % 1000 // 10}"


def runs_on(arch: str, capability: tuple[int, int]) -> bool:
    """Whether a binary for `arch` runs on a device: "a" is for that one, "f" and plain for later minors too."""
    number = int(arch[3:].rstrip("af"))
    major, minor = divmod(number, 10)
    if arch.endswith("a"):
        return capability == (major, minor)
    return capability[0] == major and capability[1] >= minor


def check_device(manifest: Manifest, facts: DeviceFacts) -> list[Problem]:
    """Driver, architecture, SMs and shared memory of one device."""
    problems = []
    if facts.cuda < manifest.minimum_cuda:
        need, have = cuda_text(manifest.minimum_cuda), cuda_text(facts.cuda)
        release = facts.driver or f"of branch {branch_of(facts.cuda)}"
        problems.append(Problem(
            f"the driver is new enough for the kernels: CUDA {need} (driver {manifest.minimum_driver} or newer)",
            f"CUDA {have} (driver {release})", f"install driver {manifest.minimum_driver} or newer on this machine"))
    usable = [t for t in manifest.topologies if runs_on(t.arch, facts.capability)]
    if not usable:
        present = f"{facts.name}, compute capability {facts.capability[0]}.{facts.capability[1]}"
        problems.append(Problem(
            "the bundle has kernels for the GPU: it has " + ", ".join(sorted({t.arch for t in manifest.topologies})),
            present, "tune and export for this GPU, or load with on_mismatch=\"library\""))
    elif all(t.sm_share > facts.sms for t in usable):
        least = min(t.sm_share for t in usable)
        problems.append(Problem(
            f"each rank may use {least} SMs, which its kernels occupy together", f"{facts.name} has {facts.sms}",
            "tune and export for this GPU"))
    return problems


def check_group(manifest: Manifest, world: int, devices: Sequence[DeviceFacts]) -> list[Problem]:
    """The number of ranks, and that ranks on one device leave each other the SMs that their kernels occupy together."""
    problems = []
    if world != manifest.world:
        problems.append(Problem(
            f"the bundle was tuned for {manifest.world} ranks", f"a group of {world}",
            f"pass a group of {manifest.world}, or export for {world}"))
        return problems
    archs = {t.arch for t in manifest.topologies if any(runs_on(t.arch, device.capability) for device in devices)}
    share = min((t.sm_share for t in manifest.topologies if t.arch in archs), default=0)
    sms = {device.uuid: device.sms for device in devices}
    for uuid, ranks in sorted(Counter(device.uuid for device in devices).items()):
        if ranks > 1 and ranks * share > sms[uuid]:
            sharing = [rank for rank, device in enumerate(devices) if device.uuid == uuid]
            where = ", ".join(f"rank {rank}: {device.uuid}" for rank, device in enumerate(devices))
            problems.append(Problem(
                f"ranks that share a GPU fit on it together: {share} SMs each",
                f"ranks {sharing} on GPU {uuid} of {sms[uuid]} SMs ({where})",
                "give each rank its own GPU (torch.cuda.set_device(local_rank)), or tune for a shared GPU"))
    return problems


def notes(manifest: Manifest, facts: DeviceFacts | None) -> list[str]:
    """What a user must know though nothing is wrong: timings that are stale, kernels that are a model's."""
    found = {f"{t.name}: its kernels charge every remote byte to a modelled link, which is for measuring, not for serving"
             for t in manifest.topologies if t.kind == "scale_model"}
    for operation in manifest.operations:
        for variant in operation.variants:
            measured = dict(variant.evidence.environment).get("driver", "")
            if measured and facts and facts.driver and measured != facts.driver:
                found.add(f"stale: measured under driver {measured}, running under {facts.driver}")
    return sorted(found)
