"""Runs of the agents: what is reached, and what must come before what.

Counters only grow, so an operation that can run stays able to run, and the set of operations that can ever run does
not depend on the order: ONE maximal run decides deadlock. For the same reason, x must happen before y exactly when y
is not reached by a maximal run in which x's block is stopped just before x. Stopping a block at each of its positions
in turn goes on from the state before, so one pass over the model answers for all positions of an agent: for every
position of every other agent, how many operations the stopped block must have done for it to be reached.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tilescale.schedules.agents import Model, Operation

Program = list[Operation]


@dataclass
class Run:
    """A maximal run. `pcs`: operations done by each agent; `counts`: final counters; `segments`: in the order of the
    run, (agent, first, last): the agent did operations first to last - 1 without interruption."""

    pcs: list[int]
    counts: list[int]
    segments: list[tuple[int, int, int]] = field(default_factory=list)


class _Machine:
    """Agents with program counters, counters, and who waits for which."""

    def __init__(self, programs: list[Program], counters: int) -> None:
        self.programs = programs
        self.pcs = [0] * len(programs)
        self.counts = [0] * counters
        self.waiters: list[list[int]] = [[] for _ in range(counters)]

    def drain(self, ready: list[int]) -> list[tuple[int, int, int]]:
        """Run the agents of `ready`, and all they wake, as far as they go; what each did, in order."""
        pcs, counts, waiters = self.pcs, self.counts, self.waiters
        segments = []
        while ready:
            agent = ready.pop()
            program, first = self.programs[agent], pcs[agent]
            index, end = first, len(program)
            while index < end:
                counter, amount, blocks = program[index]
                if blocks:
                    counts[counter] += amount * blocks
                    if waiters[counter]:
                        self.wake(counter, ready)
                elif counts[counter] < amount:
                    waiters[counter].append(agent)
                    break
                index += 1
            pcs[agent] = index
            segments.append((agent, first, index))
        return segments

    def wake(self, counter: int, ready: list[int]) -> None:
        """Move the agents whose wait on `counter` is now met to `ready`."""
        found, keep = self.counts[counter], []
        for agent in self.waiters[counter]:
            if self.programs[agent][self.pcs[agent]][1] <= found:
                ready.append(agent)
            else:
                keep.append(agent)
        self.waiters[counter] = keep


def maximal(model: Model) -> Run:
    """The maximal run with nobody stopped."""
    machine = _Machine(model.programs, len(model.totals))
    segments = machine.drain(list(range(len(model.programs) - 1, -1, -1)))
    return Run(machine.pcs, machine.counts, segments)


def stopped(model: Model, agent: int, operations: int) -> Run:
    """The maximal run with one block of `agent` stopped after its first `operations` operations."""
    machine, block = _split(model, agent)
    segments = machine.drain(list(range(len(machine.programs) - 1, -1, -1)))
    for index in range(operations):
        segments.append((agent, index, index + 1))
        segments += machine.drain(_advance(machine, block[index]))
    return Run(machine.pcs, machine.counts, segments)


def needs(model: Model, agent: int) -> npt.NDArray[np.int32]:
    """For each global position, how many operations a block of `agent` must do before it is reached.

    The positions of `agent` itself are those of its other blocks (zero where there are none). Requires a model without
    deadlock.
    """
    machine, block = _split(model, agent)
    need: list[int] = [0] * model.positions
    base = model.base
    machine.drain(list(range(len(machine.programs) - 1, -1, -1)))
    for done, operation in enumerate(block, start=1):
        for other, first, last in machine.drain(_advance(machine, operation)):
            begin = base[other] + first + 1
            need[begin : base[other] + last + 1] = [done] * (last - first)
    return np.array(need, dtype=np.int32)


def _split(model: Model, agent: int) -> tuple[_Machine, Program]:
    """The model without one block of `agent`, and the program of that block."""
    program = model.programs[agent]
    block = [(counter, amount, 1 if blocks else 0) for counter, amount, blocks in program]
    programs = list(model.programs)
    programs[agent] = _rest(program) if model.agents[agent].split else []
    return _Machine(programs, len(model.totals)), block


def _rest(program: Program) -> Program:
    # An operation of one block is the stopped block's own: the rest goes past it without adding anything.
    return [
        (counter, amount * (blocks - 1), 1) if blocks else (counter, amount, 0) for counter, amount, blocks in program
    ]


def _advance(machine: _Machine, operation: Operation) -> list[int]:
    counter, amount, blocks = operation
    ready: list[int] = []
    if blocks:
        machine.counts[counter] += amount
        if machine.waiters[counter]:
            machine.wake(counter, ready)
    return ready
