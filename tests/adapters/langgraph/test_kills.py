"""A process that dies anywhere, and another that continues: an unsafe tool runs once at most.

The same trials on LangGraph's own saver show what it does; `python -m
tests.adapters.langgraph.test_kills` counts both at all places, for the page.
"""

import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.adapters.langgraph import PerdureSaver
from tests.adapters.langgraph import scripts
from tests.adapters.langgraph.graphs import chat, config
from tests.adapters.openai.killing import child, serving
from tests.adapters.openai.scripts import Hooks

pytestmark = [pytest.mark.durability, pytest.mark.timeout(3_600)]

MODES = ("sync", "async", "exit")
# How many of the places where a program can die are tried; "all" for each of them.
KILLS = os.environ.get("PERDURE_KILLS", "1")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving() as url:
        for form in ("own-sync", "official-sync"):  # Children need not import again.
            scripts.run(form, url, tmp_path_factory.mktemp("warm") / "a.db", Hooks())
        yield url


def places(counts: dict[str, int]) -> list[tuple[str, int]]:
    """Return places to die at: every one inside the tool, and some or all of the others."""
    every = [(what, at) for what, count in sorted(counts.items()) for at in range(1, count + 1)]
    if KILLS == "all":
        return every
    inside = [place for place in every if place[0] == "chunk"]
    others = [place for place in every if place[0] != "chunk"]
    step = max(len(others) // int(KILLS), 1)
    return [*inside, *others[step // 2 :: step]]


class Seen:
    """What is left of a run: the ledger, the record of the tool, the messages."""

    def __init__(self, path: Path) -> None:
        self.charged = scripts.ledger_of(path)
        with PerdureSaver(path) as saver:
            self.effects = [effect.state for effect in saver.tool_calls("t").effects.list()]
            state = chat(saver).get_state(config())
            self.messages = state.values.get("messages", [])
            self.next = state.next
            session = saver.session("t")
            session.verify()
            self.shown = [message["content"] for message in session.messages()]
            self.positions = session.position, saver.tool_calls("t").position


def judge(path: Path, what: str, at: int) -> tuple[str, Seen]:
    """Return what is wrong after a kill and a second run, "" if nothing is."""
    seen = Seen(path)
    if len(seen.charged) > 1:
        return f"charged {len(seen.charged)} times", seen
    if not seen.charged and seen.effects != ["unknown"]:
        return f"never charged, and the record says {seen.effects}", seen
    if what == "chunk" and seen.effects != ["unknown"]:
        return f"died inside the tool, and the record says {seen.effects}", seen
    if not seen.messages or seen.next or seen.messages[-1].type != "ai":
        return f"the second run did not end: {[one.type for one in seen.messages]}", seen
    if seen.shown != [message.content for message in seen.messages]:
        return "the session does not show what the graph has", seen
    return "", seen


@pytest.mark.parametrize("mode", MODES)
def test_a_killed_agent_never_runs_an_unsafe_tool_twice(
    mode: str, url: str, tmp_path: Path
) -> None:
    form = f"own-{mode}"
    counts = child(scripts.run, form, url, tmp_path / "whole.db")
    assert {"append", "chunk", "sending", "received"} <= counts.keys()
    assert judge(tmp_path / "whole.db", "", 0)[0] == ""
    for what, at in places(counts):
        path = tmp_path / f"{what}-{at}.db"
        assert child(scripts.run, form, url, path, what=what, at=at) is None
        before = scripts.ledger_of(path)
        child(scripts.run, form, url, path)
        problem, second = judge(path, what, at)
        assert problem == "", (what, at)
        assert not before or second.charged == before
        child(scripts.run, form, url, path)
        third = Seen(path)
        assert third.positions == second.positions, "the third run changes nothing"
        assert third.messages == second.messages


def trial(form: str, url: str, path: Path, what: str, at: int) -> str:
    """Kill a run, run it again; say in one word what became of the charge."""
    child(scripts.run, form, url, path, what=what, at=at)
    child(scripts.run, form, url, path)
    charged = len(scripts.ledger_of(path))
    if charged > 1:
        return "twice"
    unknown = form.startswith("own") and "unknown" in Seen(path).effects
    return f"{('never', 'once')[charged]}{', recorded as unknown' if unknown else ''}"


def main() -> None:
    with serving() as url, tempfile.TemporaryDirectory() as folder:
        for form in [f"{saver}-{mode}" for saver in ("official", "own") for mode in MODES]:
            warm = Path(folder) / f"{form}.db"
            counts: Any = child(scripts.run, form, url, warm)
            every = [(what, at) for what, count in counts.items() for at in range(1, count + 1)]
            ends = Counter(
                trial(form, url, Path(folder) / f"{form}-{what}-{at}.db", what, at)
                for what, at in every
            )
            print(form, len(every), dict(ends), flush=True)


if __name__ == "__main__":
    main()
