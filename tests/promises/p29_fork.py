"""A program for P29 that forks in the middle of its work.

It is called as `p29_fork scenario address directory seed`.

What was acknowledged is written, line by line, to a file of each process in the directory; who
judges it reads the files when all have ended. A process that hangs says where and exits.
"""

import faulthandler
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import perdure
from perdure.errors import ConflictError, UnavailableError

SCENARIOS = ("idle", "busy", "storm", "turn")
LEAST = 8
THREADS = 16
PATIENCE = 250


class Writer:
    """Appends to sessions of one store and keeps account of it, in whichever process it is."""

    def __init__(self, address: str, directory: Path) -> None:
        self._directory = directory
        self.store = perdure.open(address)
        self.shared = self.store.session("shared")

    def say(self, session: perdure.Session, text: str) -> None:
        while True:
            try:
                session.append({"role": "user", "content": text}, id=text)
            except (ConflictError, UnavailableError):
                continue
            break
        with (self._directory / f"acked-{os.getpid()}").open("a") as file:
            file.write(f"{session.id}\t{text}\n")

    def go_on(self, who: str, count: int, session: perdure.Session | None = None) -> None:
        """Use handles from before the fork, and a new one."""
        for number in range(count):
            self.say(self.shared, f"{who}-{number}")
            if session is not None:
                self.say(session, f"{who}-{number}")
            self.say(self.store.session(f"own {who}"), f"{number}")


def child_of(work: Callable[[], None]) -> int:
    """Fork; the child works and exits, the parent goes on at once."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.alarm(PATIENCE)  # A child does not inherit the parent's.
        work()
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
        raise
    finally:
        sys.stderr.flush()
        os._exit(code)


def ended_well(children: list[int]) -> bool:
    return all(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 for child in children)


def idle(writer: Writer, draw: random.Random) -> list[int]:
    """Nothing is under way when the process forks, and a child forks as well."""
    writer.go_on("before", 2)

    def work() -> None:
        writer.go_on("child", 3)
        grandchild = child_of(lambda: writer.go_on("grandchild", 2))
        writer.go_on("child again", 1)
        if not ended_well([grandchild]):
            raise RuntimeError("the grandchild failed")

    child = child_of(work)
    writer.go_on("parent", draw.randint(1, 4))
    return [child]


def turn(writer: Writer, draw: random.Random) -> list[int]:
    """The process forks inside a turn, which the parent goes on with."""
    session = writer.store.session("turning")
    with session.turn({"role": "user", "content": "question"}, id="turn") as open_turn:
        child = child_of(lambda: writer.go_on("child", draw.randint(1, 3)))
        open_turn.append({"role": "user", "content": "answer"})
    writer.go_on("parent", 3)
    return [child]


def busy(writer: Writer, draw: random.Random) -> list[int]:
    """Threads are inside appends when the main thread forks."""
    threads = _threads(writer, lambda _: None)
    children = []
    for number in range(3):
        time.sleep(draw.random() / 50)
        children.append(child_of(lambda number=number: writer.go_on(f"child {number}", 2)))  # type: ignore[misc]
    _join(threads)
    return children


def storm(writer: Writer, draw: random.Random) -> list[int]:
    """The threads themselves fork, several at the same time."""
    children: list[int] = []
    forking = set(draw.sample(range(THREADS), 5))

    def fork(number: int) -> None:
        if number in forking:
            children.append(child_of(lambda: writer.go_on(f"child {number}", 1)))

    _join(_threads(writer, fork))
    return children


def _threads(writer: Writer, between: Callable[[int], None]) -> list[threading.Thread]:
    def work(number: int) -> None:
        session = writer.store.session(f"thread {number}")
        writer.go_on(f"thread {number} before", 1, session)
        between(number)
        writer.go_on(f"thread {number} after", 1, session)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    return threads


def _join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join()


def main() -> None:
    scenario, address, directory, seed = sys.argv[1:]
    # Not dump_traceback_later: its thread stays behind in a fork, and setting it again hangs.
    faulthandler.register(signal.SIGALRM, chain=True)
    signal.alarm(PATIENCE)
    writer = Writer(address, Path(directory))
    run = {"idle": idle, "turn": turn, "busy": busy, "storm": storm}[scenario]
    children = run(writer, random.Random(seed))
    good = ended_well(children)
    writer.store.close()
    sys.exit(0 if good else 3)


if __name__ == "__main__":
    main()
