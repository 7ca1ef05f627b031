"""A PgBouncer in front of a server, where the machine has one: no wheel brings it.

`apt-get install pgbouncer` does, for example. Tests of it are skipped elsewhere.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

from tests.servers.postgres_keeper import NOBODY, free_port, home_directory

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
PATIENCE = 10.0

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
    assert PROGRAM is not None
    server = urlsplit(url)
    port = free_port()
    home = home_directory()
    database = server.path.removeprefix("/")
    places = {"database": database, "host": server.hostname, "upstream": server.port, "port": port}
    (home / "settings").write_text(SETTINGS.format(**places, more="\n".join(settings)))
    (home / "users").write_text(f'"{server.username}" "{server.password}"\n')
    identity = {"user": NOBODY, "group": NOBODY} if os.getuid() == 0 else {}  # It refuses root.
    log = (home / "log").open("wb")
    pooler = subprocess.Popen(
        [PROGRAM, "-q", "settings"],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        cwd=home,
        **identity,  # type: ignore[call-overload]
    )
    try:
        _wait(port, pooler)
        yield f"postgresql://{server.username}:{server.password}@127.0.0.1:{port}/{database}"
    finally:
        pooler.kill()
        pooler.wait()
        log.close()
        shutil.rmtree(home)


def _wait(port: int, pooler: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + PATIENCE
    while pooler.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.02)
    message = "pgbouncer did not start"
    raise RuntimeError(message)
