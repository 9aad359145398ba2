"""One rank on a GPU or a share of one: prepares programs, checks them, and times them against each other."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tilescale.codegen.program import Kernel, Program
from tilescale.deploy.driver import Grid
from tilescale.deploy.launch import OperationFailed
from tilescale.deploy.library import TorchLibrary
from tilescale.deploy.modules import Modules
from tilescale.deploy.symmetric import SymmetricMemory, agree
from tilescale.deploy.tensors import address_of
from tilescale.errors import BundleError, RunnerError
from tilescale.runtime import gpu_baselines, gpu_job
from tilescale.runtime.clocks import Clocks, summary
from tilescale.runtime.gpu_check import Workload, WrongResult, place_on
from tilescale.runtime.gpu_clock import Stopwatch
from tilescale.runtime.gpu_contestant import Device, ProgramContestant, Rank, Timed
from tilescale.runtime.gpu_driver import RankDriver
from tilescale.runtime.gpu_meeting import Meeting
from tilescale.runtime.gpu_placement import WORKS
from tilescale.runtime.gpu_routed import workload
from tilescale.runtime.rank import GroupAborted, RankContext, RankReport

WORKER = "tilescale.runtime.gpu_rank:GpuRank"
DRAINED = "drained: "  # the message of a timeout after which the kernels of a rank have returned
SPIN_SHARED_BYTES = 160 * 1024  # more than half of an SM's: one block an SM
SPINS = 3
_MEET_LIMIT_S = 5.0  # of a meeting; a rank that comes late is busy on the host


class _Refused(Exception):
    """All ranks refused the same job before anything of it ran."""


class GpuRank:
    """The worker of a rank. Settings: `share_sms` (0: the whole GPU), `arena_bytes`, `flush_bytes`, `time_limit_s`,
    `seed`. Jobs: {"do": "facts"}, once and first, with the meeting kernels as blob; then races, see gpu_job.py."""

    def __init__(self, context: RankContext, open_device: Callable[[RankContext], Device] | None = None) -> None:
        self._context, self._settings = context, context.settings
        self._device = (open_device or open_gpu)(context)
        self._binaries: dict[str, bytes] = {}
        self._modules: dict[str, Modules] = {}
        self._work: dict[str, Workload] = {}
        self._warm: set[tuple[Any, ...]] = set()
        self._race: gpu_job.Race | None = None
        self._rank: Rank | None = None

    # -- the conversation ----------------------------------------------------------------------------------------------
    def prepare(self, job: Mapping[str, Any], blob: bytes) -> str:
        if job["do"] == "facts":
            return "facts"
        self._race, binaries = gpu_job.decode(job, blob)
        self._binaries.update(binaries)
        return self._race.digest

    def run(self, job: Mapping[str, Any], blob: bytes) -> RankReport:
        try:
            with self._device.torch.no_grad(), self._device.scope():
                if job["do"] == "facts":
                    return self._facts(blob)
                assert self._race is not None
                return self._run(self._race)
        except GroupAborted:
            raise
        except _Refused as error:
            several = self._race is not None and len(self._race.contestants) > 1  # some may be open
            return RankReport("launch_error", message=str(error), condemn=several)
        except OperationFailed as error:
            return RankReport("timeout", message=f"{DRAINED}{error}", condemn=True)
        except WrongResult as error:
            return RankReport("wrong_result", message=str(error), condemn=True)
        except Exception as error:  # noqa: BLE001 - reported; what it left behind is not known
            return RankReport("launch_error", message=f"{type(error).__name__}: {error}", condemn=True)

    def _meet(self, value: Any) -> Sequence[Any]:
        return self._context.exchange("value", value).values

    def _bytes(self, mine: bytes) -> Sequence[bytes]:
        return self._context.exchange("bytes", None, mine).blobs

    # -- facts ---------------------------------------------------------------------------------------------------------
    def _facts(self, image: bytes) -> RankReport:
        """Who this rank is, and whether the blocks of all ranks are resident together."""
        device, driver = self._device, self._device.driver
        facts = driver.facts()
        known: dict[str, Any] = {
            "uuid": facts.uuid, "gpu": facts.name, "driver": facts.driver, "cuda": facts.cuda, "sms": driver.sms,
            "groups": driver.share.groups if driver.share else 1, "torch": device.torch.__version__,
            "visible": os.environ.get("CUDA_VISIBLE_DEVICES", ""), "lacks": driver.reach(self._meet(facts.uuid)),
            "peer_memory": driver.peer_memory,
        }
        if any(any(lacks) for lacks in self._meet(known["lacks"])):  # memory cannot be opened; the runner refuses
            return RankReport("ok", message=json.dumps({**known, "blocks_per_sm": 1, "absent": 0}))
        meeting = Meeting(driver, self._context.rank, self._context.world, self._bytes, image,
                          common_clock=device.shared, time_limit_s=_MEET_LIMIT_S)
        self._rank = Rank(device, meeting, self._context.rank, self._context.world, self._bytes)
        if self._settings.get("multicast"):
            known["multicast"] = self._probe_multicast()
        self._clocks = Clocks(facts.uuid)
        self._watch = Stopwatch(self._rank, self._clocks, int(self._settings["flush_bytes"]), self._meet)
        known["blocks_per_sm"] = meeting.spin_fits(SPIN_SHARED_BYTES)
        distinct = len(set(self._meet(facts.uuid)))
        if distinct == (1 if device.shared else self._context.world):  # else the runner refuses
            for _ in range(SPINS):
                self._context.barrier("spin")
                meeting.enqueue_spin(device.stream, driver.sms, SPIN_SHARED_BYTES)
                driver.synchronize(device.stream)
            meeting.enqueue(device.stream)
            driver.synchronize(device.stream)
        return RankReport("ok", message=json.dumps({**known, "absent": meeting.state.absent}))

    # -- races ---------------------------------------------------------------------------------------------------------
    def _run(self, race: gpu_job.Race) -> RankReport:
        work = self._workload(race)
        failed: dict[str, str] = {}
        with contextlib.ExitStack() as stack:
            entered = [timed for timed in self._enter(race, work, failed) if self._verified(timed, failed)]
            recordings = [(timed, timed.record(race.bounds.calls)) for timed in entered]
            for _, recording in recordings:
                stack.callback(recording.drop)
            rounds = self._time(race, recordings)
            for timed, recording in recordings:
                if len(recordings) > 1 and isinstance(timed, ProgramContestant):
                    recording.launch()  # the outputs are those of whoever came last, maybe a library that rounds more
                timed.conclude()
        for timed in entered:
            timed.close()
        only = rounds[0][race.contestants[0].name] if len(race.contestants) == 1 and not failed else []
        report = {"facts": summary(self._watch.readings), "dropped": self._watch.dropped, "rounds": rounds,
                  "failed": failed}
        self._watch.readings, self._watch.dropped = [], 0
        return RankReport("ok", tuple(only), json.dumps(report))

    def _probe_multicast(self) -> str:
        """Whether a multicast address can be made over memory of all ranks, tried to the end."""
        try:
            SymmetricMemory(self._device.driver, self._context.rank, 1, self._bytes, multicast=True).close()
        except BundleError as error:
            return str(error)
        return WORKS

    def _workload(self, race: gpu_job.Race) -> Workload:
        """Inputs and references, kept for the candidates of the same spec."""
        key = race.spec.digest
        if key not in self._work:
            self._work.clear()
            device = self._device
            self._work[key] = workload(device.torch, race.spec, self._context.rank, int(self._settings["seed"]),
                                       device.place)
            device.driver.synchronize(device.stream)
            device.torch.cuda.empty_cache()  # references are made in fp64: give back what only making them took
        return self._work[key]

    def _enter(self, race: gpu_job.Race, work: Workload, failed: dict[str, str]) -> Iterator[Timed]:
        rank = self._rank
        if rank is None:
            raise RunnerError("a rank says its facts before it races", "no facts", "start the group anew")
        for contestant in race.contestants:
            if contestant.program is None:
                found, why = None, ""
                try:
                    found = gpu_baselines.make(contestant.name, rank, work, self._meet)
                except Exception as error:  # noqa: BLE001 - a peer that cannot run here is left out, by name
                    why = f"{type(error).__name__}: {error}"
                if self._agreed(contestant.name, why, failed) and found is not None:
                    yield found
                continue
            limit = float(self._settings["time_limit_s"])
            try:
                agree(self._bytes, functools.partial(self._check_fits, contestant.program))
                modules = self._modules_of(contestant.program.kernels)
                entered = ProgramContestant(rank, contestant.name, contestant.program, modules, work, limit,
                                            self._warm)
            except BundleError as error:  # on all ranks alike
                raise _Refused(str(error)) from error
            yield entered

    def _verified(self, timed: Timed, failed: dict[str, str]) -> bool:
        """Whether to time it. A wrong program fails the job, a library path that does not run is left out."""
        if isinstance(timed, ProgramContestant):
            timed.verify()
            self._context.barrier("verified")  # where it is wrong on one rank, no other starts to wait for samples
            return True
        why = ""
        try:
            timed.verify()
        except Exception as error:  # noqa: BLE001 - as above
            why = f"{type(error).__name__}: {error}"
        return self._agreed(timed.name, why, failed)

    def _agreed(self, name: str, why: str, failed: dict[str, str]) -> bool:
        answers = [str(answer) for answer in self._meet(why)]
        first = next((f"rank {rank}: {answer}" for rank, answer in enumerate(answers) if answer), "")
        if first:
            failed[name] = " ".join(first.split())[:400]
        return not first

    def _modules_of(self, kernels: Sequence[Kernel]) -> Modules:
        """Loaded binaries, kept by the set of kernels: a table's knobs need no other."""
        key = ",".join(kernel.digest for kernel in kernels)
        if key not in self._modules:
            wanted = {kernel.digest: self._binaries[kernel.digest] for kernel in kernels}
            self._modules[key] = Modules(self._device.driver, wanted)
        return self._modules[key]

    def _check_fits(self, program: Program) -> bytes:
        """Every block of a launch resident at once on this rank's SMs; the verifier proves the rest."""
        driver, modules = self._device.driver, self._modules_of(program.kernels)
        for launch in program.ranks[self._context.rank]:
            if launch.kernel is None:
                continue
            function = modules.function(program.kernels[launch.kernel], launch.shared_bytes)
            grid = Grid(launch.blocks, launch.threads, launch.shared_bytes, launch.cluster)
            fits = driver.resident_blocks(function, grid, self._device.stream)
            if launch.blocks > fits:
                raise RunnerError(f"the blocks of launch {launch.name} are resident together on {driver.sms} SMs",
                                  f"{launch.blocks} blocks in clusters of {launch.cluster}, {fits} fit",
                                  "use fewer communication blocks, or a smaller cluster")
        return b""

    def _time(self, race: gpu_job.Race, recordings: Sequence[tuple[Timed, Any]]) -> list[dict[str, list[float]]]:
        """Samples by round and name. Each round begins with another contestant."""
        rounds = []
        for number in range(race.rounds):
            turn = [*recordings[number % len(recordings) :], *recordings[: number % len(recordings)]] \
                if recordings else []
            rounds.append({timed.name: self._watch.samples(recording, race.bounds, fixed=len(race.contestants) > 1)
                           for timed, recording in turn})
        return rounds


def open_gpu(context: RankContext) -> Device:
    """This rank's GPU, or its share of the first one that is visible. Imports torch and makes the context."""
    import torch

    share = int(context.settings["share_sms"])
    ordinal, devices = 0 if share else context.rank, torch.cuda.device_count()
    if not devices:
        raise RunnerError("torch sees a GPU", f"none on rank {context.rank}", "check nvidia-smi, CUDA_VISIBLE_DEVICES")
    if ordinal >= devices:
        raise RunnerError("ranks of a real topology have a GPU each", f"rank {context.rank} sees {devices} GPUs",
                          "use Topology.shared_gpu or .scale_model on one GPU")
    torch.cuda.set_device(ordinal)
    os.environ["LOCAL_RANK"] = str(ordinal)  # for torch and NCCL; under torchrun the one of the parent is here
    torch.zeros(1, device="cuda")  # makes the primary context
    matmul = torch.backends.cuda.matmul
    matmul.allow_bf16_reduced_precision_reduction = matmul.allow_fp16_reduced_precision_reduction = False
    driver = RankDriver(ordinal, context.rank, context.world, share, int(context.settings["arena_bytes"]))
    stream = driver.create_stream()
    external = torch.cuda.ExternalStream(stream)
    return Device(torch, driver, TorchLibrary(torch), stream, lambda: torch.cuda.stream(external),
                  place_on(torch, "cuda"), lambda tensor: address_of(tensor, "a tensor"), bool(share))
