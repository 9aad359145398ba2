"""Primitives that no family uses yet: right kernels agree with a reference, wrong twins are found, all compile."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from host_kernels import DATA, arguments, counters, library

from tilescale.codegen.cache import Binary
from tilescale.codegen.compile import Compiler, Source
from tilescale.runtime.check import from_bits, to_bits
from tilescale.runtime.emulator import ADVERSARIES, Machine, RunReport, Signalled, tensor_map

BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
ELEMENTS = {"bfloat16": "Bf16", "float16": "Fp16", "float32": "Fp32"}


# -- reductions --------------------------------------------------------------------------------------------------------
def run_reduce(bug: int, adversary: str, seed: int, tensor: int, dtype: str, ranks: int = 3) -> tuple[RunReport, bool]:
    machine, size = Machine(seed, adversary), BYTES[dtype]
    columns = 128 // size
    start = np.arange(64 * columns).reshape(64, columns) % 5
    total = machine.register_memory(0, "total", 8192, data=to_bits(start.astype(float), dtype).tobytes())
    out = machine.register_memory(0, "out", 8192)
    flags = [counters(machine, rank).address for rank in range(ranks)]
    maps = tensor_map(total.address, (columns, 64), (128,), (columns, 64), size)
    kernel = library("reduce", bug, TENSOR=tensor, ELEMENT=ELEMENTS[dtype], BYTES=size)
    nodes = [
        machine.add_kernel(rank, f"reduce{rank}", kernel, "reduce",
                           arguments([total.address, out.address], flags, rank=rank, n=ranks), maps, 1, 64, 8192)
        for rank in range(ranks)
    ]
    read = machine.add_caller_read(0, out.address, 8192, nodes)
    report = machine.run()
    wanted = start + ranks * (np.arange(64)[:, None] + np.arange(columns))
    found = from_bits(report.seen.get(read, bytes(8192)), dtype).reshape(64, columns)
    rounded = from_bits(to_bits(wanted.astype(float), dtype).tobytes(), dtype).reshape(64, columns)
    tolerance = {"bfloat16": 2.0**-6, "float16": 0.0, "float32": 0.0}[dtype]
    return report, bool((np.abs(found - rounded) <= tolerance * np.abs(rounded)).all())


@pytest.mark.parametrize("dtype", sorted(BYTES))
@pytest.mark.parametrize("tensor", [0, 1])
@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_reductions_add_what_every_rank_brings(adversary: str, tensor: int, dtype: str) -> None:
    for seed in range(2):
        report, right = run_reduce(0, adversary, seed, tensor, dtype)
        assert report.ok, report.error
        assert right
        assert report.step(0, 1, 1).writes[0].end == 8192


@pytest.mark.parametrize("tensor", [0, 1])
@pytest.mark.parametrize("bug", [1, 2, 3, 4])
def test_wrong_reductions_are_found(bug: int, tensor: int) -> None:
    runs = [run_reduce(bug, adversary, seed, tensor, "float32") for seed, adversary in enumerate(ADVERSARIES)]
    assert not all(report.ok and right for report, right in runs)


def test_adding_to_bytes_that_nothing_wrote_is_an_error() -> None:
    machine = Machine()
    total = machine.register_memory(0, "total", 8192)
    flags = counters(machine, 0).address
    kernel = library("reduce", 0, TENSOR=0, ELEMENT="Fp32", BYTES=4)
    values = arguments([total.address, total.address], [flags], n=1)
    machine.add_kernel(0, "reduce", kernel, "reduce", values, b"", 1, 64, 8192)
    fault = machine.run().fault
    assert fault is not None
    assert (fault.kind, fault.step, fault.offset) == ("uninitialised", 1, 0)


# -- mma.sync ----------------------------------------------------------------------------------------------------------
def run_mma(bug: int = 0) -> tuple[RunReport, bool]:
    random = np.random.default_rng(3)
    a, b = (random.integers(-4, 5, shape).astype(float) for shape in ((16, 16), (16, 8)))
    machine = Machine(1, "random")
    slots = [
        machine.register_memory(0, "a", 512, data=to_bits(a, "bfloat16").tobytes()),
        machine.register_memory(0, "b", 256, data=to_bits(b.T.copy(), "bfloat16").tobytes()),
        machine.register_memory(0, "d", 512),
    ]
    node = machine.add_kernel(0, "mma", library("mma", bug), "mma", arguments([s.address for s in slots]), b"", 1, 32, 0)
    read = machine.add_caller_read(0, slots[2].address, 512, [node])
    report = machine.run()
    found = np.frombuffer(report.seen.get(read, bytes(512)), np.float32).reshape(16, 8)
    return report, bool((found == a @ b).all())


def test_a_warp_multiplies() -> None:
    report, right = run_mma()
    assert report.ok, report.error
    assert right


@pytest.mark.parametrize("bug", [1, 3])
def test_wrong_fragments_give_wrong_products(bug: int) -> None:
    report, right = run_mma(bug)
    assert report.ok
    assert not right


@pytest.mark.parametrize(("bug", "kind", "text"), [(2, "deadlock", "32 threads of warp 0"), (4, "collective", "types")])
def test_a_warp_that_is_not_whole_is_an_error(bug: int, kind: str, text: str) -> None:
    report, _ = run_mma(bug)
    assert report.fault is not None
    assert report.fault.kind == kind
    assert text in report.error + report.deadlock


# -- multimem ----------------------------------------------------------------------------------------------------------
def run_multimem(bug: int = 0, kind: int = 0, dtype: str = "bfloat16", seed: int = 0, ranks: int = 3,
                 adversary: str = "random") -> tuple[RunReport, bool]:
    machine, size = Machine(seed, adversary), ranks * 512
    count = size // BYTES[dtype]
    values = np.random.default_rng(5).integers(-8, 9, (ranks, count)).astype(float)
    inputs = [machine.register_memory(r, "in", size, data=to_bits(values[r], dtype).tobytes()) for r in range(ranks)]
    sums = [machine.register_memory(r, "sum", size, data=bytes(size) if kind else b"") for r in range(ranks)]
    outs = [machine.register_memory(r, "out", size) for r in range(ranks)]
    flags = [counters(machine, r) for r in range(ranks)]
    shared = [machine.register_multicast(part) for part in (inputs, sums, flags)]
    kernel = library("multimem", bug, KIND=kind, ELEMENT=ELEMENTS[dtype])
    reads = []
    for r in range(ranks):
        slots = [*shared, inputs[r].address, sums[r].address, outs[r].address]
        args = arguments(slots, [f.address for f in flags], rank=r, n=ranks)
        node = machine.add_kernel(r, "multimem", kernel, "multimem", args, b"", 1, 32, 0)
        reads.append(machine.add_caller_read(r, outs[r].address, size, [node]))
    report = machine.run()
    wanted = values.sum(axis=0)
    found = [from_bits(report.seen.get(read, bytes(size)), dtype) for read in reads]
    return report, all((one == wanted).all() for one in found)


@pytest.mark.parametrize("dtype", sorted(BYTES))
@pytest.mark.parametrize("kind", [0, 1])
def test_multimem_sums_and_stores_over_all_ranks(kind: int, dtype: str) -> None:
    for seed in range(3):
        report, right = run_multimem(0, kind, dtype, seed)
        assert report.ok, report.error
        assert right
    assert report.step(0, 0, 2).signals == tuple(Signalled(rank, 0, 1) for rank in range(3))


@pytest.mark.parametrize("bug", [1, 2, 3])
def test_wrong_multimem_is_found(bug: int) -> None:
    runs = [run_multimem(bug, seed=seed, adversary=adversary) for seed, adversary in enumerate(ADVERSARIES)]
    assert not all(report.ok and right for report, right in runs)


def test_a_multicast_address_has_bounds() -> None:
    report, _ = run_multimem(4)
    assert report.fault is not None
    assert report.fault.kind == "out_of_bounds"
    assert "no multicast address" in report.error


# -- clusters ----------------------------------------------------------------------------------------------------------
def run_cluster(bug: int = 0, adversary: str = "lazy", seed: int = 0, sm_share: int = 2) -> tuple[RunReport, bool]:
    machine = Machine(seed, adversary, sm_share)
    source = np.arange(128 * 64, dtype=np.uint16)
    a = machine.register_memory(0, "a", 16384, data=source.tobytes())
    out = machine.register_memory(0, "out", 32768)
    maps = tensor_map(a.address, (64, 128), (128,), (64, 64), 2)
    node = machine.add_kernel(0, "cluster", library("cluster", bug), "cluster", arguments([out.address]), maps, 2, 64,
                              8192 + 16, cluster=2)
    read = machine.add_caller_read(0, out.address, 32768, [node])
    report = machine.run()
    return report, report.seen.get(read, b"") == source.tobytes() * 2


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_one_load_serves_a_cluster(adversary: str) -> None:
    for seed in range(4):
        report, right = run_cluster(0, adversary, seed)
        assert report.ok, report.error
        assert right


@pytest.mark.parametrize("bug", [1, 2, 4, 5])
def test_wrong_clusters_are_found(bug: int) -> None:
    runs = [run_cluster(bug, adversary, seed) for seed in range(6) for adversary in ADVERSARIES]
    assert not all(report.ok and right for report, right in runs)


def test_a_block_that_exits_early_is_found_when_its_cluster_reaches_for_it() -> None:
    runs = [run_cluster(3, adversary, seed)[0] for seed in range(6) for adversary in ADVERSARIES]
    assert any(report.fault is not None and "exited" in report.error for report in runs)


def test_a_cluster_starts_whole_or_not_at_all() -> None:
    report, _ = run_cluster(sm_share=1)
    assert report.fault is not None
    assert "2 blocks from 0 not started" in report.deadlock


# -- named barriers ----------------------------------------------------------------------------------------------------
def run_arrive(bug: int, adversary: str = "random", seed: int = 0) -> tuple[RunReport, bool]:
    machine = Machine(seed, adversary)
    out = machine.register_memory(0, "out", 128, initialised=True)
    node = machine.add_kernel(0, "arrive", library("arrive", bug), "arrive", arguments([out.address]), b"", 1, 64, 1024)
    read = machine.add_caller_read(0, out.address, 128, [node])
    report = machine.run()
    return report, report.seen.get(read, b"") == struct.pack("<32I", *(3 * t for t in range(32)))


def test_arriving_does_not_wait() -> None:
    for seed in range(4):
        for adversary in ADVERSARIES:
            report, right = run_arrive(0, adversary, seed)
            assert report.ok, report.error
            assert right


# -- cp.async and ldmatrix ----------------------------------------------------------------------------------------------
def run_staged(bug: int, adversary: str) -> tuple[RunReport, bool]:
    data = np.random.default_rng(5).integers(0, 256, 2048, dtype=np.uint8).tobytes()
    machine = Machine(1, adversary)
    slots = [machine.register_memory(0, "from", 2048, data=data), machine.register_memory(0, "to", 2048)]
    values = arguments([s.address for s in slots])
    node = machine.add_kernel(0, "staged", library("staged", bug), "staged", values, b"", 1, 32, 2048)
    read = machine.add_caller_read(0, slots[1].address, 2048, [node])
    report = machine.run()
    return report, report.seen.get(read, b"") == data


@pytest.mark.parametrize("adversary", ["lazy", "random", "eager"])
def test_matrices_are_read_from_where_threads_have_copied_them(adversary: str) -> None:
    report, right = run_staged(0, adversary)
    assert report.ok, report.error
    assert right


@pytest.mark.parametrize("adversary", ["lazy", "random", "eager"])
@pytest.mark.parametrize("bug", [1, 2, 3])
def test_copies_that_are_not_waited_for_are_not_read(bug: int, adversary: str) -> None:
    fault = run_staged(bug, adversary)[0].fault
    assert fault is not None
    assert fault.kind == "uninitialised"


@pytest.mark.parametrize(("bug", "kind"), [(4, "collective"), (5, "misaligned")])
def test_matrices_that_a_warp_cannot_read_are_errors(bug: int, kind: str) -> None:
    fault = run_staged(bug, "lazy")[0].fault
    assert fault is not None
    assert fault.kind == kind


def test_arriving_before_the_write_is_found() -> None:
    assert not all(run_arrive(1, seed=seed)[1] for seed in range(20))


@pytest.mark.parametrize(("bug", "kind"), [(2, "barrier"), (3, "deadlock")])
def test_counts_that_differ_are_errors(bug: int, kind: str) -> None:
    faults = [run_arrive(bug, seed=seed)[0].fault for seed in range(4)]
    assert any(fault is not None and fault.kind in (kind, "deadlock") for fault in faults)
    assert all(fault is not None for fault in faults)


# -- the same texts on the device --------------------------------------------------------------------------------------
def test_all_of_them_compile_for_sm_90a() -> None:
    head = '#include "tilescale/ptx.cuh"\n#include "tilescale/mma.cuh"\nstruct Maps { ts::TensorMap map[4]; };\n'
    sources = []
    for name, macros in (
        *(("reduce", {"TENSOR": tensor, "ELEMENT": ELEMENTS[d], "BYTES": BYTES[d]}) for tensor in (0, 1) for d in BYTES),
        *(("multimem", {"KIND": kind, "ELEMENT": ELEMENTS[d]}) for kind in (0, 1) for d in BYTES),
        ("mma", {}), ("cluster", {}), ("arrive", {}), ("staged", {}),
    ):
        text = (DATA / f"{name}.cu").read_text().replace('#include "common.h"', head)
        defines = "".join(f"#define {key} {value}\n" for key, value in {"BUG": 0, **macros}.items())
        sources.append(Source(defines + text, name, "sm_90a"))
    with Compiler(workers=1) as compiler:
        for source, binary in zip(sources, compiler.compile(sources), strict=True):
            assert isinstance(binary, Binary), f"{source.entry}: {binary}"
            assert binary.spill_bytes == 0
