"""Following the data of a plan along one run: what is common to all ways of saying what bytes hold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from tilescale.schedules.agents import CALLER, Model, Work
from tilescale.schedules.order import Run
from tilescale.schedules.story import Counterexample


class Following(ABC):
    """Takes the steps and the callers of a plan in the order in which `run` comes to them."""

    def __init__(self, model: Model, run: Run) -> None:
        self.model, self.run, self.plan, self.goal = model, run, model.plan, model.plan.goal
        self.versions = {b.name: b.versions for b in self.plan.buffers}
        self.work: list[dict[int, list[Work]]] = [{} for _ in model.agents]
        for table, agent in zip(self.work, model.agents, strict=True):
            for work in agent.work:
                table.setdefault(work.position, []).append(work)

    def check(self) -> Counterexample | None:
        """The first step that reads what it must not, or output that holds what it must not."""
        for agent, position in visits(self.model, self.run):
            program = self.model.agents[agent]
            call, relative = divmod(position, max(1, len(program.operations)))
            problem = None
            if program.label == CALLER:
                problem = self._caller(program.rank, call) if relative == 0 else None
            else:
                for work in self.work[agent].get(relative, ()):
                    problem = problem or self._step(program.rank, work, call)
            if problem is not None:
                return problem
        return None

    @abstractmethod
    def _caller(self, rank: int, call: int) -> Counterexample | None:
        """The caller of a rank looks at the outputs of the call before, then writes the inputs of `call`."""

    @abstractmethod
    def _step(self, rank: int, work: Work, call: int) -> Counterexample | None:
        """A rank carries out a step."""


def visits(model: Model, run: Run) -> Iterator[tuple[int, int]]:
    """(agent, position) in the order in which the run comes to them."""
    started: set[int] = set()
    for agent, first, last in run.segments:
        begin = first + 1 if agent in started else 0
        started.add(agent)
        for position in range(begin, last + 1):
            yield agent, position
