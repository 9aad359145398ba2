"""Emulation of a schedule: its emitted text, on a CPU, for all ranks and three consecutive calls with fresh inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tilescale.arguments import check_schedule, check_spec
from tilescale.arguments import shown as as_text
from tilescale.codegen.emit import emit
from tilescale.codegen.product import factors
from tilescale.codegen.program import COUNTER_BYTES, EVERY_RANK, STATE_BYTES, ProgramLaunch, TensorMapSpec
from tilescale.codegen.table import STEP, pack_arguments
from tilescale.errors import EmulationError, nearest
from tilescale.runtime.check import Array, first_wrong, from_bits, random_input, to_bits
from tilescale.runtime.conformance import deviations
from tilescale.runtime.emulator import (
    ADVERSARIES,
    STEP_LIMIT,
    Job,
    Machine,
    Memory,
    RunReport,
    build_candidate,
    run_isolated,
    tensor_map,
)
from tilescale.runtime.reference import NumpyArrays, Sums, add_up, aside, extras_of, finish, scaled_load
from tilescale.runtime.routed import POISON, Routed, routed
from tilescale.runtime.routing import TURNS, routing_of
from tilescale.runtime.scaled import Scaled, scaled
from tilescale.schedules.footprint import accesses
from tilescale.schedules.plan import Plan
from tilescale.schedules.ragged import ragged
from tilescale.schedules.schedule import Schedule
from tilescale.spec.declaration import Spec
from tilescale.spec.operand import NUMBERS, SCALES, Operand
from tilescale.spec.result import Deviation, Factor, Result, deviation, result_of, results_of
from tilescale.spec.tensor import ITEMSIZE
from tilescale.spec.views import ReplicateView

CALLS = 3
MOST_CALLS = 100  # each has inputs of its own
TIME_LIMIT_NS = 10**9
SHOWN = 5


@dataclass(frozen=True)
class Emulation:
    """`ok`: ended, in bounds, initialised, conforming to the plan, and right. `report` says what was run and found."""

    ok: bool
    report: str
    label: str
    adversary: str
    seed: int
    steps: int


@dataclass(frozen=True)
class Wanted:
    """The output `name` of a rank in fp64, and how far its elements may be off; None: as it is, rounded once.
    `beside`: what a call returns besides. `exact`: the bytes of outputs by buffer, where these are known. `partly`: what
    lies behind `value` must be as it was."""

    value: Array
    allowed: Array | None
    name: str = "out"
    beside: tuple[Wanted, ...] = ()
    exact: tuple[tuple[str, bytes], ...] = ()
    partly: bool = False


@dataclass(frozen=True)
class Conditions:
    """What else a run may differ in. `calls`: consecutive calls, the last with random numbers. `first_call`: the epoch of
    the workspace when the run begins, its counters where that many calls leave them (they wrap). `late_rank`: a rank that
    runs only when no other can, -1 for none.
    """

    calls: int = CALLS
    first_call: int = 0
    late_rank: int = -1


USUAL = Conditions()


def check_run(spec: Spec, seed: object, adversary: object, conditions: Conditions) -> None:
    """EmulationError for what no run of `spec` can have."""
    if adversary is not None and adversary not in ADVERSARIES:
        raise EmulationError("an adversary is known", repr(adversary), nearest(str(adversary), ADVERSARIES))
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise EmulationError("seed is a non-negative integer", as_text(seed), "for example seed=0")
    ranges = {
        "calls": (1, MOST_CALLS, "for example calls=3"),
        "first_call": (0, 2**32 - 1, "epochs wrap: 4294967295 is the last"),
        "late_rank": (-1, spec.world - 1, f"a rank of {spec.label}, or -1 for none"),
    }
    for name, (least, most, remedy) in ranges.items():
        value = getattr(conditions, name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise EmulationError(f"{name} of a run is an integer from {least} to {most}", repr(value)[:60], remedy)


def emulate(spec: Spec, schedule: Schedule, seed: int = 0, adversary: str | None = None,
            include_dirs: Sequence[Path] = (), conditions: Conditions = USUAL) -> Emulation:
    """Run the emitted text of `schedule` on the CPU, at a small size of the same binaries where the spec is large.

    Two calls hold small integers and must be exact; the third holds random numbers and must be within one rounding and
    the fp32 accumulation bound (spec/result.py has the rule). `adversary`: "lazy", "random" or "eager"; by default the
    seed chooses in turn. `include_dirs` are searched for the device library before its own folder.
    Raises MissingDependency without a C++ compiler, EmulationError where the emulator itself cannot go on, SpecError or
    ScheduleError for an argument that is no spec or no schedule.
    """
    check_spec(spec)
    check_schedule(schedule)
    check_run(spec, seed, adversary, conditions)
    chosen = adversary or ADVERSARIES[seed % len(ADVERSARIES)]
    small = scaled(spec, schedule)
    setup = Run(small, seed, chosen, include_dirs, conditions)
    report = run_isolated([setup.job])[0]
    found = [report.error, report.deadlock] if not report.ok else list(setup.judge(report))
    lines = [line for line in found if line]
    where = "" if conditions == USUAL else f", {conditions}"
    what = f"{small.spec.label}, schedule {small.schedule.label}, adversary {chosen}, seed {seed}{where}"
    if small.shrunk:
        what += f" (in place of {spec.label}: same binaries, smaller tables)"
    shown = lines[:SHOWN] + ([f"... and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else [])
    verdict = "right, conforming to the plan" if not lines else "\n".join(shown)
    return Emulation(not lines, f"{what}: {verdict}", small.spec.label, chosen, seed, report.steps)


def prepare(spec: Spec, schedule: Schedule, seed: int, adversary: str, include_dirs: Sequence[Path] = (),
            conditions: Conditions = USUAL) -> Run:
    """The run that `emulate` makes, not yet run: several `job`s share one process in `run_isolated`."""
    return Run(scaled(spec, schedule), seed, adversary, include_dirs, conditions)


def steps_for(plan: Plan, calls: int) -> int:
    """After how many steps of the emulator a run is one that never ends: several times what a run takes that touches as
    many bytes (sums of 8 ranks, with an epilogue of whole rows, take 0.2 steps a byte), and whose threads meet as often (a
    ring of 8 ranks takes two steps for each thread that begins a step of the plan)."""
    touched = sum(region.size for rank in range(plan.world) for *_, step in plan.steps_of(rank)
                  for region, _ in accesses(step))
    begun = sum(role.blocks * launch.threads * len(role.steps)
                for launches in plan.ranks for launch in launches for role in launch.roles)
    return calls * max(STEP_LIMIT, touched + 16 * begun)


class Run:
    """Memories and graph of one run, and what its outputs must be."""

    def __init__(self, small: Scaled, seed: int, adversary: str, include_dirs: Sequence[Path],
                 conditions: Conditions = USUAL) -> None:
        self.conditions = conditions
        self.spec, self.plan = small.spec, small.plan
        self.program = emit(small.spec, small.schedule, small.plan)
        self.world = small.spec.world
        self.machine = Machine(seed, adversary, sm_share=small.plan.sm_share, late_rank=conditions.late_rank,
                               step_limit=steps_for(small.plan, conditions.calls))
        self.rng, self.turn = np.random.default_rng(seed), seed
        self.libraries = [build_candidate(kernel.text, include_dirs) for kernel in self.program.kernels]
        self.memory = [self._memories(rank) for rank in range(self.world)]
        self.reads: list[tuple[int, int, int, Wanted]] = []
        self.beside: dict[int, dict[str, int]] = {}  # other outputs that were read with one
        self.ended: dict[int, list[int]] = {}
        self.multicast: dict[str, int] = {}
        for call in range(conditions.calls):
            self._call(call)
        self.job: Job = self.machine.job()

    # -- memories ------------------------------------------------------------------------------------------------------
    def _memories(self, rank: int) -> dict[str, Memory]:
        strides = {p.buffer: p.stride for p in self.program.placed}
        found: dict[str, Memory] = {}
        for buffer in self.plan.buffers:
            size = strides.get(buffer.name, 0) * (buffer.versions - 1) + buffer.memory
            found[buffer.name] = self.machine.register_memory(  # of no rows: not used
                rank, buffer.name, max(1, size), data=bytes(size) if buffer.zeroed else b"", initialised=buffer.zeroed)
        epoch = self.conditions.first_call
        counts = b"".join(
            (epoch * total % 2**32).to_bytes(COUNTER_BYTES, "little") for total in self.plan.counter_totals(rank))
        found[".counters"] = self.machine.register_memory(rank, "counters", len(counts), kind="counters", data=counts)
        state = (epoch % 2**32).to_bytes(4, "little").ljust(STATE_BYTES, b"\0")
        found[".state"] = self.machine.register_memory(rank, "state", len(state), kind="control", data=state)
        for launch in self.program.ranks[rank]:
            if launch.kernel is not None:
                for what, text in (("steps", launch.steps or "00" * STEP.size), ("blocks", launch.block_rows)):
                    data = bytes.fromhex(text)
                    found[f".{what}.{launch.name}"] = self.machine.register_memory(
                        rank, f"{what} of {launch.name}", len(data), kind="control", data=data)
        return found

    def _address(self, slot: int, rank: int) -> int:
        entry = self.program.slots[slot]
        if entry.rank == EVERY_RANK:
            if entry.buffer not in self.multicast:
                members = [memory[entry.buffer] for memory in self.memory]
                self.multicast[entry.buffer] = self.machine.register_multicast(members)
            return self.multicast[entry.buffer]
        return self.memory[rank if entry.rank < 0 else entry.rank][entry.buffer].address

    def _arguments(self, rank: int, launch: ProgramLaunch) -> bytes:
        strides = {p.buffer: p.stride for p in self.program.placed}
        slots = self.program.slots
        return pack_arguments(
            [self._address(i, rank) for i in range(len(slots))], [strides.get(s.buffer, 0) for s in slots],
            [self.memory[peer][".counters"].address for peer in range(self.world)],
            state=self.memory[rank][".state"].address, steps=self.memory[rank][f".steps.{launch.name}"].address,
            blocks=self.memory[rank][f".blocks.{launch.name}"].address, time_limit_ns=TIME_LIMIT_NS, rank=rank,
            last=launch.participants, n=self.program.n, k=self.program.k,
            link_fs_per_byte=self.program.link_fs_per_byte, first=launch.first_rows)

    def _maps(self, rank: int) -> bytes:
        return b"".join(self._map(rank, m) for m in self.program.maps)

    def _map(self, rank: int, m: TensorMapSpec) -> bytes:
        stride = next((p.stride for p in self.program.placed if p.buffer == m.buffer), 0)
        base = self.memory[rank][m.buffer].address + m.version * stride
        return tensor_map(base, m.sizes, m.strides_bytes, m.box, ITEMSIZE[m.element])

    # -- graph ---------------------------------------------------------------------------------------------------------
    def _call(self, call: int) -> None:
        exact = call < self.conditions.calls - 1
        inputs, wanted = self._values(exact)
        for rank in range(self.world):
            after = self.ended.get(rank, [])
            for name, data in inputs[rank].items():
                after = [self.machine.add_caller_write(rank, self.memory[rank][name].address, data, after, call)]
            outputs = [self.memory[rank][b.name] for b in self.plan.buffers if b.role == "output"]
            for out in outputs:
                poison = b"\xff" * out.size
                after = [self.machine.add_caller_write(rank, out.address, poison, after, call, "caller poisons")]
            ends = self._launches(rank, call, after[0])
            nodes = {out.name: self.machine.add_caller_read(rank, out.address, out.size, ends, call) for out in outputs}
            node = nodes["out"]
            self.beside[node] = nodes
            self.reads += [(nodes[each.name], rank, call, each) for each in (wanted[rank], *wanted[rank].beside)]
            # The caller may overwrite its inputs at once, whatever its peers are still doing (0xFF: not a number).
            self.ended[rank] = [*nodes.values()] + [
                self.machine.add_caller_write(rank, self.memory[rank][name].address, b"\xff" * len(data), ends, call,
                                              "caller spoils") for name, data in inputs[rank].items()]

    def _launches(self, rank: int, call: int, start: int) -> list[int]:
        nodes: dict[str, int] = {}
        tails: dict[int, int] = {}
        for launch in self.program.ranks[rank]:
            after = [tails.get(launch.stream, start), *(nodes[name] for name in launch.after)]
            node = self._launch(rank, launch, call, after)
            nodes[launch.name] = tails[launch.stream] = node
        return sorted(set(tails.values()))

    def _launch(self, rank: int, launch: ProgramLaunch, call: int, after: Sequence[int]) -> int:
        machine, parity = self.machine, (self.conditions.first_call + call) % 2
        strides = {p.buffer: p.stride for p in self.program.placed}
        if launch.copy is not None:
            copy = launch.copy
            source, target = (self._address(slot, rank) + strides.get(self.program.slots[slot].buffer, 0) * parity + offset
                              for slot, offset in ((copy.source, copy.source_offset), (copy.target, copy.target_offset)))
            return machine.add_copy(rank, launch.name, target, source, copy.size, launch.first_step, after, call)
        if launch.gemm is not None:
            gemm = launch.gemm
            a, b, out = factors(self.spec, gemm)
            at = [self.memory[rank][f.buffer].address + strides.get(f.buffer, 0) * parity + f.offset for f in (a, b, out)]
            return machine.add_library_gemm(
                rank, launch.name, at[0], at[1], at[2], gemm.m, gemm.n, gemm.k, in_format=b.dtype, out_format=out.dtype,
                b_transposed=b.turned, a_transposed=a.turned, step=launch.first_step, after=after, call=call)
        if launch.kernel is None:
            raise EmulationError("a launch is a kernel, a copy or a product", launch.name)
        kernel = self.program.kernels[launch.kernel]
        return machine.add_kernel(
            rank, launch.name, self.libraries[launch.kernel], kernel.entry, self._arguments(rank, launch),
            self._maps(rank), launch.blocks, launch.threads, launch.shared_bytes, after, call, cluster=launch.cluster)

    # -- values --------------------------------------------------------------------------------------------------------
    def _values(self, exact: bool) -> tuple[list[dict[str, bytes]], list[Wanted]]:
        """Input bytes of every rank by buffer, and its output."""
        if ragged(self.spec):
            return self._routed(exact)
        named = self.spec.operands
        operands = [self._drawn(operand, exact) for operand in named]
        inputs = [{operand.name: ranks[rank][1] for operand, ranks in zip(named, operands, strict=True) if ranks[rank][1]}
                  for rank in range(self.world)]

        def loaded(factor: Factor) -> Array:
            return np.concatenate([operands[factor.operand][rank][0] for rank in factor.ranks], axis=factor.dim)

        load = scaled_load(self.spec, loaded, NumpyArrays())

        results = [result_of(self.spec, rank) for rank in range(self.world)]
        ranks = {result: rank for rank, result in reversed(list(enumerate(results)))}  # one of those that have it
        sums = {result: self._sums(result, load, exact) for result in ranks}
        same = all(extra.tensor.shard_dim is None for extra in self.spec.extras)
        known = {result: self._wanted(rank, *sums[result], load) for result, rank in ranks.items()} if same else {}
        wanted = [known[result] if same else self._wanted(rank, *sums[result], load) for rank, result in enumerate(results)]
        return inputs, [replace(found, beside=(*self._beside(rank, loaded), *found.beside))
                        for rank, found in enumerate(wanted)]

    def _beside(self, rank: int, load: Callable[[Factor], Array]) -> tuple[Wanted, ...]:
        """Outputs of elements that only move, as they are: without scales."""
        return tuple(Wanted(add_up(result, load, NumpyArrays(), magnitude=False, spread=False).value, None, name)
                     for (name, _), result in zip(self.spec.outputs[1:], results_of(self.spec, rank)[1:], strict=True)
                     if result.only_moves)

    def _routed(self, exact: bool) -> tuple[list[dict[str, bytes]], list[Wanted]]:
        """The same of an operation that goes by indices, which are of another kind in every call."""
        turn, self.turn = TURNS[self.turn % len(TURNS)], self.turn + 1
        made = routed(self.spec, routing_of(self.spec, self.rng, turn), self.rng, exact)
        return [{name: data for name, data in each.items() if data} for each in made.inputs], self._wanted_of(made)

    @staticmethod
    def _wanted_of(made: Routed) -> list[Wanted]:
        if made.value:
            return [Wanted(v, a, exact=tuple(each.items()), partly=made.partly)
                    for v, a, each in zip(made.value, made.allowed, made.exact, strict=True)]
        return [Wanted(np.zeros(0), None, exact=tuple(each.items())) for each in made.exact]

    def _sums(self, result: Result, load: Callable[[Factor], Array], exact: bool) -> tuple[Sums, Deviation]:
        allowed = deviation(self.spec, result, exact)
        return add_up(result, load, NumpyArrays(), magnitude=not allowed.exact, spread=not allowed.exact), allowed

    def _wanted(self, rank: int, sums: Sums, allowed: Deviation, load: Callable[[Factor], Array]) -> Wanted:
        """What epilogues make of a sum, and what they hand out beside it."""
        arrays = NumpyArrays()
        given = (self.spec, sums, allowed, extras_of(self.spec, rank, load, arrays), arrays)
        found, others = finish(*given), zip(self.spec.aside, aside(*given), strict=True)
        return Wanted(found.value, found.room, beside=tuple(Wanted(o.value, o.room, each.name) for each, o in others))

    def _drawn(self, operand: Operand, exact: bool) -> list[tuple[Array, bytes]]:
        """An operand of every rank and its memory: of an extra one that all hold, the same."""
        ranks = range(self.world)
        if operand in self.spec.extras and isinstance(operand.tensor.view, ReplicateView):
            return [self._draw(operand, 0, exact)] * self.world
        return [self._draw(operand, rank, exact) for rank in ranks]

    def _draw(self, operand: Operand, rank: int, exact: bool) -> tuple[Array, bytes]:
        """A local operand and its memory."""
        tensor = operand.tensor
        shape, by_rows = tensor.local_shape(rank, self.world), tensor.order == "row"
        drawn = random_input(self.rng, shape if by_rows else shape[::-1], exact)
        if operand.values == SCALES:
            drawn = np.where(drawn > 0, 2.0, np.where(drawn < 0, 0.5, 1.0)) if exact else np.abs(drawn) / 2 + 0.25
        elif operand.values != NUMBERS:
            drawn = np.abs(drawn) + 1
        bits = to_bits(drawn, tensor.dtype).tobytes()
        values = from_bits(bits, tensor.dtype).reshape(drawn.shape)
        return values if by_rows else values.T, bits

    # -- verdict -------------------------------------------------------------------------------------------------------
    def judge(self, report: RunReport) -> list[str]:
        """Everything wrong with a run that ended."""
        lines = list(deviations(self.plan, self.program, report, self.conditions.calls, self.conditions.first_call))
        outputs = dict(self.spec.outputs)
        for node, rank, call, wanted in self.reads:
            for name, data in wanted.exact:
                seen = report.seen[self.beside[node][name]]
                if seen != data:
                    at = next(i for i, (x, y) in enumerate(zip(seen, data, strict=True)) if x != y)
                    lines.append(f"call {call} rank {rank}: byte {at} of {name} is wrong")
            shape, output = wanted.value.shape, outputs[wanted.name]
            end = wanted.value.size * output.itemsize
            found = from_bits(report.seen[node][:end], output.dtype).reshape(shape)
            if wanted.partly and report.seen[node][end:].strip(bytes([POISON])):
                lines.append(f"call {call} rank {rank}: {wanted.name} is written behind byte {end}, its last one")
            value, allowed = wanted.value, wanted.allowed
            if allowed is None:
                value = from_bits(to_bits(value, output.dtype).tobytes(), output.dtype).reshape(shape)
                allowed = np.zeros_like(value)
            at = first_wrong(found, value, allowed)
            if at >= 0:
                where = tuple(int(i) for i in np.unravel_index(at, shape))
                element = f"{wanted.name}{list(where)}"
                lines.append(f"call {call} rank {rank}: {element} is {found[where]:g}, wanted {value[where]:g}")
        return lines
