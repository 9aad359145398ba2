"""A program made ready on one rank, then called any number of times.

Works on addresses and stream handles, so that torch is one caller among others. What a call enqueues is what the
program says: launches in its order, each on its stream, behind those it names.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping

from tilescale.codegen.program import Program, Slot
from tilescale.codegen.table import STATE, Failure, unpack_state
from tilescale.deploy.driver import Driver, Library
from tilescale.deploy.modules import Modules
from tilescale.deploy.sequence import LaunchSequence
from tilescale.deploy.symmetric import Exchange, Workspace, agree, closing_together
from tilescale.deploy.turns import Turns
from tilescale.errors import BundleError, TilescaleError
from tilescale.spec.declaration import Spec

TIME_LIMIT_S = 60.0
_RENEW = "find out what holds up the peer, then renew the operation on all ranks"


class OperationFailed(TilescaleError):
    """A call that did not complete on this rank. `failure` says which wait ran out of time, where one did."""

    def __init__(self, rule: str, actual: object = None, remedy: str = "", failure: Failure | None = None) -> None:
        super().__init__(rule, actual, remedy)
        self.failure = failure


class PreparedOperation:
    """A program on one rank of a group. Making, renewing and closing one is collective, a call is not.

    `modules` holds the kernels; `library` does the products of library calls. `time_limit_s` bounds every wait on the
    device. With `watch`, the state of each call is copied to the host behind it, and a failure raises OperationFailed
    in a later call; without it, and in a replayed graph, `check` finds it.

    Calls come from one thread at a time and run one after the other, on whatever streams, and so do those of all operations
    with the same `turns` (None: turns of its own). Replays of a graph are for the caller to order. A schedule that
    `alternates` can be captured only in pairs of calls: see `recording`.
    """

    def __init__(
        self, spec: Spec, program: Program, rank: int, driver: Driver, exchange: Exchange, modules: Modules, *,
        library: Library | None = None, time_limit_s: float = TIME_LIMIT_S, watch: bool = True, turns: Turns | None = None,
    ) -> None:
        if not 0 <= rank < program.world:
            raise BundleError(f"a rank of the program is in [0, {program.world})", rank, "use the rank in the group")
        self.spec, self.program, self.rank = spec, program, rank
        self._driver, self._exchange, self._modules, self._library = driver, exchange, modules, library
        self._time_limit_ns, self._watching = int(time_limit_s * 1e9), watch
        self._turns = turns or Turns()
        # Operands that peers read where they lie: the operation owns their memory.
        self._symmetric = {
            each.name: math.prod(each.tensor.local_shape(rank, spec.world)) * each.tensor.itemsize
            for each in spec.operands if any(slot.buffer == each.name and slot.rank != -1 for slot in program.slots)
        }
        self._prepare()

    def _prepare(self) -> None:
        self._driver.activate()
        self.calls = 0
        self._condemned: OperationFailed | None = None
        self._recorded = self._recording = False
        self._watched = self._done = self._behind = 0
        self.workspace = Workspace(self.program, self.rank, self._driver, self._exchange, self._symmetric)
        self._sequence: LaunchSequence | None = None
        with closing_together(self.close, self._release):
            agree(self._exchange, self._make_sequence)

    def _make_sequence(self) -> bytes:
        driver = self._driver
        self._sequence = sequence = LaunchSequence(
            self.spec, self.program, self.workspace, driver, self._modules, self._library, self._time_limit_ns)
        self._done, self._behind = sequence.make_event(), sequence.make_stream()
        if self._watching:
            self._watched = driver.pinned(STATE.size)
        return b""

    @property
    def sequence(self) -> LaunchSequence:
        """What a call enqueues. Raises BundleError once the operation is closed."""
        if self._sequence is None:
            raise BundleError("a call needs an open operation", "it is closed", "load the bundle again")
        return self._sequence

    @property
    def alternates(self) -> bool:
        """Whether the host must know if a call is an even or an odd one, which matters for graphs."""
        return self.sequence.alternates

    def operand(self, name: str) -> int | None:
        """Where a symmetric operand must lie; None where the caller may choose."""
        return self.workspace.address(Slot(name, self.rank)) if name in self._symmetric else None

    # -- calls ---------------------------------------------------------------------------------------------------------
    def __call__(self, operands: Mapping[str, int], stream: int) -> None:
        """Enqueue one call on `stream`; `operands` are the addresses of the caller's buffers: those of Spec.operands by
        name, and "out". Raises before anything is enqueued where a call cannot be made."""
        driver, sequence = self._driver, self.sequence
        driver.activate()
        capturing = driver.capturing(stream)
        self._refuse_unless_ready(capturing, operands)
        sequence.bind(operands)
        try:
            if not capturing:
                self._turns.begin(driver, stream)
            sequence.enqueue(stream, self.calls & 1)
            if not capturing:
                self._conclude(stream)
        except TilescaleError as error:
            self._condemned = OperationFailed("a call is enqueued whole", str(error), _RENEW)
            raise
        self.calls += 1

    def _conclude(self, stream: int) -> None:
        """Mark the end of a call, and have its state copied to where the next one looks."""
        self._turns.end(self._driver, stream, self._done)
        if self._watching:
            self._driver.wait(self._behind, self._done)
            self._driver.copy_to_pinned(self._watched, self.workspace.state, STATE.size, self._behind)

    def _refuse_unless_ready(self, capturing: bool, operands: Mapping[str, int]) -> None:
        if self._watching:
            self._judge(self._driver.read_pinned(self._watched, STATE.size))
        self._raise_if_condemned()
        for name in self._symmetric:
            if operands[name] != self.operand(name):
                raise BundleError(f"operand {name} lies in the operation's symmetric memory", hex(operands[name]),
                                  f"write it to the memory at {self.operand(name):#x}, which peers read")
        if not self.alternates:
            return
        if capturing and not self._recording:
            raise BundleError(
                "a graph of this schedule holds an even number of calls, since it alternates between two buffers",
                "a call captured alone", "capture pairs inside `with operation.recording():`, or tune overlap = fused")
        if self._recorded and not capturing:
            raise BundleError(
                "a graph has recorded which buffer comes next", "a call outside of it",
                "replay the graph, or drop it and call forget_recordings()")

    # -- graphs --------------------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Around the capture of a graph with an even number of calls, where the schedule alternates. For others a graph
        may hold any number, and this changes nothing. Raises BundleError at the end of an odd number."""
        before, self._recording = self.calls, True
        try:
            yield
        finally:
            recorded, self._recording = self.calls - before, False
            self.calls = before  # nothing has run yet, and replays leave the parity as it is
        if self.alternates:
            if recorded % 2:
                raise BundleError("a graph of this schedule holds an even number of calls", recorded, "record one more")
            self._recorded = self._recorded or recorded > 0

    def forget_recordings(self) -> None:
        """Say that no graph of this operation will be replayed any more."""
        self._recorded = False

    # -- failures and the end ------------------------------------------------------------------------------------------
    def check(self, stream: int) -> None:
        """Wait for `stream`, and raise OperationFailed where a call has failed on this rank. The workspace is of no use
        then: results since the last good check may be wrong, and `renew` (on all ranks) makes a new one."""
        self._driver.activate()
        self._driver.synchronize(stream)
        self._judge(self.workspace.read_state())
        self._raise_if_condemned()

    def _judge(self, state: bytes) -> None:
        _, failure = unpack_state(state)
        if failure is not None and self._condemned is None:
            launches = self.program.ranks[self.rank]
            name = next((each.name for each in reversed(launches) if each.first_step <= failure.step), "")
            self._condemned = OperationFailed(
                f"ranks meet within {self._time_limit_ns / 1e9:g} s", f"{failure}, in launch {name}", _RENEW, failure)

    def _raise_if_condemned(self) -> None:
        if self._condemned is not None:
            raise self._condemned.with_traceback(None)

    @property
    def condemned(self) -> bool:
        """Whether a call has failed; only `renew` and `close` are left then."""
        return self._condemned is not None

    def renew(self) -> None:
        """A new workspace with zeroed counters, collectively: after a failure on any rank."""
        self.close()
        self._prepare()

    def close(self) -> None:
        """Wait for the calls and give everything back, collectively and at most once."""
        self._drop_sequence()
        self.workspace.close()

    def _release(self) -> None:
        self._drop_sequence()
        self.workspace.release()

    def _drop_sequence(self) -> None:
        if self._sequence is None:
            return
        self._driver.activate()
        if self._behind:
            self._driver.wait(self._behind, self._done)
            self._driver.synchronize(self._behind)
        if self._watched:
            self._driver.free_pinned(self._watched)
            self._watched = 0
        self._turns.forget(self._done)
        self._sequence.close()
        self._sequence = None
