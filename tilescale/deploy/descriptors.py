"""File descriptors that a process of this host hands to others of the same user: Unix sockets, SCM_RIGHTS.

A descriptor means nothing in another process; the kernel makes a duplicate there when it is sent as a right. What goes from
rank to rank as bytes is therefore a *ticket* and the name of the socket at which it is good.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
import threading

from tilescale.deploy.driver import DriverError

TICKET_BYTES = 16
_LIMIT_S = 10.0
_PEER = struct.Struct("3i")  # process, user and group of the other end
_GIVEN, _REFUSED = b"+", b"-"
_RULE = "a rank hands over its memory"


class DescriptorServer:
    """Gives duplicates of what was offered to processes of this user, from a thread of its own.

    The socket has a name in Linux's abstract namespace: no file is left behind, and ranks must share the network namespace.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(b"\0tilescale-" + secrets.token_hex(12).encode())
        self._socket.listen(128)
        self._lock = threading.Lock()
        self._offers: dict[bytes, int] = {}
        self._thread = threading.Thread(target=self._serve, name="tilescale-descriptors", daemon=True)
        self._thread.start()

    @property
    def name(self) -> bytes:
        """Of the socket, for `fetch`."""
        name = self._socket.getsockname()
        return name if isinstance(name, bytes) else str(name).encode()

    def offer(self, descriptor: int) -> bytes:
        """The ticket for a descriptor, which belongs to the server from now on."""
        ticket = secrets.token_bytes(TICKET_BYTES)
        with self._lock:
            self._offers[ticket] = descriptor
        return ticket

    def withdraw(self, ticket: bytes) -> None:
        """Close what was offered; KeyError for another ticket. Duplicates that were given live on."""
        with self._lock:
            os.close(self._offers.pop(ticket))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._socket.close()
        self._thread.join(_LIMIT_S)
        for ticket in list(self._offers):
            self.withdraw(ticket)

    def _serve(self) -> None:
        while True:
            try:
                asking, _ = self._socket.accept()
            except OSError:  # closed
                return
            with asking, contextlib.suppress(OSError):  # one that goes away is no matter of the others
                self._answer(asking)

    def _answer(self, asking: socket.socket) -> None:
        asking.settimeout(_LIMIT_S)
        ticket = asking.recv(TICKET_BYTES)
        _, user, _ = _PEER.unpack(asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        with self._lock:  # it is not closed meanwhile
            descriptor = self._offers.get(ticket) if user == os.getuid() else None
            if descriptor is None:
                asking.sendall(_REFUSED)
            else:
                socket.send_fds(asking, [_GIVEN], [descriptor])


def fetch(name: bytes, ticket: bytes) -> int:
    """A duplicate of what was offered for `ticket` at the socket `name`; the caller closes it. DriverError where the
    process is gone, or has no such offer for this user."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.settimeout(_LIMIT_S)
            asking.connect(name)
            asking.sendall(ticket)
            answer, descriptors, _, _ = socket.recv_fds(asking, 1, 1)
    except OSError as error:
        raise DriverError(_RULE, str(error), "ranks run on one host, in one network namespace") from None
    if answer != _GIVEN or len(descriptors) != 1:
        raise DriverError(_RULE, "it has no such memory for this user", "load on all ranks together, as one user")
    os.set_inheritable(descriptors[0], False)
    return descriptors[0]
