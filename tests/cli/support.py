"""A store with a bit of everything, the command line run in this process, and ways to do damage."""

import contextvars
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
from click.testing import CliRunner, Result

import perdure
from perdure.backends.digests import digest_of
from perdure.cli.__main__ import main

EVIL = "\x1b[2J\x1b]0;owned\x07 \u202egnp.exe \x9b31m \u2066x\u2069 \u200b \U000e0041 \x7f\x00"
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|[\x01\x02]")  # Of the output itself.
SNEAKY = "\x1b\x07\x9b\u202e\u2066\u2069\u200b\U000e0041\x7f\x00\r\u2028"


def said(text: object, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": text}


def invoke(path: Path | str | None, *arguments: str, **environment: str) -> Result:
    """Run a command on a store, in 80 columns, without colours."""
    store = [] if path is None else ["--store", str(path)]
    known = {"COLUMNS": "80", "PERDURE_URL": "", "NO_COLOR": "", "FORCE_COLOR": ""}
    result = CliRunner(env={**known, **environment}).invoke(main, [*arguments, *store])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def objects(result: Result) -> list[dict[str, Any]]:
    """Parse JSON lines, each of them pure ASCII."""
    assert result.stdout.isascii()
    return [json.loads(line) for line in result.stdout.splitlines()]


def start(*arguments: str, folder: Path, **options: Any) -> "subprocess.Popen[str]":
    """Start the real command in a process of its own."""
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8", "COLUMNS": "80", "PERDURE_URL": ""}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "perdure", *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        **options,
    )


def ticking() -> Callable[[], float]:
    """Return a clock that goes on by a minute at each look."""
    now = [1_767_225_600.0]  # The first moment of 2026.

    def look() -> float:
        now[0] += 60
        return now[0]

    return look


def fill(path: Path) -> Path:
    """Make a store with a conversation, a branch, values, notes, turns of all ends, and more."""
    with perdure.open(path, clock=ticking()) as store:
        claim = store.session("claim-4711")
        claim.append(said("You are a claims assistant.", "system"))
        arguments = '{"claim": 4711, "deep": true}'
        call = {"id": "call_1", "function": {"name": "lookup", "arguments": arguments}}
        with claim.turn("Draft a checklist.", correlation_id="req-9") as turn:
            turn.append({"role": "assistant", "content": None, "tool_calls": [call]})
            turn.append({**said('{"open": true}', "tool"), "tool_call_id": "call_1"})
            turn.append(said("1. Check coverage.", "assistant"), author="planner", recipient="bob")
        plan = {"step": 1, "why": "x" * 300}
        claim.set("plan", plan)
        claim.set("plan", {**plan, "step": 2})
        claim.note("checked by phone", author="operator")
        claim.label("vip")
        fail(claim, "charge", "req-10")
        claim.branch("what-if", at=5).append(said("What if?"))
        interrupt(claim, "And then?", "req-11")
        store.session("gone").append(said("x"))
        store.delete("gone", reason="asked for")
        store.session("empty-handed").note({"only": ["a", "note"]})
    return path


def interrupt(session: perdure.Session, message: str, correlation_id: str) -> None:
    """Begin a turn and never end it. The correlation id that it sets stays behind with it."""
    turn = session.turn(message, correlation_id=correlation_id)
    contextvars.copy_context().run(turn.__enter__)


class TerminalError(Exception):
    """What a turn fails with."""


def fail(session: perdure.Session, turn_id: str, correlation_id: str) -> None:
    try:
        with session.turn("Charge it.", correlation_id=correlation_id, id=turn_id):
            raise TerminalError("no answer \x1b[31m")  # noqa: TRY301 - a turn that fails.
    except TerminalError:
        pass


def damage(path: Path, sql: str, session: str = "claim-4711") -> None:
    """Change a store behind perdure's back; `:place` stands for the session."""
    db = apsw.Connection(str(path))
    place = db.execute("select id from head where name = ?", (session,)).get
    db.execute(sql, {"place": place} if ":place" in sql else None)
    db.close()


def write_as_newer(path: Path, session: str) -> None:
    """Change the only entry of a session to a newer version, and its head to that entry."""
    damage(
        path,
        "update entry set header = replace(header, '[1,', '[2,') where stream = :place",
        session,
    )
    with closing(apsw.Connection(str(path))) as db:
        place = db.execute("select id from head where name = ?", (session,)).get
        header = db.execute("select header from entry where stream = ?", (place,)).get
        db.execute("update head set digest = ? where id = ?", (digest_of(header.encode()), place))


def flip(path: Path, text: bytes) -> None:
    """Flip one bit of the file, in the first place where a text stands."""
    data = bytearray(path.read_bytes())
    data[data.index(text)] ^= 1
    path.write_bytes(data)
