"""Workloads of dispatch and combine, on the CPU: what must come out is what the numpy reference says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from support import routed

from tilescale.runtime.gpu_check import CALLS, POISON, CallData, WrongResult, place_on
from tilescale.runtime.gpu_routed import RoutedWorkload, workload
from tilescale.runtime.routed import entries_of
from tilescale.runtime.routing import routing_of
from tilescale.schedules.ragged import ragged_geometry
from tilescale.spec.topology import Topology

ON = Topology.shared_gpu(ranks=2)


def works(op: str) -> list[RoutedWorkload]:
    spec = routed(op, 2, tokens=12, hidden=8, experts=4, top_k=3, on=ON)
    found = [workload(torch, spec, rank, 7, place_on(torch, "cpu")) for rank in range(2)]
    assert all(isinstance(work, RoutedWorkload) for work in found)
    return found  # type: ignore[return-value]


def entries(call: int, op: str) -> list[list[int]]:
    spec = routed(op, 2, tokens=12, hidden=8, experts=4, top_k=3, on=ON)
    turn = "twice" if call == 0 else "declared"
    indices = routing_of(spec, np.random.default_rng(7 * CALLS + call), turn)
    return entries_of(ragged_geometry(spec, "push", 1), indices).tolist()  # type: ignore[no-any-return]


def carry_out(made: list[RoutedWorkload], op: str) -> None:
    """What right kernels do."""
    for work in made:
        work.poison()
    for call in range(CALLS):
        for source, token, k, holder, row in entries(call, op):
            if op == "dispatch":
                made[holder].calls[call].out[row] = made[source].calls[call].inputs[0][token]
                continue
            target, weights = made[source].calls[call], made[source].calls[call].inputs[2]
            if not hasattr(target, "sums"):
                object.__setattr__(target, "sums", torch.zeros(target.out.shape))
            target.sums[token] += weights[token, k] * made[holder].calls[call].inputs[0][row].float()
        for rank, work in enumerate(made):
            data = work.calls[call]
            if op == "combine":
                data.out.copy_(data.sums)
            else:
                data.inputs[-1].copy_(torch.from_numpy(work._table(call)))
                assert data.inputs[-1].sum() == sum(entry[3] == rank for entry in entries(call, op))


@pytest.mark.parametrize("op", ["dispatch", "combine"])
def test_right_results_are_right(op: str) -> None:
    made = works(op)
    carry_out(made, op)
    for work in made:
        for call in range(CALLS):
            work.check(call)


@pytest.mark.parametrize("op", ["dispatch", "combine"])
def test_what_was_not_written_is_wrong(op: str) -> None:
    for work in works(op):
        work.poison()
        with pytest.raises(WrongResult):
            work.check(1)


def test_a_wrong_row_a_row_too_many_and_a_wrong_count_are_told() -> None:
    made = works("dispatch")
    carry_out(made, "dispatch")
    data = made[0].calls[1]
    rows = data.expected.values.shape[0]
    kept = data.out[0, 0].clone()
    data.out[0, 0] = kept + 1
    with pytest.raises(WrongResult, match=f"row 0 of {rows}"):
        made[0].check(1)
    data.out[0, 0] = kept
    data.out[rows] = 0
    with pytest.raises(WrongResult, match="behind the last one"):
        made[0].check(1)
    data.out[rows].view(torch.uint8).fill_(POISON)
    made[0].check(1)
    data.inputs[-1][0, 0] += 1
    with pytest.raises(WrongResult, match="counts are"):
        made[0].check(1)


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn"])
def test_tokens_of_any_type_are_drawn(dtype: str) -> None:
    spec = routed("dispatch", 2, hidden=8, experts=4, dtype=dtype, on=ON)
    work = workload(torch, spec, 0, 7, place_on(torch, "cpu"))
    assert work.calls[1].inputs[0].dtype == getattr(torch, dtype)
    assert len(work.calls[1].inputs[0].float().unique()) > 4
    work.poison()
    rows = work.calls[1].expected.values.shape[0]
    work.calls[1].out[:rows] = work.calls[1].expected.values
    with pytest.raises(WrongResult, match="counts are"):
        work.check(1)


def test_a_sum_that_is_off_by_more_than_a_rounding_is_told() -> None:
    made = works("combine")
    carry_out(made, "combine")
    at = int(made[1].calls[2].out[:, 0].abs().argmax())
    made[1].calls[2].out[at, 0] *= 1.02
    with pytest.raises(WrongResult, match="1 of 48 are wrong"):
        made[1].check(2)


def test_products_of_experts_are_right_and_wrong_ones_are_told() -> None:
    spec = routed("dispatch_gemm", 2, tokens=12, hidden=8, experts=4, top_k=3, columns=16, on=ON)
    made = [workload(torch, spec, rank, 7, place_on(torch, "cpu")) for rank in range(2)]
    for work in made:
        work.poison()
    for call in range(CALLS):
        for source, token, _, holder, row in entries(call, "dispatch_gemm"):
            work = made[holder]
            assert isinstance(work, RoutedWorkload)
            ends = work._table(call).sum(axis=0).cumsum()
            data, sent = work.calls[call], made[source].calls[call].inputs[0]
            data.out[row] = sent[token].float() @ data.inputs[1][int((ends <= row).sum())].float()
            data.inputs[-1].copy_(torch.from_numpy(work._table(call)))
        for work in made:
            work.check(call)
    data = made[0].calls[2]
    rows = data.expected.values.shape[0]
    kept = data.out[0].clone()
    data.out[0] *= 1.05
    with pytest.raises(WrongResult, match="call 2"):
        made[0].check(2)
    data.out[0] = kept
    data.out[rows] = 0
    with pytest.raises(WrongResult, match="behind the last one"):
        made[0].check(2)


def test_products_with_epilogues_are_right_and_wrong_ones_are_told() -> None:
    spec = routed("dispatch_gemm", 2, tokens=12, hidden=8, experts=4, top_k=3, columns=32, then=("bias", "swiglu"), on=ON)
    made = [workload(torch, spec, rank, 7, place_on(torch, "cpu")) for rank in range(2)]
    assert made[0].calls[1].inputs[3].shape == (2, 32)
    for call in range(CALLS):
        for work in made:
            work.poison()
        for source, token, _, holder, row in entries(call, "dispatch_gemm"):
            work = made[holder]
            assert isinstance(work, RoutedWorkload)
            expert = int((work._table(call).sum(axis=0).cumsum() <= row).sum())
            data, sent = work.calls[call], made[source].calls[call].inputs[0]
            total = sent[token].float() @ data.inputs[1][expert].float() + data.inputs[3][expert].float()
            gate, up = total.reshape(2, 2, 8).unbind(1)
            data.out[row] = (torch.nn.functional.silu(gate) * up).reshape(16)
            data.inputs[-1].copy_(torch.from_numpy(work._table(call)))
        for work in made:
            work.check(call)
    data = made[0].calls[2]
    data.out[int(data.out[:data.expected.values.shape[0], 0].abs().argmax()), 0] *= 1.05
    with pytest.raises(WrongResult, match="call 2"):
        made[0].check(2)


def scale_of(kind: str, data: CallData, expert: int, row: int) -> torch.Tensor:
    """What a product of a row by the matrix of an expert is multiplied by, for K of 128."""
    of_a, of_b = data.inputs[2].float(), data.inputs[3].float()
    return {"tensor": lambda: of_a[0] * of_b[expert], "rowcol": lambda: of_a[row, 0] * of_b[expert],
            "block": lambda: of_a[row, 0] * of_b[expert, 0].repeat_interleave(128)[:16]}[kind]()


@pytest.mark.parametrize("kind", ["tensor", "rowcol", "block"])
def test_scaled_bytes_are_right_and_wrong_ones_are_told(kind: str) -> None:
    sizes = {"tokens": 12, "hidden": 128, "experts": 4, "top_k": 3, "columns": 16, "dtype": "float8_e4m3fn", "order": "col"}
    spec = routed("dispatch_gemm", 2, scales=kind, on=ON, **sizes)  # type: ignore[arg-type]
    made = [workload(torch, spec, rank, 7, place_on(torch, "cpu")) for rank in range(2)]
    assert made[0].calls[1].inputs[1].stride() == (16 * 128, 1, 128)
    for call in range(CALLS):
        for work in made:
            work.poison()
        for source, token, _, holder, row in entries(call, "dispatch_gemm"):
            work = made[holder]
            assert isinstance(work, RoutedWorkload)
            expert = int((work._table(call).sum(axis=0).cumsum() <= row).sum())
            data, sent = work.calls[call], made[source].calls[call]
            product = sent.inputs[0][token].float() @ data.inputs[1][expert].float()
            given = replace(data, inputs=(*data.inputs[:2], sent.inputs[2], *data.inputs[3:]))
            data.out[row] = product * scale_of(kind, given, expert, token)
            data.inputs[-1].copy_(torch.from_numpy(work._table(call)))
        for work in made:
            work.check(call)
    made[0].calls[2].out[:made[0].calls[2].expected.values.shape[0]] *= 1.2
    with pytest.raises(WrongResult, match="call 2"):
        made[0].check(2)


@pytest.mark.parametrize("kind", ["tensor", "rowcol", "block"])
def test_scaled_bytes_that_come_back_are_right(kind: str) -> None:
    sizes = {"tokens": 12, "hidden": 128, "experts": 4, "top_k": 3, "columns": 16, "dtype": "float8_e4m3fn", "order": "col"}
    spec = routed("gemm_combine", 2, scales=kind, on=ON, **sizes)  # type: ignore[arg-type]
    made = [workload(torch, spec, rank, 7, place_on(torch, "cpu")) for rank in range(2)]
    for call in range(CALLS):
        sums = [torch.zeros(work.calls[call].out.shape) for work in made]
        for source, token, k, holder, row in entries(call, "gemm_combine"):
            held = made[holder]
            assert isinstance(held, RoutedWorkload)
            expert = int((held._table(call).sum(axis=0).cumsum() <= row).sum())
            data = held.calls[call]
            product = data.inputs[0][row].float() @ data.inputs[1][expert].float() * scale_of(kind, data, expert, row)
            sums[source][token] += made[source].calls[call].inputs[5][token, k] * product
        for work, total in zip(made, sums, strict=True):
            work.poison()
            work.calls[call].out.copy_(total)
            work.check(call)


def test_products_that_come_back_are_right_and_wrong_ones_are_told() -> None:
    spec = routed("gemm_combine", 2, tokens=12, hidden=8, experts=4, top_k=3, columns=16, on=ON)
    made = [workload(torch, spec, rank, 7, place_on(torch, "cpu")) for rank in range(2)]
    for call in range(CALLS):
        sums = [torch.zeros(work.calls[call].out.shape) for work in made]
        for source, token, k, holder, row in entries(call, "gemm_combine"):
            held = made[holder]
            assert isinstance(held, RoutedWorkload)
            expert = int((held._table(call).sum(axis=0).cumsum() <= row).sum())
            data = held.calls[call]
            product = data.inputs[0][row].float() @ data.inputs[1][expert].float()
            sums[source][token] += made[source].calls[call].inputs[3][token, k] * product
        for work, total in zip(made, sums, strict=True):
            work.poison()
            work.calls[call].out.copy_(total)
            work.check(call)
    data = made[1].calls[2]
    data.out[int(data.out[:, 0].abs().argmax()), 0] *= 1.05
    with pytest.raises(WrongResult, match="call 2"):
        made[1].check(2)
