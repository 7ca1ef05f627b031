"""P2: as P1, with a real kernel: an ext4 image is copied while a writer stands still.

What a program wrote and did not sync is in the kernel's memory and not in the image, so a copy of
the image is what a power failure leaves. The writer is stopped with SIGSTOP at a random moment, the
image copied and mounted, its journal replayed by ext4 as after a crash, and the store compared with
what the writer had reported. The kernel goes on writing back while the image is copied, so a copy
is a little younger than the moment of the stop; it holds more than a real crash would, never less.

Each run begins with a control: with `synchronous=normal`, and with files that are not synced,
losses must be seen.

Needs root, loop devices and mkfs.ext4; elsewhere there are no trials, and `why_not` says why.
"""

import contextlib
import os
import random
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path

import perdure
from tests.promises import children, places
from tests.promises.kinds import KINDS, Kind
from tests.promises.promise import Promise, Trial, in_time

IMAGE_BYTES = 48 * 2**20
STOPS = 10  # Per writer: making and mounting a file system costs more than a trial.
LONGEST_PAUSE = 0.3  # Seconds between two stops, in which the writer works.
TURNS = 20_000  # More than any writer gets to.
CONTROLS = {"sqlite": "sqlite-normal", "files": "files-unsynced"}


def why_not() -> str:
    """Say why this machine can not run these trials; "" if it can."""
    if not places.is_root():
        return "needs root, to mount"
    if not places.has("mkfs.ext4", "mount", "umount"):
        return "needs mkfs.ext4, mount and umount"
    try:
        with places.fast_directory() as directory, file_system(directory):
            return ""
    except subprocess.CalledProcessError as error:
        return f"an ext4 image can not be mounted here: {error.stderr.strip()}"


@contextlib.contextmanager
def file_system(directory: Path, size: int = IMAGE_BYTES) -> Iterator[Path]:
    """Lend the mount point of a new file system, whose image is `image` in the directory."""
    image = directory / "image"
    with image.open("wb") as file:
        file.truncate(size)
    places.command("mkfs.ext4", "-q", "-F", image)
    try:
        with places.mounted(directory / "disk", "-o", "loop,commit=1", image) as point:
            yield point
    finally:
        image.unlink()


class Writer:
    """A process that runs the script and reports; it can be stopped and continued."""

    def __init__(self, words: list[str], environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            words,
            cwd=children.ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        self._pipe = self._process.stdout.fileno()
        self.said = b""

    def work(self, seconds: float) -> bool:
        """Let it work, and stop it; False if it has ended by itself, for the disk is full."""
        self._process.send_signal(signal.SIGCONT)
        deadline = time.monotonic() + seconds
        while self._listen(max(deadline - time.monotonic(), 0)):
            if time.monotonic() >= deadline:
                break
        if self._process.poll() is not None:
            return False
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        return self._process.poll() is None

    def listen_to_the_end(self) -> None:
        """Take in what was reported before the stop."""
        while self._listen(0):
            pass

    def _listen(self, seconds: float) -> bool:
        if not select.select([self._pipe], [], [], seconds)[0]:
            return False
        data = os.read(self._pipe, 2**16)
        self.said += data
        return bool(data)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def _judge_copy(kind: Kind, directory: Path, said: bytes, draw: random.Random) -> str:
    copy = directory / "copy"
    shutil.copyfile(directory / "image", copy)
    try:
        with (
            places.mounted(directory / "after", "-o", "loop", copy) as point,
            perdure.open(kind.address(point)) as store,
        ):
            return children.ledger_of(said).judge(store, draw)
    except perdure.PerdureError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        copy.unlink()


def stopped(writer: Writer, draw: random.Random, deadline: float) -> Iterator[str]:
    """Stop a writer at several moments, and say where it was."""
    while not writer.said and writer.work(0.2):
        pass  # It has to import everything first.
    for _ in range(STOPS):
        if not in_time(deadline) or not writer.work(draw.uniform(0, LONGEST_PAUSE)):
            return
        writer.listen_to_the_end()
        yield f"stopped after {len(writer.said)} bytes of reports"


def stops(
    kind: Kind, directory: Path, draw: random.Random, deadline: float, mode: str = ""
) -> Generator[Trial, None, None]:
    """Start a writer on a new file system, stop it several times, and judge what is on disk."""
    with file_system(directory) as disk:
        writer = Writer(*children.program(disk, TURNS, mode or kind.name))
        try:
            for what in stopped(writer, draw, deadline):
                yield Trial(what, _judge_copy(kind, directory, writer.said, draw))
        finally:
            writer.kill()


def trials(kind: Kind, seed: int, deadline: float) -> Iterator[Trial]:
    if reason := why_not():
        print(f"P2 is not tried: {reason}")
        return
    draw = random.Random(seed)
    with places.fast_directory() as directory:
        control = CONTROLS[kind.name]
        with contextlib.closing(stops(kind, directory, draw, deadline, control)) as found:
            lost = any("lost" in trial.failure for trial in found)
        if not lost:
            yield Trial(control, "nothing was lost: these trials would see no loss")
        while in_time(deadline):
            yield from stops(kind, directory, draw, deadline)


SAYS = "as P1, with a real kernel and ext4"
PROMISES = [Promise("P2", SAYS, 300, partial(trials, kind), kind.name) for kind in KINDS]
