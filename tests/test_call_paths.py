"""How long the ways through the package are: an append, a window and a tool call.

The three calls that every agent makes again and again are traced in a warm session of a SQLite
store. Only Python calls of functions in `perdure` count, in the order in which they happen;
resuming a generator counts as a call.

- modules: how many different modules of the package run.
- hops: how often a call is in another module than the call before it, whether that is a call down
  or the next call after a return. The first call is a hop too.

A reader who follows the call with a debugger changes the file that often. The bounds are close to
the present figures: code that needs more of them should be straightened, not fused.
"""

import os
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

import perdure
from perdure.core.replay.guard import Guard

ROOT = str(Path(perdure.__file__).parent) + os.sep


class Calls(NamedTuple):
    """The calls of one traced function: the module and the function, in order."""

    calls: list[tuple[str, str]]

    @property
    def modules(self) -> int:
        return len({module for module, _ in self.calls})

    @property
    def hops(self) -> int:
        modules = ["", *(module for module, _ in self.calls)]
        return sum(before != after for before, after in pairwise(modules))

    def __str__(self) -> str:
        lines = "\n".join(f"  {module} {name}" for module, name in self.calls)
        return f"{self.modules} modules, {self.hops} hops, {len(self.calls)} calls:\n{lines}"


def traced(function: Callable[[], object]) -> Calls:
    """Call a function and return the calls in `perdure` that it makes."""
    calls: list[tuple[str, str]] = []

    def on_event(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOT):
            calls.append((code.co_filename.removeprefix(ROOT), code.co_name))

    sys.setprofile(on_event)
    try:
        function()
    finally:
        sys.setprofile(None)
    return Calls(calls)


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[perdure.Session]:
    """A session that has written and read before, with four messages."""
    monkeypatch.setattr(Guard, "used", False)  # After a replay, every call checks its guard.
    with perdure.open(tmp_path / "s.db") as store:
        session = store.session("s")
        for number in range(4):
            session.append({"role": "user", "content": f"message {number}"})
        session.messages(max_tokens=1000, format="openai.chat")
        yield session


def test_an_append_is_a_short_way(session: perdure.Session) -> None:
    calls = traced(lambda: session.append({"role": "user", "content": "another"}))
    assert calls.modules <= 20, calls
    assert calls.hops <= 33, calls
    assert list(session.messages(last=1)) == [{"role": "user", "content": "another"}]


def test_a_window_is_a_short_way(session: perdure.Session) -> None:
    calls = traced(lambda: session.messages(max_tokens=1000, format="openai.chat"))
    assert calls.modules <= 24, calls
    assert calls.hops <= 130, calls


def test_a_tool_call_is_a_short_way(session: perdure.Session) -> None:
    double = session.tool(lambda number: 2 * number, name="double")
    results: list[int] = []
    with session.turn("Go."):
        double(1)
        calls = traced(lambda: results.append(double(2)))
    assert calls.modules <= 24, calls
    assert calls.hops <= 94, calls  # 3 of them compute a digest that is not stored.
    assert results == [4]
