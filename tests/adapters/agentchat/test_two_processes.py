"""Two processes at one team: one goes on, the other is told, and nothing is mixed."""

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.adapters.agentchat import persist
from tests.adapters.agentchat.scripts import SESSION, TASKS, closing
from tests.adapters.agentchat.teams import Client, Ledger, World, round_robin
from tests.adapters.agentchat.test_kills import COMMAND, ROOT, Servers

pytestmark = pytest.mark.durability


@pytest.fixture
def url() -> Iterator[str]:
    import subprocess

    pipe = subprocess.PIPE
    with subprocess.Popen(COMMAND, stdin=pipe, stdout=pipe, text=True, cwd=ROOT) as process:
        yield Servers(process).first()
        assert process.stdin is not None
        process.stdin.close()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


class Worker:
    """A process that runs a task, waits in each tool until it may go on, and says how it ended."""

    def __init__(self, name: str, folder: Path, url: str) -> None:
        self._inside, self._go = folder / f"{name}.inside", folder / f"{name}.go"
        self._ended = folder / f"{name}.ended"
        self._folder, self._url = folder, url
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._ended.write_text(self._work())
            finally:
                os._exit(0)

    def _work(self) -> str:
        try:
            asyncio.run(self._run())
        except Exception as error:  # noqa: BLE001 - the test reads it
            return f"{type(error).__name__}: {error}"
        return "done"

    async def _run(self) -> None:
        ledger, client = Ledger(self._folder / "ledger", self._wait), Client(self._url)
        async with closing(client), perdure.open_async(self._folder / "s.db") as store:
            session, team = await store.session(SESSION), round_robin(World(client, ledger))
            async with persist(session, team, tools={"charge": "idempotent"}) as durable:
                await durable.run(task=TASKS[0])

    def _wait(self) -> None:
        self._inside.touch()
        until(self._go.exists)

    def inside(self) -> None:
        """Wait until it is in a tool."""
        until(self._inside.exists)

    def ended(self) -> str:
        """Let it go on, and return how it ended."""
        self._go.touch()
        os.waitpid(self.pid, 0)
        return self._ended.read_text()


def messages(folder: Path) -> Any:
    with perdure.open(folder / "s.db") as store:
        session = store.session(SESSION)
        session.verify()
        assert session.interrupted == ()
        return [*session.messages()], len(Ledger(folder / "ledger").lines)


def test_who_runs_again_takes_the_run_over_and_the_first_is_told(url: str, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    assert Worker("a", whole, url).ended() == "done"
    expected = messages(whole)
    first = Worker("a", tmp_path, url)
    first.inside()
    assert Worker("b", tmp_path, url).ended() == "done"
    assert messages(tmp_path) == expected
    assert first.ended().startswith(
        "ConflictError: conflict in session 'claim-4711' (another process"
    )
    assert messages(tmp_path) == expected  # Nothing of the first came after, and nothing twice.
