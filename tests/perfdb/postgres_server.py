"""A PostgreSQL server of our own on loopback, in a temporary folder, that never outlives the process it is for.

This file is also the program that runs it: that program starts the server, says where it is, and ends it and removes
its folder when its input closes, which is when its parent ends, however that happens.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PLACES = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql*/bin")
START_LIMIT_S, STOP_LIMIT_S = 60, 20


class NoServer(Exception):
    """PostgreSQL or its Python driver is not installed, or it does not start here: the text says which."""


def programs() -> Path:
    """The folder that holds initdb and postgres. Errors: NoServer."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    for pattern in PLACES:
        folders += sorted(Path("/").glob(pattern[1:]), reverse=True)
    for folder in folders:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    raise NoServer("PostgreSQL is not installed (Debian: apt-get install postgresql)")


def _account() -> str | None:
    """Whom to run as: the server refuses root."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    raise NoServer("PostgreSQL does not run as root and there is no account postgres or nobody")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def server(durable: bool = False) -> Iterator[str]:
    """The URL of a running server without its database name. `durable`: commits reach the disk. Errors: NoServer."""
    command = [sys.executable, __file__, *(["--durable"] if durable else [])]
    # A session of its own: what ends this process by its group leaves the program to clean up.
    keeper = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    try:
        said = keeper.stdout.readline()
        if not said:
            raise NoServer(f"the program that keeps the server ended with code {keeper.wait()}")
        answer = json.loads(said)
        if "error" in answer:
            raise NoServer(answer["error"])
        yield answer["url"]
    finally:
        keeper.stdin.close()
        keeper.wait()
        keeper.stdout.close()


def _keep(durable: bool) -> None:
    """Start a server, say where it is, wait until the input closes, end the server."""
    home = Path(tempfile.mkdtemp(prefix="perfdb-pg-"))
    process = None
    try:
        process, url = _start(home, durable)
        print(json.dumps({"url": url}), flush=True)
        sys.stdin.read()
    except NoServer as reason:
        print(json.dumps({"error": str(reason)}), flush=True)
    finally:
        if process is not None:
            process.send_signal(signal.SIGINT)  # fast shutdown
            try:
                process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(home, ignore_errors=True)


def _start(home: Path, durable: bool) -> tuple[subprocess.Popen[bytes], str]:
    try:
        import psycopg
    except ImportError as error:
        raise NoServer("psycopg is not installed (pip install 'psycopg[binary]')") from error
    folder, account = programs(), _account()
    if account is not None:
        shutil.chown(home, account)
    data, port = home / "data", _free_port()
    make = [folder / "initdb", "-D", data, "-U", "perfdb", "-A", "trust", "-E", "UTF8", "--no-sync"]
    done = subprocess.run(make, capture_output=True, text=True, user=account, cwd=home, check=False)
    if done.returncode != 0:
        raise NoServer(f"initdb failed: {done.stderr.strip()[-300:]}")
    settings = {"listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": "", "max_connections": 120}
    if not durable:
        settings |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
    flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            [folder / "postgres", "-D", data, *flags],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            user=account,
            cwd=home,
        )
    try:
        url = f"postgresql://perfdb@127.0.0.1:{port}"
        _wait(psycopg, f"{url}/postgres", process, home / "log")
    except NoServer:
        process.kill()
        process.wait()
        raise
    return process, url


def _wait(psycopg: object, url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise NoServer(f"postgres ended: {log.read_text(errors='replace')[-300:]}")
        try:
            psycopg.connect(url, connect_timeout=2).close()  # type: ignore[attr-defined]
        except psycopg.OperationalError:  # type: ignore[attr-defined]
            time.sleep(0.1)
        else:
            return
    raise NoServer(f"postgres did not answer in {START_LIMIT_S} s")


def make_database(server_url: str, name: str, template: str = "template1") -> str:
    """A new database on the server; returns its URL."""
    import psycopg

    with psycopg.connect(f"{server_url}/postgres", autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
    return f"{server_url}/{name}"


def empty_database(url: str, tables: list[str]) -> None:
    """Remove all rows of the tables and begin their ids anew."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"TRUNCATE {', '.join(tables)} RESTART IDENTITY CASCADE")


if __name__ == "__main__":
    # An end by a signal takes the same way out as an end of input.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    _keep("--durable" in sys.argv[1:])
