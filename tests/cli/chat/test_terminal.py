"""`perdure chat` in a terminal: the choice, Ctrl-C, kills, and what is there afterwards."""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import perdure
from perdure.journal.records import Message
from perdure.testing import ModelServer

if os.name != "posix":
    pytest.skip("needs terminals and signals of POSIX", allow_module_level=True)

from tests.cli.terminal import CTRL_C, CTRL_D, Terminal

LONG = "[[len 600]] Tell me more."
PROMPT = "you> "


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


def chat(folder: Path, server: ModelServer, *arguments: str, columns: int = 80) -> Terminal:
    return Terminal(folder, "chat", *arguments, "--base-url", server.url, columns=columns)


def said(folder: Path, session: str) -> list[tuple[str, str, bool]]:
    """Who said what, and whether it was interrupted."""
    with perdure.open(folder / "agents.db") as store, store.resume(session) as found:
        contents = [record.content for record in found.records()]
    return [
        (one.message["role"], one.message["content"], one.interrupted)
        for one in contents
        if isinstance(one, Message)
    ]


def kinds(folder: Path, session: str) -> list[str]:
    with perdure.open(folder / "agents.db") as store, store.resume(session) as found:
        return [record.kind for record in found.records()]


def kept(folder: Path) -> str:
    """What the store has of an answer that is coming."""
    with perdure.open(folder / "agents.db") as store, store.resume("s1") as session:
        said = [
            taken.message["content"]
            for turn in session.interrupted
            for taken in turn.partial_messages()
        ]
    return " ".join(said)


def unwrapped(text: str) -> str:
    return " ".join(text.split())


def test_a_kill_in_the_middle_of_an_answer_loses_and_doubles_nothing(
    tmp_path: Path, server: ModelServer
) -> None:
    server.fault("slow", seconds=0.1, at=2)
    with chat(tmp_path, server, "s1") as terminal:
        terminal.wait_for(PROMPT)
        terminal.write("[[say Hello.]]")
        terminal.wait_for(f"Hello.\n\n{PROMPT}")
        terminal.write(LONG)
        terminal.wait_for("assistant (gpt-4o-mini)\n")
        while len(kept(tmp_path).split()) <= 3:
            terminal.wait_for(" ")
        terminal.kill()
    before = [("user", "[[say Hello.]]", False), ("assistant", "Hello.", False)]
    assert said(tmp_path, "s1") == [*before, ("user", LONG, False)]

    with chat(tmp_path, server, "s1") as terminal:
        told = terminal.wait_for(PROMPT)
        assert "The last turn was interrupted. The user's message:\n  [[len 600]] Tell me" in told
        so_far = told.split("partial answer of the assistant:\n")[1]
        so_far = so_far.split("\nEnter asks the model again")[0]
        terminal.write("")
        terminal.wait_for("assistant (gpt-4o-mini)\n")
        answer = terminal.wait_for(f"\n\n{PROMPT}")
        terminal.write("/quit")
        assert terminal.end() == 0
    _, first, second = server.requests
    assert first.body == second.body
    whole = unwrapped(answer.removesuffix(PROMPT))
    assert 3 < len(unwrapped(so_far).split()) < 600
    assert whole.startswith(unwrapped(so_far))
    (*earlier, (role, text, interrupted)) = said(tmp_path, "s1")
    assert earlier == [*before, ("user", LONG, False)]
    assert (role, unwrapped(text), interrupted) == ("assistant", whole, False)
    found = [kind for kind in kinds(tmp_path, "s1") if kind.startswith("turn.")]
    assert found == [
        *("turn.begun", "turn.completed"),
        *("turn.begun", "turn.continued", "turn.completed"),
    ]


def test_ctrl_c_stops_an_answer_and_keeps_it(tmp_path: Path, server: ModelServer) -> None:
    server.fault("hang", after_chunks=9, at=1, times=2)
    with chat(tmp_path, server, "s1") as terminal:
        terminal.wait_for(PROMPT)
        terminal.write(LONG)
        terminal.wait_for("assistant (gpt-4o-mini)\n")
        terminal.wait_for(" ")
        terminal.press(CTRL_C)
        shown = terminal.wait_for(PROMPT)
        assert re.search(r"\(stopped; \d+ characters kept\)\nEnter asks", shown)
        terminal.write("")  # Once more, with the same context, and stopped again.
        terminal.wait_for("assistant (gpt-4o-mini)\n")
        terminal.wait_for(" ")
        terminal.press(CTRL_C)
        terminal.wait_for(PROMPT)
        terminal.write("[[say Fine.]]")
        terminal.wait_for(f"Fine.\n\n{PROMPT}")
        terminal.rest()
        terminal.press(CTRL_C)
        assert terminal.end() == 0
        assert terminal.shown.endswith(f"To continue: perdure chat s1 --base-url {server.url}\n")
    first, second, third = server.requests
    assert first.body == second.body
    found = said(tmp_path, "s1")
    assert found[0] == ("user", LONG, False)
    assert found[-2:] == [("user", "[[say Fine.]]", False), ("assistant", "Fine.", False)]
    cut = found[1:-2]
    assert cut
    assert all((role, interrupted) == ("assistant", True) for role, _, interrupted in cut)
    assert third.body["messages"][0] == {"role": "user", "content": LONG}
    ends = [one for one in kinds(tmp_path, "s1") if one in {"turn.abandoned", "turn.completed"}]
    assert ends == ["turn.abandoned", "turn.completed"]


def test_enter_goes_on_after_a_dropped_stream(tmp_path: Path, server: ModelServer) -> None:
    server.fault("disconnect", after_chunks=5)
    with chat(tmp_path, server, "s1") as terminal:
        terminal.wait_for(PROMPT)
        terminal.write(LONG)
        shown = terminal.wait_for(f"\n{PROMPT}")
        assert "its text so far is kept.\nEnter asks the model again" in shown
        terminal.write("")
        terminal.wait_for("assistant (gpt-4o-mini)\n")
        terminal.wait_for(f"\n\n{PROMPT}")
        terminal.write("")
        terminal.wait_for("Every message has an answer: type a new one.")
        terminal.wait_for(PROMPT)
        terminal.press(CTRL_D)
        assert terminal.end() == 0
    first, second = server.requests
    assert first.body == second.body
    assert [role for role, *_ in said(tmp_path, "s1")] == ["user", "assistant"]


def test_ctrl_c_before_the_first_word_and_in_the_middle_of_a_line(
    tmp_path: Path, server: ModelServer
) -> None:
    server.fault("hang")
    with chat(tmp_path, server, "s1") as terminal:
        terminal.wait_for(PROMPT)
        terminal.write("Hello")
        terminal.wait_for("assistant (gpt-4o-mini)\n")
        while not server.requests:
            time.sleep(0.01)
        terminal.press(CTRL_C)
        terminal.wait_for("(stopped; no text was received)")
        terminal.wait_for(PROMPT)
        terminal.press(b"never sa")
        terminal.wait_for("never sa")
        terminal.rest()
        terminal.press(CTRL_C)
        terminal.wait_for(PROMPT)
        terminal.write("/drop")
        terminal.wait_for("The turn is abandoned.")
        terminal.wait_for(PROMPT)
        terminal.press(CTRL_D)
        assert terminal.end() == 0
    assert said(tmp_path, "s1") == [("user", "Hello", False)]
    assert "turn.abandoned" in kinds(tmp_path, "s1")


def test_a_session_is_chosen_by_number_or_name(tmp_path: Path, server: ModelServer) -> None:
    with perdure.open(tmp_path / "agents.db") as store:
        for name in ("older", "newer"):
            store.session(name).append({"role": "user", "content": f"I am {name}."})
        store.session("gone").append({"role": "user", "content": "x"})
        store.delete("gone")
    with chat(tmp_path, server) as terminal:
        shown = terminal.wait_for("Which session? ")
        assert re.search(r"  1  newer  1 message .+\n  2  older  1 message", shown)
        assert "gone" not in shown
        terminal.write("3")
        terminal.wait_for("Choose a number from 1 to 2.")
        terminal.wait_for("Which session? ")
        terminal.write("2")
        shown = terminal.wait_for(PROMPT)
        assert "It has 1 message. The last message, from the user:\n  I am older.\n" in shown
        terminal.write("")  # What was said last has no answer.
        terminal.wait_for(f"to 1 message.\n\n{PROMPT}")
        terminal.press(CTRL_D)
        assert terminal.end() == 0
    with chat(tmp_path, server) as terminal:
        terminal.wait_for("Which session? ")
        terminal.press(CTRL_D)
        assert terminal.end() == 0
    assert len(said(tmp_path, "older")) == 2


@pytest.mark.parametrize(("columns", "no_color"), [(80, ""), (120, "1")])
def test_lines_fit_and_colours_can_be_forbidden(
    tmp_path: Path, columns: int, no_color: str
) -> None:
    with Terminal(tmp_path, "chat", columns=columns, NO_COLOR=no_color) as terminal:
        shown = terminal.wait_for(PROMPT)
        assert "There is no OPENAI_API_KEY and no --base-url: a script answers, no LLM." in shown
        assert re.search(r"^chat-\S+, a new session, in sqlite:agents.db", shown, re.MULTILINE)
        terminal.write("Hello")
        terminal.wait_for(f"/help.\n\n{PROMPT}")
        for command in ("/help", "/tokens", "/nonsense", "/undo"):
            terminal.write(command)
            terminal.wait_for(f"\n\n{PROMPT}")
        terminal.write("/quit")
        assert terminal.end() == 0
        assert re.search(r"To continue: perdure chat chat-\S+-undo-1\n$", terminal.shown)
        assert max(map(len, terminal.shown.splitlines())) <= columns
        assert bool(re.search(rb"\x1b\[[0-9;]*m", terminal.raw)) != bool(no_color)
