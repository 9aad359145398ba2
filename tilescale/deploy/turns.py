"""One call after the other on a device: operations of groups that overlap must not hold each other up.

The blocks of a call stay on their SMs until peers come. If two calls of one rank ran together, one could take the SMs that
the other waits for on the peer, and the other way round there. Taken in turns, calls end on every rank in the order in
which they were made, as long as ranks make the calls that they share in the same order.
"""

from __future__ import annotations

from tilescale.deploy.driver import Driver


class Turns:
    """Of one device in one process."""

    def __init__(self) -> None:
        self._last = 0  # the event that the call before ends with; 0 for none

    def begin(self, driver: Driver, stream: int) -> None:
        """Have `stream` wait for the call before, of whatever operation and on whatever stream."""
        if self._last:
            driver.wait(stream, self._last)

    def end(self, driver: Driver, stream: int, event: int) -> None:
        """The call that is now enqueued on `stream` ends with `event`."""
        driver.record(event, stream)
        self._last = event

    def forget(self, event: int) -> None:
        """Before an event is destroyed, its work being done."""
        if self._last == event:
            self._last = 0


_TURNS: dict[str, Turns] = {}


def turns_of(uuid: str) -> Turns:
    """Those of the device: all bundles of a process share them."""
    return _TURNS.setdefault(uuid, Turns())
