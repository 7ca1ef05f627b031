"""Processes that run errands, one after the other, until one of them lives to the end.

Each tells, before it goes on, what its predecessors left in the record. Run as a program (`python
-m tests.promises.errand_runs DIRECTORY files unsafe blocking`) it can be killed by `strace`.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import perdure
from perdure.backends.offload import ThreadedBackend
from tests.promises import children, errands, world
from tests.promises.children import End
from tests.promises.errands import Scenario
from tests.promises.kinds import MODES, Kind, Opener
from tests.promises.world import Boundary, Death, Line, Reaper, World

SESSION = "errands"
SYSTEM_CALLS = ("write",)  # What the world is changed with, besides those of the store.

Agent = Callable[[Any, World, Scenario], Any]


class Found(NamedTuple):
    """What a process found: the state of each call in the record, and what had happened."""

    states: dict[str, str]
    lines: list[Line]


class Told(NamedTuple):
    """What a process told before it ended or died."""

    found: dict[str, str] | None
    deaths: list[Death]


def clear(kind: Kind, directory: Path) -> None:
    kind.clear(directory)
    ledger(directory).unlink(missing_ok=True)


def ledger(directory: Path) -> Path:
    return directory / "world"


def play(
    opener: Opener,
    directory: Path,
    scenario: Scenario,
    report: Callable[[dict[str, Any]], object],
    reaper: Reaper | None = None,
    agent: Agent | None = None,
) -> None:
    """Run the errands, or what is left of them, on a store."""
    reaper = reaper or Reaper()
    outside = World(ledger(directory), reaper)
    backend = Boundary(opener(), reaper)
    if scenario.colour == "blocking":
        with perdure.open(backend) as store:
            session = store.session(SESSION)
            report({"found": states(session.effects.list())})
            (agent or errands.run)(session, outside, scenario)
    else:
        asyncio.run(_play_async(ThreadedBackend(backend), outside, scenario, report, agent))
    outside.close()
    report({"deaths": reaper.deaths()})


async def _play_async(
    backend: ThreadedBackend,
    outside: World,
    scenario: Scenario,
    report: Callable[[dict[str, Any]], object],
    agent: Agent | None,
) -> None:
    async with perdure.open_async(backend) as store:
        session = await store.session(SESSION)
        report({"found": states(await session.effects.list())})
        await (agent or errands.run_async)(session, outside, scenario)


def states(effects: list[Any]) -> dict[str, str]:
    """Return the state of each call, that of its last attempt."""
    return {effect.identity: effect.state for effect in effects}


def reporting(pipe: int) -> Callable[[dict[str, Any]], None]:
    def report(said: dict[str, Any]) -> None:
        data = json.dumps(said).encode() + b"\n"
        while data:
            data = data[os.write(pipe, data) :]

    return report


def told(said: bytes) -> Told:
    """Return what came out of the pipe; death may have cut it."""
    found, deaths = None, []
    for line in said.splitlines(keepends=True):
        if line.endswith(b"\n"):
            one = json.loads(line)
            found = one.get("found", found)
            deaths = [Death(*death) for death in one.get("deaths", ())]
    return Told(found, deaths)


def forked(
    kind: Kind,
    directory: Path,
    scenario: Scenario,
    death: Death | None = None,
    *,
    kill_after: float | None = None,
    agent: Agent | None = None,
    counting: bool = False,
) -> End:
    """Run the errands in a child that dies at a point, or when its time has come, or not at all."""
    watched = counting or (death is not None and death.of == "io")
    reaper = Reaper(death)

    def work(pipe: int) -> None:
        with _opener(kind, directory, reaper, watched=watched) as opener:
            play(opener, directory, scenario, reporting(pipe), reaper, agent)

    return children.collect(*children.fork(work), kill_after=kill_after)


@contextlib.contextmanager
def _opener(kind: Kind, directory: Path, reaper: Reaper, *, watched: bool) -> Iterator[Opener]:
    if not watched:
        yield kind.opener(directory)
        return
    with kind.watched(directory, reaper) as opener:
        yield opener


def straced(kind: Kind, directory: Path, scenario: Scenario, call: str, number: int) -> End:
    """Run the errands as a program that strace kills at the nth system call of a name."""
    search = os.pathsep.join([str(children.ROOT), *filter(None, sys.path)])
    program = [sys.executable, "-B", "-m", "tests.promises.errand_runs", str(directory)]
    trace = ["-e", f"trace={call}", "-e", "signal=none"]
    kill = ["-e", f"inject={call}:signal=KILL:when={number}"]
    words = ["strace", "-f", "-qq", "-o", os.devnull, *trace, *kill, *program, kind.name, *scenario]
    environment = {**os.environ, "PYTHONPATH": search}
    done = subprocess.run(
        words, cwd=children.ROOT, env=environment, capture_output=True, check=False, timeout=120
    )
    return End(done.stdout, done.returncode, done.stderr.decode(errors="replace")[-300:])


def happened(directory: Path) -> list[Line]:
    return world.read(ledger(directory))


def main(directory: str, kind: str, policy: str, colour: str) -> None:
    report = reporting(sys.stdout.fileno())
    place = Path(directory)
    play(MODES[kind].opener(place), place, Scenario(policy, colour), report)


if __name__ == "__main__":
    main(*sys.argv[1:])
