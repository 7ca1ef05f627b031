"""P2 on Postgres: the server's data lies on an ext4 image, which is copied while it stands still.

As in `p02_real_kernel`: the writer is stopped at a random moment, then every process of the
server, and the image is copied. Another server recovers from the copy, as after a power failure,
and what it holds is compared with what the writer had reported. The control is a server with
`fsync = off`: losses must be seen.
"""

import contextlib
import os
import random
import shutil
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import perdure
from perdure.backends.addresses import open_backend
from tests.backends.postgres.server_keeper import NOBODY, Server, home_directory
from tests.promises import children, places
from tests.promises.p02_real_kernel import TURNS, Writer, file_system, stopped
from tests.promises.p02_real_kernel import why_not as why_no_kernel
from tests.promises.promise import Promise, Trial, in_time

IMAGE_BYTES = 192 * 2**20
SETTINGS = ("max_wal_size=32MB", "min_wal_size=32MB")  # They are all that the image has room for.
UNSYNCED = "fsync=off"
ACCEPTED = "accept=fsync-off"


@contextlib.contextmanager
def _serving(data: Path, *settings: str, like: Server | None = None) -> Iterator[Server]:
    """Run a server whose data is at a place; with that of another server, it has its password."""
    server = Server(home_directory(), [*SETTINGS, *settings])
    server.data = data
    try:
        if like is None:
            server.create()
        else:
            server.password = like.password
        server.start()
        yield server
    finally:
        server.stop(signal.SIGQUIT)
        server.remove()


@contextlib.contextmanager
def _standing_still(server: Server) -> Iterator[None]:
    family = [server.pid, *server.children()]  # The first makes the others, so it stops first.
    try:
        for pid in family:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in reversed(family):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _judge_copy(server: Server, directory: Path, said: bytes, draw: random.Random) -> str:
    copy = directory / "copy"
    with _standing_still(server):
        shutil.copyfile(directory / "image", copy)
    try:
        with places.mounted(directory / "after", "-o", "loop", copy) as point:
            (point / "data" / "postmaster.pid").unlink()  # It names a process that does run.
            with (
                _serving(point / "data", like=server) as other,
                perdure.open(other.url) as store,
            ):
                return children.ledger_of(said).judge(store, draw)
    except (perdure.PerdureError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        copy.unlink()


def stops(
    directory: Path, draw: random.Random, deadline: float, *settings: str
) -> Generator[Trial, None, None]:
    """Start a server on a new file system and a writer; stop both several times, and judge."""
    directory.chmod(0o755)  # The server is another user.
    with file_system(directory, IMAGE_BYTES) as disk:
        os.chown(disk, NOBODY, NOBODY)
        with _serving(disk / "data", *settings) as server:
            address = f"{server.url}?{ACCEPTED}" if UNSYNCED in settings else server.url
            perdure.open(address).close()
            places.command("sync", "-f", disk)  # What was made before is not what is tried.
            _, environment = children.program(disk, TURNS, "")
            program = "tests.promises.p02_postgres"
            writer = Writer([sys.executable, "-B", "-m", program, address], environment)
            try:
                for what in stopped(writer, draw, deadline):
                    yield Trial(what, _judge_copy(server, directory, writer.said, draw))
            finally:
                writer.kill()


def why_not() -> str:
    """Say why this machine can not run these trials; "" if it can."""
    return why_no_kernel() or ("" if places.has("sync") else "needs sync")


def trials(seed: int, deadline: float) -> Iterator[Trial]:
    if reason := why_not():
        print(f"P2 is not tried on Postgres: {reason}")
        return
    draw = random.Random(seed)
    with places.fast_directory() as directory:
        with contextlib.closing(stops(directory, draw, deadline, UNSYNCED)) as found:
            lost = any("lost" in trial.failure for trial in found)
        if not lost:
            yield Trial(UNSYNCED, "nothing was lost: these trials would see no loss")
        while in_time(deadline):
            yield from stops(directory, draw, deadline)


PROMISE = Promise("P2", "as P1, with a real kernel and ext4", 100, trials, "postgres")

if __name__ == "__main__":
    children._play(lambda: open_backend(sys.argv[1]), sys.stdout.fileno(), TURNS)
