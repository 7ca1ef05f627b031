"""perdure replay: the agent of a module, on the record of a session."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import perdure
from tests.cli.support import invoke, objects, start

AGENT = """
import asyncio, platform, socket

CALLS = []

class DeclinedError(Exception): ...

def charge(amount):
    CALLS.append(amount)
    if amount > 100:
        raise DeclinedError("too much")
    return {"charged": amount}

def run(session, amount=5):
    print("hello from the agent")
    tool = session.tool(charge)
    with session.turn("Pay.", id="turn-1") as turn:
        turn.append({"role": "assistant", "content": str(tool(amount))})
        try:
            tool(500)
        except DeclinedError as error:
            turn.append({"role": "assistant", "content": str(error)})

def changed(session):
    run(session, amount=6)

def evil(session):
    with session.turn("Pay.\\x1b[2J", id="turn-1"): ...

def asking_for_the_machine(session):
    platform.platform()
    run(session)

def leaving(session):
    raise SystemExit(0)

def reaching(session):
    socket.getaddrinfo("localhost", 80)

async def run_async(session):
    tool = session.tool(charge)
    async with session.turn("Pay.", id="turn-1") as turn:
        await turn.append({"role": "assistant", "content": str(await tool(5))})
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "clerk.py").write_text(AGENT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("clerk", None)


@pytest.fixture
def clerk(folder: Path) -> Any:
    importlib.invalidate_caches()
    module = importlib.import_module("clerk")
    with perdure.open(folder / "agents.db") as store:
        module.run(store.session("s"))
    return module


def test_an_agent_that_does_the_same_is_told_and_calls_nothing(clerk: Any, folder: Path) -> None:
    result = invoke("agents.db", "replay", "s", "clerk:run", "--error", "clerk:DeclinedError")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "identical"
    assert "2 calls served from the record: charge 2" in result.stdout
    assert clerk.CALLS == [5, 500]
    with perdure.open(folder / "agents.db") as store:
        position = store.session("s").position
    (told,) = objects(invoke("agents.db", "replay", "s", "clerk:run", "--error",
                             "clerk:DeclinedError", "--json"))  # fmt: skip
    assert (told["identical"], told["end"], told["divergence"]) == (True, position, None)
    assert told["served"] == {"charge": 2}


def test_the_first_difference_is_shown_with_exit_code_1(clerk: Any, folder: Path) -> None:
    result = invoke("agents.db", "replay", "s", "clerk:changed")
    assert result.exit_code == 1
    assert "different" in result.stdout
    assert "- recorded: 5\n" in result.stdout
    assert "+ now:      6\n" in result.stdout
    (told,) = objects(invoke("agents.db", "replay", "s", "clerk:changed", "--json"))
    assert told["divergence"]["path"] == "$.arguments.amount"
    evil = invoke("agents.db", "replay", "s", "clerk:evil")
    assert evil.exit_code == 1
    assert "\x1b" not in evil.stdout
    reaching = invoke("agents.db", "replay", "s", "clerk:reaching")
    assert "blocked: socket.getaddrinfo" in reaching.stdout
    assert clerk.CALLS == [5, 500]


def test_async_functions_and_parts_are_replayed(clerk: Any, folder: Path) -> None:
    places = ["--start", "turn-1", "--end", "4"]
    result = invoke("agents.db", "replay", "s", "clerk:run_async", *places)
    assert result.exit_code == 0, result.stdout
    assert "identical, up to the end of the record" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["s", "clerk"], 2, "write module:function"),
        (["s", "nobody:run"], 2, "cannot be imported"),
        (["s", "..clerk:run"], 2, "cannot be imported"),
        (["s", "torn:run"], 2, "SyntaxError: "),
        (["s", "broken:run"], 2, "ZeroDivisionError: division by zero ("),
        (["s", "leaving:run"], 2, "cannot be imported: SystemExit: 0"),
        (["s", "clerk:walk"], 2, "there is no walk in clerk"),
        (["s", "clerk:run", "--error", "clerk:CALLS"], 2, "must be exception types"),
        (["s", "clerk:run", "--error", "clerk:charge"], 2, "must be exception types"),
        (["s", "clerk:CALLS"], 2, "a function of a session"),
        (["other", "clerk:run"], 1, "not found"),
        (["s", "clerk:run", "--start", "999"], 2, "positions 0 to"),
        (["s", "clerk:run", "--ignore", "word"], 2, "no kind of record"),
    ],
)
def test_nonsense_is_refused_in_a_line(
    clerk: Any, folder: Path, arguments: list[str], code: int, says: str
) -> None:
    (folder / "torn.py").write_text("def run(:")
    (folder / "broken.py").write_text("1 / 0")
    (folder / "leaving.py").write_text("raise SystemExit(0)")
    result = invoke("agents.db", "replay", *arguments)
    assert (result.exit_code, says in result.stderr) == (code, True), result.stderr


def test_an_agent_that_exits_is_no_success(clerk: Any, folder: Path) -> None:
    result = invoke("agents.db", "replay", "s", "clerk:leaving")
    assert result.exit_code == 1
    assert "the agent raised SystemExit: 0" in result.stdout


def test_the_real_command_finds_the_module_beside_it(clerk: Any, folder: Path) -> None:
    command = ["replay", "s", "clerk:run", "--store", "agents.db", "--json"]
    with start(*command, "--error", "clerk:DeclinedError", folder=folder) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert out.count("\n") == 1
    assert "hello from the agent" in err


def test_asking_for_the_machine_is_not_refused(clerk: Any, folder: Path) -> None:
    command = ["replay", "s", "clerk:asking_for_the_machine", "--store", "agents.db"]
    with start(*command, "--error", "clerk:DeclinedError", folder=folder) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, out + err
    assert "refused" not in out
