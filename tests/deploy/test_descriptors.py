"""Descriptors handed from process to process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading

import pytest

from tilescale.deploy.descriptors import TICKET_BYTES, DescriptorServer, fetch
from tilescale.deploy.driver import DriverError


@pytest.fixture
def server():
    made = DescriptorServer()
    yield made
    made.close()


def memory_file(data: bytes) -> int:
    descriptor = os.memfd_create("test")
    os.write(descriptor, data)
    return descriptor


def test_another_process_gets_a_duplicate(server):
    ticket = server.offer(memory_file(b"before"))
    program = ("import os, sys\nfrom tilescale.deploy.descriptors import fetch\n"
               "found = fetch(bytes.fromhex(sys.argv[1]), bytes.fromhex(sys.argv[2]))\n"
               "assert os.pread(found, 6, 0) == b'before'\nos.pwrite(found, b'behind', 0)\n"
               "assert not os.get_inheritable(found)\n")
    subprocess.run([sys.executable, "-c", program, server.name.hex(), ticket.hex()], check=True, timeout=60)
    mine = fetch(server.name, ticket)
    assert os.pread(mine, 6, 0) == b"behind"
    os.close(mine)


def test_many_at_once_get_what_they_asked_for(server):
    tickets = [server.offer(memory_file(bytes([number]))) for number in range(16)]
    found: dict[int, int] = {}

    def ask(number: int) -> None:
        descriptor = fetch(server.name, tickets[number])
        found[number] = os.pread(descriptor, 1, 0)[0]
        os.close(descriptor)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == {number: number for number in range(16)}


def test_what_was_not_offered_or_is_withdrawn_is_refused(server):
    descriptor = memory_file(b"x")
    ticket = server.offer(descriptor)
    with pytest.raises(DriverError, match="no such memory for this user"):
        fetch(server.name, bytes(TICKET_BYTES))
    server.withdraw(ticket)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    with pytest.raises(DriverError, match="no such memory for this user"):
        fetch(server.name, ticket)


def test_a_stranger_who_says_nothing_keeps_nobody_waiting_for_good(server):
    silent = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    silent.connect(server.name)
    silent.close()
    descriptor = fetch(server.name, server.offer(memory_file(b"x")))
    os.close(descriptor)


def test_a_process_that_is_gone_is_an_error():
    server = DescriptorServer()
    name, ticket = server.name, server.offer(memory_file(b"x"))
    server.close()
    with pytest.raises(DriverError, match="one host, in one network namespace"):
        fetch(name, ticket)
