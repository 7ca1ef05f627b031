"""Where tests find Postgres: one server for all test processes, one schema for each test.

`PERDURE_TEST_POSTGRES` names another server to use, `postgresql://user:password@host/database`; it
must allow this user to create schemas.
"""

import fcntl
import os
import secrets
import socket
import subprocess
import sys
import time
from pathlib import Path

import psycopg
from psycopg import sql

from tests.backends.postgres import server_keeper as postgres_keeper

OTHER = "PERDURE_TEST_POSTGRES"
PATIENCE = 100.0


class Shared:
    """A connection to the keeper of a server, which ends with this process at the latest."""

    def __init__(self, place: Path) -> None:
        self._socket: socket.socket | None = None
        if OTHER in os.environ:
            self.url = os.environ[OTHER]
            return
        place.mkdir(exist_ok=True)
        with (place / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._socket = _visit(place)
            if self._socket is None:  # There is none yet, or its last guest has gone.
                for name in ("url", "keeper"):
                    (place / name).unlink(missing_ok=True)
                _start(place)
                self._socket = _visit(place)
        self.url = (place / "url").read_text()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


def _visit(place: Path) -> socket.socket | None:
    """Return a connection to the keeper, None if nobody opens."""
    found = socket.socket(socket.AF_UNIX)
    here = Path.cwd()
    os.chdir(place)  # The path of a socket is short.
    try:
        found.connect("keeper")
        if found.recv(1):
            return found
    except OSError:
        pass
    finally:
        os.chdir(here)
    found.close()
    return None


def _start(place: Path) -> None:
    log = (place / "log").open("wb")
    keeper = subprocess.Popen(
        [sys.executable, postgres_keeper.__file__, "."],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        cwd=place,
        start_new_session=True,
    )
    log.close()
    deadline = time.monotonic() + PATIENCE
    while not (place / "url").exists():
        if keeper.poll() is not None or time.monotonic() > deadline:
            message = f"no Postgres for the tests: {(place / 'log').read_text()}"
            raise RuntimeError(message)
        time.sleep(0.02)
    keeper.returncode = 0  # It goes on without us, and nobody waits for it.


def address(url: str, **ours: str) -> str:
    """Return an address with some words of perdure's in its query."""
    words = "&".join(f"{key}={value}" for key, value in ours.items())
    return f"{url}{'&' if '?' in url else '?'}{words}"


def new_schema() -> str:
    return f"t_{secrets.token_hex(6)}"


def drop_schema(url: str, schema: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("set client_min_messages = warning")
        name = sql.Identifier(schema)
        connection.execute(sql.SQL("drop schema if exists {} cascade").format(name))
