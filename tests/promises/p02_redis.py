"""P2 on Redis: the server's append-only file lies on an ext4 image, copied while it stands still.

As in `p02_real_kernel`: the writer is stopped at a random moment, then the server, and the image is
copied. Another server loads the copy, as after a power failure, and what it holds is compared with
what the writer had reported. The control is a server with `appendfsync no`: losses must be seen.
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
from tests.backends.redis.server import Server
from tests.promises import children, places
from tests.promises.p02_real_kernel import TURNS, Writer, file_system, stopped, why_not
from tests.promises.promise import Promise, Trial, in_time

TENANT = "tenant=t"
UNSYNCED = {"appendfsync": "no"}
ACCEPTED = "accept=appendfsync-no"


def _copy_still(image: Path, copy: Path) -> None:
    """Copy an image at a moment in which nothing is written to it.

    Each append makes the file longer, so that the journal of the file system is written all the
    time. A copy of which one half is older than the other would be no state that ever existed.
    """
    for _ in range(100):
        before = image.stat().st_mtime_ns
        shutil.copyfile(image, copy)
        if image.stat().st_mtime_ns == before:
            return
    raise RuntimeError("the image is written to all the time")


def _judge_copy(server: Server, directory: Path, said: bytes, draw: random.Random) -> str:
    copy = directory / "copy"
    os.kill(server.pid, signal.SIGSTOP)
    try:
        _copy_still(directory / "image", copy)
    finally:
        os.kill(server.pid, signal.SIGCONT)
    try:
        with places.mounted(directory / "after", "-o", "loop", copy) as point:
            other = Server(point / "data")
            try:
                with perdure.open(f"{other.url}?{TENANT}") as store:
                    return children.ledger_of(said).judge(store, draw)
            finally:
                other.stop()
    except (perdure.PerdureError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        copy.unlink()


def stops(
    directory: Path, draw: random.Random, deadline: float, **settings: str
) -> Generator[Trial, None, None]:
    """Start a server on a new file system and a writer; stop both several times, and judge."""
    with file_system(directory) as disk:
        server = Server(disk / "data", **settings)
        try:
            address = f"{server.url}?{TENANT}" + (f"&{ACCEPTED}" if settings else "")
            places.command("sync", "-f", disk)  # What was made before is not what is tried.
            _, environment = children.program(disk, TURNS, "")
            program = "tests.promises.p02_redis"
            writer = Writer([sys.executable, "-B", "-m", program, address], environment)
            try:
                for what in stopped(writer, draw, deadline):
                    yield Trial(what, _judge_copy(server, directory, writer.said, draw))
            finally:
                writer.kill()
        finally:
            server.stop()


def trials(seed: int, deadline: float) -> Iterator[Trial]:
    if reason := why_not():
        print(f"P2 is not tried on Redis: {reason}")
        return
    draw = random.Random(seed)
    with places.fast_directory() as directory:
        with contextlib.closing(stops(directory, draw, deadline, **UNSYNCED)) as found:
            lost = any("lost" in trial.failure for trial in found)
        if not lost:
            yield Trial("appendfsync no", "nothing was lost: these trials would see no loss")
        while in_time(deadline):
            yield from stops(directory, draw, deadline)


PROMISE = Promise("P2", "as P1, with a real kernel and ext4", 100, trials, "redis")

if __name__ == "__main__":
    children._play(lambda: open_backend(sys.argv[1]), sys.stdout.fileno(), TURNS)
