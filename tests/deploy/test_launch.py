"""The path to the launch, on fake devices that run argument bytes: what arrives is what the program says."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from deploy.fake_device import Arguments
from deploy.fakes import Group, ag_gemm, all_gather, kinds, on_all_ranks, one_schedule

from tilescale.codegen.emit import emit
from tilescale.codegen.program import Slot
from tilescale.deploy.driver import DriverError, Matrix
from tilescale.deploy.launch import OperationFailed
from tilescale.errors import BundleError
from tilescale.schedules.schedule import Schedule

CALLS = 3


def _matrices(group, rank, symmetric):
    """Fresh operands of one call on one rank: address and tensor of each, integers that are exact in bfloat16."""
    spec, made = group.spec, {}
    for name, declared in (*zip("ab", spec.inputs, strict=False), ("out", spec.output)):
        shape = declared.local_shape(rank, spec.world)
        size = math.prod(shape) * declared.itemsize
        address = group.ranks[rank].operand(name) if name in symmetric else group.machine.allocate(size)
        strides = (shape[1], 1) if declared.order == "row" else (1, shape[0])
        tensor = group.machine.tensor(Matrix(address, *shape, strides, declared.dtype))
        tensor.copy_(torch.randint(-2, 3, shape) if name != "out" else torch.full(shape, 77.0))
        made[name] = (address, tensor)
    return made


def _expected(group, operands, rank):
    whole = torch.cat([one["a"][1] for one in operands]).float()
    if "b" not in operands[rank]:
        return whole
    return (whole @ operands[rank]["b"][1].float())


def _call(group, symmetric=()):
    operands = [_matrices(group, rank, symmetric) for rank in range(group.spec.world)]
    wanted = [_expected(group, operands, rank) for rank in range(group.spec.world)]
    for rank, one in enumerate(operands):
        group.ranks[rank]({name: address for name, (address, _) in one.items()}, stream=7)
    return [(one["out"][1], want) for one, want in zip(operands, wanted, strict=True)]


def _cases():
    for make in (ag_gemm, all_gather):
        for ranks in (2, 4):
            for inputs in ("ordinary", "symmetric"):
                spec = make(ranks, inputs=inputs)
                for schedule in kinds(spec):
                    if inputs == "symmetric" and schedule.direction == "push":
                        continue  # a push reads its own operand alone, wherever that lies
                    yield pytest.param(spec, schedule, id=f"{spec.op}-{ranks}-{inputs}-{schedule.label}".replace(" ", "_"))


@pytest.mark.parametrize(("spec", "schedule"), list(_cases()))
def test_every_kind_of_schedule_computes_from_its_argument_bytes(spec, schedule):
    group = Group(spec, schedule, seed=len(schedule.label))
    symmetric = [name for name in "ab"[: len(spec.inputs)] if group.ranks[0].operand(name) is not None]
    assert bool(symmetric) == (spec.placement == "symmetric" and schedule.direction == "pull")
    pending = []
    for _ in range(CALLS):  # all in flight at once, except where the operand has one place
        pending += _call(group, symmetric)
        if symmetric:
            group.machine.run()
    group.machine.run()
    for out, want in pending:
        assert torch.equal(out.float(), want.to(out.dtype).float())
    group.all(lambda operation: operation.check(7))
    assert {operation.calls for operation in group.ranks} == {CALLS}


def test_b6_a_schedule_of_smaller_tiles_gets_a_workspace_of_its_own_and_nothing_lies_behind_the_counters():
    """B6: M=2048 in chunks of 128 rows, then of 64 and twice the counters, in turn and in flight together."""
    spec = ag_gemm(2, rows=1024)
    machine, groups = None, []
    for chunk_rows in (128, 64):
        schedule = Schedule(overlap="fused", compute="generated", chunk_rows=chunk_rows, depth=2, num_comm_blocks=4,
                            block_m=64, block_n=128, block_k=64, num_stages=3, raster_group=8)
        groups.append(Group(spec, schedule, seed=chunk_rows, machine=machine))
        machine = groups[0].machine
    coarse, fine = (group.program.counters for group in groups)
    assert fine > coarse
    taken = []
    for group in groups:
        program = group.program
        behind = program.counters_offset + 4 * program.counters
        room = min(placed.offset for placed in program.placed) - behind
        assert room > 0
        for operation in group.ranks:
            memory = operation.workspace.memory
            taken.append((memory.own, memory.own + memory.size))
            assert memory.size >= program.workspace_bytes
            machine.at(memory.own + behind, room)[:] = b"\xc5" * room
    assert all(a[1] <= b[0] for a, b in pairwise(sorted(taken)))
    pending = [pair for _ in range(CALLS) for group in groups for pair in _call(group)]
    machine.run()
    for out, want in pending:
        assert torch.equal(out.float(), want.to(out.dtype).float())
    for group in groups:
        program = group.program
        behind = program.counters_offset + 4 * program.counters
        room = min(placed.offset for placed in program.placed) - behind
        for operation in group.ranks:
            assert bytes(machine.at(operation.workspace.memory.own + behind, room)) == b"\xc5" * room


@pytest.mark.parametrize("order", ["row", "col"])
@pytest.mark.parametrize("compute", ["generated", "library"])
def test_both_orders_of_b_and_a_wider_output(order, compute):
    spec = ag_gemm(2, n=96, order=order, out_dtype="float32")
    group = Group(spec, one_schedule(spec, overlap="chunked", transport="peer_copy", compute=compute))
    pending = _call(group)
    group.machine.run()
    for out, want in pending:
        assert out.dtype == torch.float32
        assert torch.equal(out, want)


def test_arguments_and_tables_are_those_of_the_program():
    spec = ag_gemm(4)
    group = Group(spec, one_schedule(spec, overlap="chunked", transport="tma", direction="pull", compute="generated"))
    _call(group)
    program, machine = group.program, group.machine
    for rank, driver in enumerate(group.drivers):
        operation = group.ranks[rank]
        launched = [call for call in driver.calls if call[1] == "launch"]
        kernels = [launch for launch in program.ranks[rank] if launch.kernel is not None]
        assert len(launched) == len(kernels)
        for (_, _, entry, grid, values), launch in zip(launched, kernels, strict=True):
            arguments = Arguments.unpack(values[0])
            assert entry == program.kernels[launch.kernel].entry
            assert (grid.blocks, grid.threads, grid.shared_bytes) == (launch.blocks, launch.threads, launch.shared_bytes)
            assert (arguments.rank, arguments.last) == (rank, launch.participants)
            assert (arguments.n, arguments.k) == (program.n, program.k)
            for slot, base, stride in zip(program.slots, arguments.base, arguments.stride, strict=False):
                placed = next((p for p in program.placed if p.buffer == slot.buffer), None)
                if placed is not None:
                    owner = group.ranks[rank if slot == Slot(slot.buffer, -1) else slot.rank]
                    assert machine.real(base) == owner.workspace.state + placed.offset
                    assert stride == placed.stride
            for table, address in ((launch.steps, arguments.steps), (launch.block_rows, arguments.blocks)):
                assert not table or machine.at(address, len(table) // 2).hex() == table
            for peer in range(program.world):
                owner = group.ranks[peer]
                assert machine.real(arguments.counters[peer]) == owner.workspace.state + program.counters_offset
            assert arguments.state == operation.workspace.state
            assert arguments.time_limit_ns == 60 * 10**9


def test_launches_keep_the_streams_and_the_order_of_the_program():
    spec = ag_gemm(4)
    group = Group(spec, one_schedule(spec, overlap="fused", transport="copy_engine", direction="pull", depth=2,
                                     compute="generated"))
    _call(group)
    driver, launches = group.drivers[1], group.program.ranks[1]
    streams, started, recorded = {}, [], {}
    waited: dict[object, set[object]] = {}
    for stream, kind, *rest in driver.calls:
        if kind in ("launch", "copy") and len(started) < len(launches):
            launch = launches[len(started)]
            assert streams.setdefault(launch.stream, stream) == stream
            assert kind == ("launch" if launch.kernel is not None else "copy")
            for name in launch.after:
                if next(x for x in launches if x.name == name).stream != launch.stream:
                    assert name in waited[stream]
            started.append(launch.name)
            waited[stream] = set()
        elif kind == "record":
            recorded[rest[0]] = started[-1] if started else "begin"
        elif kind == "wait" and rest[0] in recorded:
            waited.setdefault(stream, set()).add(recorded[rest[0]])
    assert started == [launch.name for launch in launches]
    assert streams[0] == 7
    assert len(set(streams.values())) == len(streams) == 3


def _with_loose_end(program):
    """The program with one more copy on another stream, which nothing follows."""
    def longer(launches):
        copy = next(x for x in launches if x.copy and program.slots[x.copy.target].buffer == "out")
        return (*launches, replace(copy, name="loose", stream=1, after=(launches[-1].name,)))

    return replace(program, ranks=tuple(longer(launches) for launches in program.ranks))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("change", [lambda program: program, _with_loose_end])
def test_the_call_begins_and_ends_on_the_callers_stream(change, seed):
    spec = all_gather(2)
    schedule = one_schedule(spec, overlap="chunked", transport="copy_engine", direction="pull")
    group = Group(spec, schedule, seed, program=change(emit(spec, schedule)))
    for driver in group.drivers:
        driver.enqueue(7, ("before",))
    _call(group)
    for driver in group.drivers:
        driver.enqueue(7, ("after",))
    group.machine.run()
    for rank in range(2):
        log = [entry[2:] for entry in group.machine.log if entry[0] == rank]
        inside = [i for i, what in enumerate(log) if what[0] in ("launch",) or (what[0] == "copy" and what[3] != 32)]
        assert log.index(("before",)) < min(inside)
        assert max(inside) < log.index(("after",))


def test_maps_are_made_once_an_address_and_follow_the_operands():
    spec = ag_gemm(2)
    group = Group(spec, one_schedule(spec, overlap="fused", transport="peer_copy", direction="push"))
    made = []
    for driver in group.drivers:
        encode = driver.encode_map
        driver.encode_map = lambda map_spec, address, encode=encode: made.append(address) or encode(map_spec, address)
    operands = [_matrices(group, rank, ()) for rank in range(2)]
    for _ in range(3):
        for rank, one in enumerate(operands):
            group.ranks[rank]({name: address for name, (address, _) in one.items()}, stream=7)
    assert sorted(made) == sorted(one[name][0] for one in operands for name in ("a", "b", "out"))
    group.machine.run()


def test_an_operation_of_two_streams_waits_for_its_last_call():
    spec = all_gather(2)
    group = Group(spec, one_schedule(spec, overlap="none", transport="peer_copy"))
    for stream in (7, 8):
        for rank in range(2):
            operands = {name: address for name, (address, _) in _matrices(group, rank, ()).items()}
            group.ranks[rank](operands, stream)
    calls = [(stream, kind) for stream, kind, *_ in group.drivers[0].calls]
    assert calls.index((8, "wait")) < calls.index((8, "launch"))
    group.machine.run()


# -- failures ----------------------------------------------------------------------------------------------------------


def _fail_a_wait(group, rank):
    operation = group.ranks[rank]
    state = bytearray(operation.workspace.read_state())
    state[8:32] = b"".join(value.to_bytes(4, "little") for value in (1, rank, 2, 5, 9, 4))
    group.drivers[rank].upload(operation.workspace.state, bytes(state))


def test_a_failed_wait_condemns_the_workspace_until_it_is_renewed():
    spec = all_gather(2)
    group = Group(spec, one_schedule(spec, overlap="none", transport="peer_copy", direction="pull"))
    _call(group)
    group.machine.run()
    _fail_a_wait(group, 1)
    group.ranks[0].check(7)
    with pytest.raises(OperationFailed, match=r"rank 1 step 2: counter 5 reached 4, wanted 9.*in launch.*renew") as caught:
        group.ranks[1].check(7)
    assert caught.value.failure.counter == 5
    assert group.ranks[1].condemned
    with pytest.raises(OperationFailed, match="counter 5"):
        group.ranks[1]({}, stream=7)
    group.all(lambda operation: operation.renew())
    pending = _call(group)
    group.machine.run()
    assert all(torch.equal(out.float(), want) for out, want in pending)


def test_a_failure_is_seen_by_the_next_call_without_a_check():
    spec = all_gather(2)
    group = Group(spec, one_schedule(spec, overlap="none", transport="peer_copy"))
    _call(group)
    group.machine.run()
    _fail_a_wait(group, 0)  # as if the next call had failed
    _call(group)
    group.machine.run()
    with pytest.raises(OperationFailed, match="rank 0 step 2"):
        group.ranks[0]({"a": 0, "out": 0}, stream=7)


def test_a_call_that_is_enqueued_in_part_condemns():
    spec = ag_gemm(2)
    group = Group(spec, one_schedule(spec, overlap="chunked", transport="peer_copy", compute="generated"))
    group.drivers[0].failing = "launch"
    operands = {name: address for name, (address, _) in _matrices(group, 0, ()).items()}
    with pytest.raises(DriverError, match="told to fail"):
        group.ranks[0](operands, stream=7)
    with pytest.raises(OperationFailed, match="enqueued whole"):
        group.ranks[0](operands, stream=7)


@pytest.mark.parametrize("call", ["allocate", "open_memory"])
def test_a_rank_that_cannot_prepare_fails_all(call):
    spec = all_gather(2)
    group = Group(spec, one_schedule(spec, overlap="none", transport="peer_copy"))
    group.all(lambda operation: operation.close())
    group.drivers[1].failing = call
    for rank in range(2):
        with pytest.raises(BundleError, match=f"rank 1: .*{call} was told to fail"):
            on_all_ranks(2, lambda r, rank=rank: group.ranks[r].renew() if r == rank else _swallow(group.ranks[r]))


def _swallow(operation):
    with pytest.raises(BundleError):
        operation.renew()


def test_a_missing_binary_is_named():
    spec = all_gather(2)
    group = Group(spec, one_schedule(spec, overlap="none", transport="peer_copy"))
    group.all(lambda operation: operation.close())
    for modules in group.modules:
        modules.close()
        modules._binaries.clear()
    with pytest.raises(BundleError, match=group.program.kernels[0].digest):
        group.all(lambda operation: operation.renew())


def test_close_gives_everything_back():
    spec = ag_gemm(2)
    group = Group(spec, one_schedule(spec, overlap="fused", transport="copy_engine", direction="pull"))
    before = set(group.machine.memory)
    group.all(lambda operation: operation.close())
    group.all(lambda operation: operation.close())
    for modules in group.modules:
        modules.close()
    for driver in group.drivers:
        assert not driver.streams
        assert not driver.events
        assert not driver.modules
        assert not driver.opened
    assert before
    assert not group.machine.memory
    with pytest.raises(BundleError, match="closed"):
        group.ranks[0]({}, stream=7)


def test_a_symmetric_operand_lies_where_peers_read_it():
    spec = all_gather(2, inputs="symmetric")
    group = Group(spec, one_schedule(spec, overlap="none", transport="peer_copy", direction="pull"))
    operands = {"a": group.machine.allocate(1 << 14), "out": group.machine.allocate(1 << 16)}
    with pytest.raises(BundleError, match="symmetric memory"):
        group.ranks[0](operands, stream=7)


# -- graphs (E5) -------------------------------------------------------------------------------------------------------


def test_a_capture_of_kernels_holds_any_number_of_calls():
    spec = ag_gemm(2)
    group = Group(spec, one_schedule(spec, overlap="fused", transport="peer_copy", direction="push"))
    driver, operation = group.drivers[0], group.ranks[0]
    assert not operation.alternates
    driver.captures.add(7)
    operands = {name: address for name, (address, _) in _matrices(group, 0, ()).items()}
    operation(operands, stream=7)
    assert [kind for _, kind, *_ in driver.calls] == ["launch"]  # no wait for, or mark of, what is outside the graph


def test_a_capture_that_alternates_is_refused_before_it_is_spoilt_and_recorded_in_pairs():
    spec = ag_gemm(2)
    group = Group(spec, one_schedule(spec, overlap="chunked", transport="copy_engine", direction="push"))
    driver, operation = group.drivers[0], group.ranks[0]
    assert operation.alternates
    operands = {name: address for name, (address, _) in _matrices(group, 0, ()).items()}
    driver.captures.add(7)
    with pytest.raises(BundleError, match="even number of calls"):
        operation(operands, stream=7)
    assert driver.calls == []
    with operation.recording():
        operation(operands, stream=7)
        first = [call[2] for call in driver.calls if call[1] == "copy"]
        operation(operands, stream=7)
    both = [call[2] for call in driver.calls if call[1] == "copy"]
    assert both[: len(first)] == first
    assert both[len(first) :] != first
    assert operation.calls == 0
    driver.captures.clear()
    with pytest.raises(BundleError, match="recorded"):
        operation(operands, stream=7)
    operation.forget_recordings()
    operation(operands, stream=7)
    with pytest.raises(BundleError, match=r"even number.*1"), operation.recording():
        operation(operands, stream=7)
