"""The agents of a plan: sequential programs of counter operations, unrolled over consecutive calls.

The roles of one stream that stand at the same place in their launches form one agent, because launches of a stream
follow each other; the caller of each rank is an agent too. An agent's program holds only what orders things: adding to
a counter and waiting for one. What a step reads or writes hangs between two operations, at a *position* (the number
of operations before it).

The end of a launch is a counter that each block of it adds one to, the start of a call one that the caller adds to.
They are numbered after the counters of the plan.

A role of n blocks is one agent as long as nobody stops one of its blocks. The blocks run the same program, so in a
maximal run (nobody stopped) they all end at the same operation, and letting them move together changes nothing. When
one block is stopped, the other n - 1 still move together, for the same reason. So every operation carries its number
of blocks, and `order.py` splits just the agent it stops into one block and the rest. That is exact for any counter
values; no rule about which counters a gang may signal is needed.

Blocks that exchange packets wait each for their own share, so there every block is an agent, with its part of the steps.
What it sends adds to a counter of the bytes that it fills, what it awaits waits for one: bytes that are awaited otherwise
than they were filled are never there.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tilescale.schedules.footprint import counter_totals
from tilescale.schedules.packets import Key, awaited, buffers_of, exchanges_packets, key_of, of_block, sent
from tilescale.schedules.plan import (
    Clear,
    Contract,
    Copy,
    Gemm,
    Launch,
    Pieces,
    Plan,
    Ragged,
    Reduce,
    Region,
    Role,
    Signal,
    Step,
    Sum,
    Wait,
)
from tilescale.schedules.story import Place

CALLS = 3
CALLER = "caller"
ALL = -1  # the blocks of a role that are one agent

# counter, amount (added by each block, or waited for within a call), blocks (0: a wait)
Operation = tuple[int, int, int]


@dataclass(frozen=True)
class Work:
    """A step that touches memory, at a position within one call. `blocks` share it."""

    position: int
    number: int
    step: Copy | Reduce | Clear | Gemm | Sum | Contract | Ragged | Pieces
    launch: str
    role: str
    blocks: int


@dataclass
class Agent:
    """One program. `operations` and `work` are those of one call; `sources` names the step of each operation."""

    rank: int
    label: str
    operations: list[Operation] = field(default_factory=list)
    sources: list[tuple[str, str, int]] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)
    split: bool = False

    def add(self, counter: int, amount: int, blocks: int, source: tuple[str, str, int]) -> None:
        self.operations.append((counter, amount, blocks))
        self.sources.append(source)


class Model:
    """All agents of a plan over `calls` calls.

    `agents` are sorted by rank, the caller of a rank first; `base[a]` is the first global position of agent a (it has
    one more position than operations); `programs[a]` its unrolled operations with absolute waits.
    """

    def __init__(self, plan: Plan, calls: int = CALLS) -> None:
        self.plan = plan
        self.calls = calls
        self.agents: list[Agent] = []
        self.totals: list[int] = [total for totals in counter_totals(plan) for total in totals]
        self.names: list[str] = []
        self.packets = buffers_of(plan)
        self.whole = frozenset(extra.buffer for extra in plan.goal.extras if not extra.row_bytes)
        self._filled: dict[Key, int] = {}
        for rank in range(plan.world):
            _RankBuilder(self, rank).build()
        self.programs = [self._unroll(agent) for agent in self.agents]
        self.base: list[int] = []
        self.positions = 0
        for program in self.programs:
            self.base.append(self.positions)
            self.positions += len(program) + 1

    def counter(self, name: str) -> int:
        """A new counter of the model, beyond those of the plan."""
        self.totals.append(0)
        self.names.append(name)
        return len(self.totals) - 1

    def filled(self, region: Region) -> int:
        """The counter of packets: how often a block has filled just these bytes."""
        key = key_of(region)
        if key not in self._filled:
            last = region.offset + region.size
            self._filled[key] = self.counter(f"packets {region.buffer}[{region.offset}:{last}] of rank {region.rank}")
        return self._filled[key]

    def told(self, counter: int) -> bool:
        """Whether ranks tell each other by it: a counter of the plan, or of packets."""
        return counter < self.plan.world * self.plan.counters or counter in self._filled.values()

    def counter_name(self, counter: int) -> str:
        own = self.plan.world * self.plan.counters
        if counter >= own:
            return self.names[counter - own]
        return f"counter {counter % self.plan.counters} of rank {counter // self.plan.counters}"

    def _unroll(self, agent: Agent) -> list[Operation]:
        program: list[Operation] = []
        for call in range(self.calls):
            program += [op if op[2] else (op[0], op[1] + call * self.totals[op[0]], 0) for op in agent.operations]
        return program

    def place(self, agent: int, operation: int) -> Place:
        """The place of an operation of the unrolled program of `agent`."""
        a = self.agents[agent]
        call, index = divmod(operation, len(a.operations))
        launch, role, number = a.sources[index]
        counter, amount, blocks = a.operations[index]
        verb = f"adds {amount * blocks} to" if blocks else f"waits for {self.programs[agent][operation][1]} on"
        return Place(a.rank, launch, role, number, call, f"{verb} {self.counter_name(counter)}")


class _RankBuilder:
    """Builds the agents of one rank."""

    def __init__(self, model: Model, rank: int) -> None:
        self.model, self.plan, self.rank = model, model.plan, rank
        self.launches = model.plan.ranks[rank]
        # By stream, place in the launch, and block, where these are agents of their own.
        self.roles: dict[tuple[int, int, int], Agent] = {}
        self.done: dict[str, int] = {}
        self.last: dict[int, Launch] = {launch.stream: launch for launch in self.launches}
        self.named = {name for launch in self.launches for name in launch.after}
        self.shared: set[int] = set()  # streams of several blocks or roles

    def build(self) -> None:
        model, rank = self.model, self.rank
        caller = Agent(rank, CALLER)
        self.start = model.counter(f"the start of a call of rank {rank}")
        model.totals[self.start] = 1
        caller.add(self.start, 1, 1, (CALLER, "", -1))
        self._make_agents()
        previous: dict[int, Launch] = {}
        number = 0
        for launch in self.launches:
            self.done[launch.name] = model.counter(f"the end of launch {launch.name} of rank {rank}")
            model.totals[self.done[launch.name]] = sum(role.blocks for role in launch.roles)
            for index, role in enumerate(launch.roles):
                self._add_role(launch, index, previous.get(launch.stream), number)
                number += len(role.steps)
            previous[launch.stream] = launch
        for _, launch in sorted(self.last.items()):
            done = self.done[launch.name]
            caller.add(done, model.totals[done], 0, (CALLER, "", -1))
        model.agents.append(caller)
        model.agents += [agent for _, agent in sorted(self.roles.items())]

    def _make_agents(self) -> None:
        for launch in self.launches:
            for index, role in enumerate(launch.roles):
                apart = exchanges_packets(role)
                for block in range(role.blocks) if apart else (ALL,):
                    label = f"stream {launch.stream} role {index}" + (f" block {block}" if apart else "")
                    agent = self.roles.setdefault((launch.stream, index, block), Agent(self.rank, label))
                    agent.split = agent.split or (role.blocks > 1 and not apart)
                if index or role.blocks > 1:
                    self.shared.add(launch.stream)

    def _add_role(self, launch: Launch, index: int, previous: Launch | None, number: int) -> None:
        role = launch.roles[index]
        if not exchanges_packets(role):
            steps = list(enumerate(role.steps, number))
            self._add_blocks(launch, role, self.roles[launch.stream, index, ALL], previous, steps)
            return
        whole = self.model.whole
        for block in range(role.blocks):
            parts = [(at, of_block(step, block, role.blocks, whole)) for at, step in enumerate(role.steps, number)]
            self._add_blocks(launch, replace(role, blocks=1), self.roles[launch.stream, index, block], previous,
                             [(at, step) for at, step in parts if step is not None])

    def _add_blocks(self, launch: Launch, role: Role, agent: Agent, previous: Launch | None,
                    steps: list[tuple[int, Step]]) -> None:
        """The steps, with their numbers, of all blocks of a role, or of one."""
        model = self.model
        begin, end = (launch.name, role.name, -1), (launch.name, role.name, -1)
        if previous is None:
            agent.add(self.start, 1, 0, begin)
        elif self._observed(previous):
            agent.add(self.done[previous.name], model.totals[self.done[previous.name]], 0, begin)
        for name in launch.after:
            agent.add(self.done[name], model.totals[self.done[name]], 0, begin)
        for number, step in steps:
            source = (launch.name, role.name, number)
            if isinstance(step, Signal):
                agent.add(step.rank * self.plan.counters + step.counter, step.value, role.blocks, source)
            elif isinstance(step, Wait):
                agent.add(self.rank * self.plan.counters + step.counter, step.value, 0, source)
            else:
                for region in awaited(step, model.packets):
                    agent.add(model.filled(region), 1, 0, source)
                agent.work.append(Work(len(agent.operations), number, step, launch.name, role.name, role.blocks))
                for region in sent(step):
                    agent.add(model.filled(region), 1, role.blocks, source)
                    model.totals[model.filled(region)] += role.blocks
        if self._observed(launch):
            agent.add(self.done[launch.name], 1, role.blocks, end)

    def _observed(self, launch: Launch) -> bool:
        """Whether the end of a launch must be a counter: not when only the next step of the same agent needs it."""
        return launch.stream in self.shared or launch.name in self.named or self.last[launch.stream] is launch
