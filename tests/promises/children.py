"""Child processes that run the script on a store, tell what was sent and stored, and may be killed.

Run as a program (`python -m tests.promises.children DIRECTORY TURNS files`) it reports on its
standard output; forked from a process that has imported everything, a child costs a few
milliseconds.
"""

import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

import perdure
from perdure.backends.protocol import Backend
from tests.promises import script
from tests.promises.calls import Watcher, let_pass
from tests.promises.kinds import MODES, Kind
from tests.promises.ledger import Event, Ledger, Witness

ROOT = Path(__file__).parents[2]

_LENGTH = 4
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Event).decode


def reporting(pipe: int) -> Callable[[Event], None]:
    """Return a function that writes events to a pipe, each whole before it returns."""

    def report(event: Event) -> None:
        data = _encode(event)
        frame = len(data).to_bytes(_LENGTH, "big") + data
        while frame:
            frame = frame[os.write(pipe, frame) :]

    return report


def events(data: bytes) -> Iterator[Event]:
    """Yield the whole events of what came out of a pipe; death may have cut the last one."""
    while len(data) >= _LENGTH:
        end = _LENGTH + int.from_bytes(data[:_LENGTH], "big")
        if len(data) < end:
            return
        yield _decode(data[_LENGTH:end])
        data = data[end:]


def ledger_of(data: bytes) -> Ledger:
    ledger = Ledger()
    for event in events(data):
        ledger.note(event)
    return ledger


class End(NamedTuple):
    """What a child said, and how it ended: its exit code, or minus the signal that killed it.

    Its last words are the last line that it wrote to the standard error, where that was caught.
    """

    said: bytes
    code: int
    last_words: str = ""


def fork(work: Callable[[int], object]) -> tuple[int, int]:
    """Run the work, given the end of a pipe, in a child; return its id and the other end."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Newer Pythons warn where other threads run. The child needs nothing that they may hold.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reader)
            work(writer)
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    return child, reader


def collect(child: int, reader: int, *, kill_after: float | None = None) -> End:
    """Read what a child says until it ends, or kill it when its time has come."""
    said = []
    deadline = None if kill_after is None else time.monotonic() + kill_after
    while True:
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([reader], [], [], left)[0]:
                os.kill(child, signal.SIGKILL)
                deadline = None
        data = os.read(reader, 2**16)
        if not data:
            break
        said.append(data)
    os.close(reader)
    return End(b"".join(said), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def play(
    kind: Kind,
    directory: Path,
    pipe: int,
    turns: int,
    watcher: Watcher = let_pass,
    witness: type[Witness] = Witness,
) -> None:
    """Run the script on a store and report, on a file system that somebody watches."""
    with kind.watched(directory, watcher) as open_backend:
        _play(open_backend, pipe, turns, witness)


def _play(
    open_backend: Callable[[], Backend], pipe: int, turns: int, witness: type[Witness] = Witness
) -> None:
    report = reporting(pipe)
    script.play(lambda: perdure.open(witness(open_backend(), report)), turns)


def program(directory: Path, turns: int, mode: str) -> tuple[list[str], dict[str, str]]:
    """Return the words and the environment that start this module as a program."""
    search = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    words = [sys.executable, "-B", "-m", "tests.promises.children"]
    return [*words, str(directory), str(turns), mode], {**os.environ, "PYTHONPATH": search}


def main(directory: str, turns: str, mode: str) -> None:
    _play(MODES[mode].opener(Path(directory)), sys.stdout.fileno(), int(turns))


if __name__ == "__main__":
    main(*sys.argv[1:])
