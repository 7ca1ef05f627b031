"""Large results are stored once and come back exactly; the model is told in the right words."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.core.effects import calls as calls_module
from perdure.core.effects.calls import CallArguments
from perdure.core.effects.results import SHARED_MIN, restore_result, result_text, shared_form
from perdure.journal.records import EffectOutcome
from perdure.sync.tools import Tool

LONG = "policy 4711: escalate. é " * 400
ROWS = [{"id": n, "amount": n * 1.5, "note": f"claim {n}"} for n in range(200)]


def calls(*names: str) -> dict[str, Any]:
    found = [
        {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        for n, name in enumerate(names)
    ]
    return {"role": "assistant", "content": None, "tool_calls": found}


def fetch() -> str:
    return LONG


def query() -> list[dict[str, Any]]:
    return ROWS


def brief() -> str:
    return "ok"


def settled(session: perdure.Session) -> list[EffectOutcome]:
    found = [record.content for record in session.records()]
    return [content for content in found if isinstance(content, EffectOutcome)]


def test_a_large_result_stands_in_its_message_only() -> None:
    with perdure.open("memory:") as store:
        session = store.session("s")
        with session.turn("go") as turn:
            turn.append(calls("fetch", "query", "brief"))
            told = session.run_tool_calls(None, [fetch, query, brief], parallel=1)
        assert [one.shared_form for one in settled(session)] == ["text", "json", ""]
        assert [one.result for one in settled(session)] == [None, None, "ok"]
        assert told[0]["content"] == LONG
        assert [one.result for one in session.effects.list()] == [LONG, ROWS, "ok"]
        session.verify()


def test_it_is_served_again_exactly(tmp_path: Path) -> None:
    """The answer was lost with the process, which comes back to a call that was recorded."""
    with perdure.open(tmp_path / "s.db") as store:
        session = store.session("s")
        entered = session.turn("go").__enter__()
        entered.append(calls("fetch", "query"))
        session.run_tool_calls(None, [fetch, query])
        identities = [one.identity for one in settled(session)]
    with perdure.open(tmp_path / "s.db") as store:
        session = store.session("s")
        with session.interrupted[0]:
            tools: list[Tool[[], Any]] = [session.tool(fetch), session.tool(query)]
            for tool, identity, result in zip(tools, identities, [LONG, ROWS], strict=True):
                packed, digest = calls_module.encode_arguments(session._replica, {})
                call = calls_module.CallRequest(identity, tool.name, packed, digest, "unsafe")
                turn = calls_module.active_turn(session._handle, tool.name)
                assert tool.make(call, CallArguments({}, (), {}), turn) == result


def test_it_is_the_same_in_an_event_loop() -> None:
    async def fetch_slowly() -> str:
        return LONG

    async def run() -> None:
        async with perdure.open_async("memory:") as store:
            session = await store.session("s")
            async with session.turn("go") as turn:
                await turn.append(calls("fetch_slowly"))
                await session.run_tool_calls(None, [fetch_slowly])
            (found,) = await session.effects.list()
            assert found.result == LONG
            kinds = [record.content async for record in session.records()]
            assert [c.shared_form for c in kinds if isinstance(c, EffectOutcome)] == ["text"]

    asyncio.run(run())


def test_what_is_large_is_stored_once() -> None:
    backend = MemoryBackend()
    with perdure.open(backend) as store:
        session = store.session("s")
        with session.turn("go") as turn:
            turn.append(calls("fetch"))
            session.run_tool_calls(None, [fetch])
        bodies = b"".join(entry.body or b"" for entry in backend.read("s"))
    assert bodies.count(b"policy 4711") == 400


def test_what_a_message_does_not_tell_word_for_word_stays_in_the_outcome() -> None:
    message = {"role": "tool", "tool_call_id": "c", "content": LONG}
    assert shared_form(LONG, message) == "text"
    assert shared_form(LONG + "!", message) == ""
    assert shared_form("x" * (SHARED_MIN - 1), {**message, "content": "x" * (SHARED_MIN - 1)}) == ""
    assert shared_form({"$decimal": "1"}, {**message, "content": " " * SHARED_MIN}) == ""


@pytest.mark.parametrize(
    "message",
    [
        {"role": "tool", "tool_call_id": "c", "content": LONG},
        {"type": "function_call_output", "call_id": "c", "output": LONG},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": LONG}]},
        {
            "role": "user",
            "parts": [{"function_response": {"name": "f", "response": {"result": LONG}}}],
        },
    ],
)
def test_every_format_tells_its_text(message: dict[str, Any]) -> None:
    assert result_text(message) == LONG
    outcome = EffectOutcome(effect="e", identity="i", state="succeeded", shared_form="text")
    found = restore_result(outcome, message)
    assert found is not None
    assert found.result == LONG
    assert restore_result(outcome, {"role": "tool", "content": None}) is None


def test_only_failures_are_told_as_errors() -> None:
    """A result that succeeded is not marked as an error, in the formats that have such a mark."""

    def boom() -> str:
        raise ValueError("no")

    anthropic = {
        "role": "assistant",
        "content": [
            {"type": "tool_use", "id": "a", "name": "brief", "input": {}},
            {"type": "tool_use", "id": "b", "name": "boom", "input": {}},
            {"type": "tool_use", "id": "c", "name": "gone", "input": {}},
        ],
    }
    gemini = {"role": "model", "parts": [{"function_call": {"name": "brief", "args": {}}}]}
    with perdure.open("memory:") as store:
        session = store.session("s")
        with session.turn("go") as turn:
            turn.append(anthropic)
            told = session.run_tool_calls(None, [brief, boom], parallel=1)
            assert [one["content"][0].get("is_error") for one in told] == [None, True, True]
            turn.append(gemini)
            (told_to,) = session.run_tool_calls(None, [brief])
            response = told_to["parts"][0]["function_response"]
            assert response["response"] == {"result": "ok"}
