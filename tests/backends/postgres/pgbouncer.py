"""A PgBouncer in front of a server. No wheel brings it: scripts/programs.py does, where it can."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from tests.backends.postgres.server_keeper import NOBODY, free_port, home_directory

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
PATIENCE = 60.0
ATTEMPTS = 5  # Another server may take a port that was free.

SETTINGS = """
[databases]
{database} = host={host} port={upstream} dbname={database}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = users
server_login_retry = 1
{more}
"""


@contextlib.contextmanager
def pooling(url: str, *settings: str) -> Iterator[str]:
    """Run a pooler for the database of an address; yield its address there."""
    server = urlsplit(url)
    home = home_directory()
    database = server.path.removeprefix("/")
    places = {"database": database, "host": server.hostname, "upstream": server.port}
    (home / "users").write_text(f'"{server.username}" "{server.password}"\n')
    for _ in range(ATTEMPTS):
        port = free_port()
        text = SETTINGS.format(**places, port=port, more="\n".join(settings))
        (home / "settings").write_text(text)
        pooler = _start(home)
        if _answers(port, pooler):
            break
        pooler.kill()
        pooler.wait()
    else:
        message = f"pgbouncer did not start: {(home / 'log').read_text()}"
        raise RuntimeError(message)
    try:
        yield f"postgresql://{server.username}:{server.password}@127.0.0.1:{port}/{database}"
    finally:
        pooler.kill()
        pooler.wait()
        shutil.rmtree(home)


def _start(home: Path) -> "subprocess.Popen[bytes]":
    assert PROGRAM is not None, "there is no pgbouncer: run scripts/programs.py as root"
    identity = {"user": NOBODY, "group": NOBODY} if os.getuid() == 0 else {}  # It refuses root.
    with (home / "log").open("ab") as log:
        started: subprocess.Popen[bytes] = subprocess.Popen(
            [PROGRAM, "-q", "settings"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=home,
            **identity,  # type: ignore[call-overload]
        )
    return started


def _answers(port: int, pooler: "subprocess.Popen[bytes]") -> bool:
    """Wait until somebody answers there, while the pooler lives."""
    deadline = time.monotonic() + PATIENCE
    while pooler.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return pooler.poll() is None
        time.sleep(0.02)
    return False
