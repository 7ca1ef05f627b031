"""Children that run a script and may die at a place, and what the model server was sent."""

import json
import logging
import os
import signal
import subprocess
import sys
import traceback
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import perdure
from tests.adapters.openai.scripts import Hooks

COMMAND = [sys.executable, "-m", "perdure.testing.model_server", "--strict", "--until-eof"]

Script = Callable[[str, str, Path, Hooks], None]


@contextmanager
def serving() -> Iterator[str]:
    """Run a model server in a process of its own; give its address."""
    pipe = subprocess.PIPE
    with subprocess.Popen(COMMAND, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        yield process.stdout.readline().strip()
        process.stdin.close()
        assert process.wait(60) == 0


def prompts(url: str) -> list[Any]:
    """Return the prompts that a server was sent, in order."""
    control = url.removesuffix("/v1") + "/test/requests"
    with urllib.request.urlopen(control, timeout=60) as response:  # noqa: S310 - ours
        requests = json.load(response)
    return [one["body"].get("messages") or one["body"].get("input") for one in requests]


class Killer(Hooks, logging.Handler):
    """Dies at the n-th time that something happens; counts it otherwise."""

    def __init__(self, what: str, at: int) -> None:
        logging.Handler.__init__(self, logging.INFO)
        self._what, self._at = what, at
        self.counts: dict[str, int] = {}

    def _reach(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1
        if what == self._what and self.counts[what] == self._at:
            os.kill(os.getpid(), signal.SIGKILL)

    def sending(self) -> None:
        self._reach("sending")

    def received(self) -> None:
        self._reach("received")

    def chunk(self) -> None:
        self._reach("chunk")

    def emit(self, record: logging.LogRecord) -> None:
        """An append is told of when it is durable."""
        if getattr(record, "event", "") == "append":
            self._reach("append")


def child(script: Script, form: str, url: str, path: Path, *, what: str = "", at: int = 0) -> Any:
    """Run a script in a child; return what it counted, or None if it was killed."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Newer Pythons warn where other threads run. The child needs nothing that they may hold.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reader)
            killer = Killer(what, at)
            logger = logging.getLogger("perdure")
            logger.setLevel(logging.INFO)
            logger.addHandler(killer)
            script(form, url, path, killer)
            os.write(writer, json.dumps(killer.counts).encode())
            code = 0
        except BaseException:  # noqa: BLE001 - the parent shows it
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == -signal.SIGKILL:
        return None
    assert code == 0, f"the child ended with {code}"
    return json.loads(said)


def messages(path: Path) -> list[dict[str, Any]]:
    with perdure.open(path) as store:
        session = store.session("claim-4711")
        assert session.interrupted == ()
        session.verify()
        return list(session.messages())
