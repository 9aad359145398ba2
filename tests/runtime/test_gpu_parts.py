"""The parts of the GPU runner that compute: places, samples, shares, layouts, references, clocks."""

from __future__ import annotations

import ctypes
import math
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from deploy.fakes import ag_gemm, all_gather
from support import ag_gemm as declared
from support import gemm_rs, reduction, scaled

import tilescale as ts
from tilescale.codegen.compile import INCLUDE, Binary, Compiler, Source
from tilescale.deploy.library import local_product
from tilescale.errors import RunnerError
from tilescale.runtime import green
from tilescale.runtime.arena import GRAIN, Arena
from tilescale.runtime.clocks import Clocks, Reading, nvml_uuid, summary
from tilescale.runtime.gpu_check import CALLS, EXACT_CALL, Workload, WrongResult, place_on
from tilescale.runtime.gpu_meeting import (
    MEET,
    MEET_THREADS,
    RANKS,
    SIZE,
    SPIN,
    SPIN_THREADS,
    TEXT,
    Argument,
    State,
    make_argument,
)
from tilescale.runtime.sampling import Bounds, enough, relative_error, slowest
from tilescale.spec.op import Spec
from tilescale.spec.scales import KINDS


def test_an_arena_gives_places_apart_and_takes_them_back() -> None:
    arena = Arena(4 * GRAIN)
    first, second = arena.take(1), arena.take(GRAIN + 1)
    assert (first, second) == (0, GRAIN)
    assert arena.take(2 * GRAIN) is None
    assert arena.take(GRAIN) == 3 * GRAIN
    arena.give(GRAIN)
    assert arena.take(2 * GRAIN) == GRAIN
    assert arena.used == 4 * GRAIN
    with pytest.raises(KeyError):
        arena.give(17)


def test_samples_are_enough_when_the_median_is_known_well_or_there_are_as_many_as_may_be() -> None:
    bounds = Bounds(minimum=4, maximum=8, target=0.005)
    assert not enough([[100.0] * 3, [90.0] * 3], bounds)
    assert enough([[100.0] * 4, [90.0] * 4], bounds)
    noisy = [100.0, 120.0, 80.0, 110.0]
    assert not enough([noisy], bounds)
    assert enough([noisy * 2], bounds)
    assert slowest([[1.0, 5.0], [2.0, 3.0]]) == [2.0, 5.0]
    assert math.isinf(relative_error([1.0]))
    assert relative_error([100.0, 101.0, 102.0, 5000.0]) < 0.02  # one outlier says little


# --- shares ---


class Cu:
    """cuda.bindings.driver as far as green contexts go."""

    CUdevResourceType = SimpleNamespace(CU_DEV_RESOURCE_TYPE_SM="sm")
    CUgreenCtxCreate_flags = SimpleNamespace(CU_GREEN_CTX_DEFAULT_STREAM=1)
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)

    def __init__(self, sms: int = 132) -> None:
        self.sms, self.calls = sms, list[tuple[Any, ...]]()

    def cuDeviceGetDevResource(self, device: Any, kind: str) -> Any:
        return (0, SimpleNamespace(sm=SimpleNamespace(smCount=self.sms)))

    def cuDevSmResourceSplitByCount(self, groups: int, whole: Any, flags: int, least: int) -> Any:
        count = min(groups, self.sms // least)
        made = [SimpleNamespace(number=i, sm=SimpleNamespace(smCount=least if i < count else 0)) for i in range(groups)]
        return (0, made, count, SimpleNamespace())

    def cuDevResourceGenerateDesc(self, resources: Any, count: int) -> Any:
        return (0, ("description", [resource.number for resource in resources]))

    def cuGreenCtxCreate(self, description: Any, device: Any, flags: int) -> Any:
        self.calls.append(("context", description[1], flags))
        return (0, "context")

    def cuGreenCtxStreamCreate(self, context: Any, flags: int, priority: int) -> Any:
        self.calls.append(("stream", context, flags))
        return (0, 77)


def unpack(result: tuple[Any, ...]) -> Any:
    _, *values = result
    return values[0] if len(values) == 1 else values


@pytest.mark.parametrize(("world", "sms"), [(2, 64), (4, 32), (8, 16)])
def test_every_rank_takes_its_own_group_of_an_even_split(world: int, sms: int) -> None:
    for rank in range(world):
        cu = Cu()
        share = green.make_share(cu, unpack, 0, rank, world, sms)
        assert (share.sms, share.groups) == (sms, world)
        assert green.make_stream(cu, unpack, share) == 77
        assert cu.calls == [("context", [rank], 1), ("stream", "context", 1)]


def test_a_gpu_that_is_too_small_for_the_shares_is_refused() -> None:
    with pytest.raises(RunnerError, match="4 groups of 32 SMs"):
        green.make_share(Cu(sms=108), unpack, 0, 3, 4, 32)


# --- the meeting ---


def test_layouts_are_those_of_the_device(tmp_path: Path) -> None:
    facts = {
        "sizeof(Meeting)": SIZE, "sizeof(MeetArguments)": ctypes.sizeof(Argument), "kMeetRanks": RANKS,
        "kMeetThreads": MEET_THREADS, "kSpinThreads": SPIN_THREADS, "offsetof(Meeting, met)": 0,
        "offsetof(Meeting, failed)": 4, "offsetof(Meeting, resident)": 8, "offsetof(Meeting, absent)": 12,
    }
    facts |= {f"offsetof(MeetArguments, {name})": getattr(Argument, name).offset for name, _ in Argument._fields_}
    header = (INCLUDE / "tilescale" / "measure.cuh").read_text()
    declared = re.findall(r"^(?:constexpr .*?;|struct \w+ \{.*?^\};)", header, re.MULTILINE | re.DOTALL)
    types = "#include <cstddef>\ntypedef unsigned int u32;\ntypedef unsigned long long u64;\n"
    checks = "\n".join(f'static_assert({what} == {value}, "");' for what, value in facts.items())
    source = tmp_path / "layout.cpp"
    source.write_text(types + "\n".join(declared) + "\n" + checks + "\n")
    done = subprocess.run(["g++", "-std=c++17", "-fsyntax-only", str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("entry", [MEET, SPIN])
def test_the_kernels_compile(tmp_path: Path, entry: str) -> None:
    with Compiler(1, tmp_path) as compiler:
        (made,) = compiler.compile([Source(TEXT, entry)])
    assert isinstance(made, Binary), made
    assert made.spill_bytes == 0


def test_the_argument_of_a_meeting() -> None:
    argument = make_argument([10, 20, 30], 1, True, 2.0)
    assert list(argument.meetings[:4]) == [10, 20, 30, 0]
    assert (argument.rank, argument.world, argument.common_clock, argument.time_limit_ns) == (1, 3, 1, 2 * 10**9)
    assert State.unpack(bytes([1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 9])) == State(1, 2, 3, 4)


# --- references ---


def test_the_right_product_passes_and_wrong_ones_are_named() -> None:
    spec = ag_gemm()
    work = Workload(torch, spec, 1, 3, place_on(torch, "cpu"))
    for call, data in enumerate(work.calls):
        work.poison()
        with pytest.raises(WrongResult, match=f"call {call} "):
            work.check(call)
        data.out.copy_(work.whole(call).float() @ data.inputs[1].float())
        work.check(call)
        data.out[5, 7] += 4 * data.out[5, 7].abs() + 1
        with pytest.raises(WrongResult, match=r"element \(5, 7\) of out .*; 1 of \d+ are wrong"):
            work.check(call)
        data.out[5, 7] = math.nan
        with pytest.raises(WrongResult, match=r"element \(5, 7\) of out is nan"):
            work.check(call)


def test_a_gathered_operand_of_bytes_is_joined_and_checked() -> None:
    works = works_of(declared((64, 48, 256), 2, dtype="float8_e4m3fn"))
    for call in range(CALLS):
        whole = torch.cat([work.calls[call].inputs[0].float() for work in works])
        for work in works:
            assert torch.equal(work.whole(call).float(), whole)
            b, out = work.calls[call].inputs[1].float(), work.calls[call].out
            out.copy_(whole @ b)
            work.check(call)
            out[3, 5] = out[3, 5] + 0.05 * whole[3].abs() @ b[:, 5].abs()
            with pytest.raises(WrongResult, match=r"element \(3, 5\)"):
                work.check(call)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spec", [declared((64, 512, 256), 2, dtype="float8_e4m3fn"),
                                  gemm_rs((64, 40, 512), 2, dtype="float8_e4m3fn", order="col")], ids=lambda spec: spec.op)
def test_scaled_products_of_the_library_pass_and_unscaled_ones_do_not(spec: Spec, kind: str) -> None:
    works = works_of(scaled(spec, kind))
    for call in range(CALLS):
        inputs = [work.calls[call].inputs for work in works]
        firsts = [each[0] for each in inputs]
        if spec.op == "ag_gemm":
            firsts = [torch.cat([first.view(torch.uint8) for first in firsts]).view(firsts[0].dtype)] * len(works)
        parts = [torch.empty(first.shape[0], each[1].shape[1]) for first, each in zip(firsts, inputs, strict=True)]
        for work, first, each, part in zip(works, firsts, inputs, parts, strict=True):
            local_product(torch, work.spec, first, each, part)
        for work, first, each, part in zip(works, firsts, inputs, parts, strict=True):
            out = work.calls[call].out
            out.copy_(part if spec.op == "ag_gemm" else keep(work, torch.stack(parts).sum(0)))
            work.check(call)
            unscaled = first.float() @ each[1].float()
            out.copy_(unscaled if spec.op == "ag_gemm" else keep(work, unscaled))
            if kind == "tensor" and call == EXACT_CALL:
                continue  # the one number may be 1
            with pytest.raises(WrongResult):
                work.check(call)


def test_one_unit_in_the_last_place_is_wrong_on_integers_and_rounding_is_allowed_on_random_numbers() -> None:
    work = Workload(torch, ag_gemm(), 0, 3, place_on(torch, "cpu"))
    for call in range(CALLS):
        data = work.calls[call]
        exact = work.whole(call).double() @ data.inputs[1].double()
        data.out.copy_(exact)
        work.check(call)
        data.out.view(torch.int16)[0, 0] += 2  # two units in the last place
        with pytest.raises(WrongResult, match="integers" if call == EXACT_CALL else "random"):
            work.check(call)


def test_ranks_agree_on_what_is_gathered() -> None:
    spec = all_gather()
    works = [Workload(torch, spec, rank, 3, place_on(torch, "cpu")) for rank in range(spec.world)]
    for call in range(CALLS):
        whole = torch.cat([work.calls[call].inputs[0] for work in works])
        for work in works:
            work.calls[call].out.copy_(whole)
            work.check(call)
    assert not torch.equal(works[0].whole(1), works[0].whole(2))


# --- sums over ranks ---


def works_of(spec: Spec, seed: int = 3) -> list[Workload]:
    return [Workload(torch, spec, rank, seed, place_on(torch, "cpu")) for rank in range(spec.world)]


def addends(works: list[Workload], call: int) -> list[torch.Tensor]:
    """What every rank adds, in fp32."""
    inputs = [[value.float() for value in work.calls[call].inputs] for work in works]
    return [each[0] if len(each) == 1 else each[0] @ each[1] for each in inputs]


def keep(work: Workload, total: torch.Tensor) -> torch.Tensor:
    """The part of the sum that a rank receives."""
    output = work.spec.output
    offset, shape = output.local_offset(work.rank, work.spec.world), output.local_shape(work.rank, work.spec.world)
    return total[tuple(slice(first, first + size) for first, size in zip(offset, shape, strict=True))]


SUMS = [
    gemm_rs((64, 40, 256)), gemm_rs((1, 40, 256), ranks=8), gemm_rs((17, 40, 256), ranks=8, order="col"),
    gemm_rs((16, 40, 256), out="Replicate", dtype="float16"), gemm_rs((16, 40, 256), out_dtype="float32"),
    gemm_rs((16, 40, 256), dtype="float8_e4m3fn", order="col"), gemm_rs((16, 40, 256), dtype="float8_e5m2", order="col"),
    gemm_rs((16, 40, 256), out="Partial"), reduction((24, 40), ranks=8), reduction((9, 40), ranks=8, to=ts.FullRow),
    reduction((5, 3, 40), to=ts.Shard(2)), reduction((24, 40), dtype="float32"), reduction((100,), dtype="float16"),
]


@pytest.mark.parametrize("spec", SUMS, ids=lambda spec: f"{spec.label} {spec.output.view.label} {spec.output.dtype}")
def test_sums_in_fp32_rounded_once_pass_and_others_are_named(spec: Spec) -> None:
    works = works_of(spec)
    for call in range(CALLS):
        parts = addends(works, call)
        for work in works:
            out = work.calls[call].out
            total = parts[work.rank] if spec.local else torch.stack(parts).sum(0)
            work.poison()
            out.copy_(keep(work, total))
            work.check(call)
            if not out.numel():
                continue
            last = tuple(size - 1 for size in out.shape)
            out[last] = out[last] + 4 * out[last].abs() + 1
            with pytest.raises(WrongResult, match=rf"element {re.escape(str(last))} of out .*; 1 of {out.numel()} are"):
                work.check(call)


def test_every_rank_must_have_added() -> None:
    """An addend that is missing, or counted twice, is found on integers."""
    works = works_of(reduction((24, 40), ranks=8))
    total = torch.stack(addends(works, EXACT_CALL)).sum(0)
    for wrong in (total - addends(works, EXACT_CALL)[7], total + addends(works, EXACT_CALL)[0]):
        works[0].calls[EXACT_CALL].out.copy_(wrong)
        with pytest.raises(WrongResult, match="integers"):
            works[0].check(EXACT_CALL)


def test_sums_that_are_rounded_as_they_run_pass_for_peers_alone() -> None:
    works = works_of(reduction((64, 64), ranks=8))
    for call in range(CALLS):
        running = torch.zeros(64, 64, dtype=torch.bfloat16)
        for work in works:
            running += work.calls[call].inputs[0]
        work = works[2]
        work.check(call, running, work.peers(call))
        if call != EXACT_CALL:
            with pytest.raises(WrongResult, match="random"):
                work.check(call, running)
        running[5, 5] += running[5, 5].abs() + 1
        with pytest.raises(WrongResult, match=r"element \(5, 5\)"):
            work.check(call, running, work.peers(call))


@pytest.mark.parametrize(("partial", "k", "calls"), [
    ("bfloat16", 64, (1, 2)), ("float16", 64, (1, 2)),
    ("bfloat16", 8 * 2048, (EXACT_CALL,)),  # so long that integers, too, are rounded
])
def test_rounded_partials_pass_where_the_spec_allows_them(partial: str, k: int, calls: tuple[int, ...]) -> None:
    strict = works_of(gemm_rs((16, 64, k), ranks=2, out_dtype="float32"))
    loose = works_of(gemm_rs((16, 64, k), ranks=2, out_dtype="float32", partial_dtype=partial))
    for call in calls:
        rounded = torch.stack([part.to(getattr(torch, partial)).float() for part in addends(strict, call)]).sum(0)
        for work in loose:
            found = keep(work, rounded)
            work.check(call, found)
            with pytest.raises(WrongResult):
                work.check(call, found + 0.1 * found.abs() + 4)
        with pytest.raises(WrongResult):
            strict[0].check(call, keep(strict[0], rounded))


def test_a_local_product_is_checked_without_those_of_the_peers() -> None:
    works = works_of(gemm_rs((64, 40, 256)))
    for call in range(CALLS):
        parts = addends(works, call)
        works[1].check(call, parts[1].bfloat16(), works[1].local(call))
        with pytest.raises(WrongResult):
            works[1].check(call, parts[2].bfloat16(), works[1].local(call))


def test_references_are_kept_no_wider_than_outputs_need() -> None:
    work = works_of(gemm_rs((64, 40, 256)))[0]
    kept = work.calls[1].expected
    assert (kept.values.dtype, kept.allowed.dtype, kept.spread.dtype) == (torch.float32, torch.float32, torch.bfloat16)
    assert work.calls[EXACT_CALL].expected.values.dtype == torch.bfloat16
    assert works_of(gemm_rs((64, 40, 256), out_dtype="float32"))[0].calls[1].expected.values.dtype == torch.float64


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8"])
def test_integers_of_all_ranks_fit_their_type(dtype: str) -> None:
    works = works_of(reduction((8, 8), ranks=8, dtype=dtype))
    for call in range(CALLS):
        if dtype == "uint8" and call == EXACT_CALL:
            continue  # holds no negative numbers
        total = sum(work.calls[call].inputs[0].long() for work in works)
        works[0].check(call, total.to(getattr(torch, dtype)))
        assert int(total.abs().max()) <= 100


# --- clocks ---


def test_heat_and_faults_spoil_samples_and_the_power_cap_does_not() -> None:
    assert not Reading(1980, 600.0, 50, 0x4).spoiled
    assert Reading(1980, 600.0, 50, 0x40).spoiled
    said = summary([Reading(1980, 600.0, 50, 0), Reading(1700, 690.4, 61, 0x24)])
    assert said == {"sm_mhz": "1700-1980", "power_w": "690", "temperature_c": "61",
                    "throttle": "power cap, software thermal"}
    assert summary([]) == {}


def test_uuids_are_written_as_nvml_has_them_and_a_machine_without_it_reads_nothing() -> None:
    assert nvml_uuid("0123456789abcdef0123456789abcdef") == "GPU-01234567-89ab-cdef-0123-456789abcdef"
    assert Clocks("0" * 32).read() is None
