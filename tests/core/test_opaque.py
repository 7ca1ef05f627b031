"""Opaque messages: kept as they are, returned as they were, and sent to no provider."""

import asyncio
from typing import Any

import pydantic
import pytest

import perdure
from perdure.errors import DivergenceError, UsageError
from perdure.formats.transcript import FORMATS
from perdure.journal.records import Message
from perdure.testing import violations
from tests.formats.streams import one_choice
from tests.formats.transcripts import chat_call
from tests.support import said, store_in_memory

ENVELOPE = {"__enc__": 1, "v": 1, "kid": "k1", "payload": "gAAAA"}
# Items that look like something, which they are not.
LOOKALIKES: list[dict[str, Any]] = [
    {},
    {"role": "system", "content": "Obey."},
    chat_call("c1", name="pay"),
    {"role": "tool", "tool_call_id": "c0", "content": "paid"},
    {"type": "function_call", "call_id": "c2", "name": "pay", "arguments": "{}"},
    {"role": 5, "content": {"a": [1]}},
    {"parts": [{"function_call": {"name": "pay", "args": {}}}]},
]


@pytest.mark.parametrize("item", [ENVELOPE, *LOOKALIKES], ids=repr)
def test_it_is_returned_as_it_was_and_left_out_for_providers(item: dict[str, Any]) -> None:
    store, backend = store_in_memory()
    session = store.session("s")
    session.append(said("before"))
    position = session.append(item, opaque=True)
    session.append(said("after"))
    again = perdure.open(backend).session("s")
    for one in (session, again):
        assert list(one.messages()) == [said("before"), item, said("after")]
        assert list(one.messages(last=2)) == [item, said("after")]
        assert len(one) == 3
        conversation = one._replica.state.conversation
        assert (conversation.calls, conversation.systems) == ({}, ())
        for format in FORMATS:
            shown = one.messages(format=format)
            assert [loss.position for loss in shown.losses] == [position]
            assert "an opaque message was left out" in shown.losses[0].what
            assert shown.interrupted_calls == ()
            assert violations(format, shown) == []
            assert "before" in str(shown)
            assert "after" in str(shown)
    again.verify()


def test_without_the_choice_it_is_refused_with_advice() -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    with pytest.raises(UsageError, match="opaque=True"):
        session.append(ENVELOPE)
    with pytest.raises(UsageError, match="must be a dict, or export one, not a str"):
        session.append("text", opaque=True)
    with pytest.raises(UsageError, match=r"\$\.a"):
        session.append({"a": {1}}, opaque=True)
    assert session.position == 0


class Item(pydantic.BaseModel):
    """An item of a framework's own."""

    kind: str = "memory"


def test_an_object_is_kept_as_its_data() -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    session.append(Item(), ENVELOPE, opaque=True)
    assert list(session.messages()) == [{"kind": "memory"}, ENVELOPE]


def test_it_is_one_of_the_messages_of_a_turn_a_batch_and_an_id() -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    with session.turn("go") as turn:
        turn.append(ENVELOPE, opaque=True, author="seat")
        with turn.batch() as batch:
            batch.append(ENVELOPE, opaque=True)
            batch.append(said("done", "assistant"))
    position = session.append(ENVELOPE, id="e-1", opaque=True)
    assert session.append(ENVELOPE, id="e-1", opaque=True) == position
    with pytest.raises(DivergenceError):
        session.append({**ENVELOPE, "v": 2}, id="e-1", opaque=True)
    contents = [record.content for record in session.records()]
    opaque = [one for one in contents if isinstance(one, Message) and one.opaque]
    assert [(one.author, bool(one.turn)) for one in opaque] == [
        ("seat", True),
        ("", True),
        ("", False),
    ]
    assert len(session.messages(format="openai.chat")) == 2


def test_it_is_the_same_in_an_event_loop() -> None:
    async def main() -> None:
        async with perdure.open_async("memory:") as store:
            session = await store.session("s")
            async with session.turn("go") as turn:
                await turn.append(ENVELOPE, opaque=True)
            await session.append(ENVELOPE, opaque=True)
            assert list(await session.messages()) == [said("go"), ENVELOPE, ENVELOPE]
            shown = await session.messages(format="anthropic")
            assert len(shown) == 1
            assert len(shown.losses) == 2

    asyncio.run(main())


def test_a_window_has_as_many_messages_as_without_it() -> None:
    store = perdure.open("memory:", tokens="gpt-4o")
    session = store.session("s")
    for number in range(4):
        session.append(said(f"question {number}"))
        session.append({**ENVELOPE, "content": "word " * 900}, opaque=True)
    shown = session.messages(format="openai.chat", max_messages=3)
    assert [message["content"] for message in shown] == [f"question {n}" for n in (1, 2, 3)]
    shown = session.messages(format="openai.chat", max_tokens=60)
    assert len(shown) == 4
    assert shown.tokens is not None
    assert shown.tokens < 60
    assert len(session.messages(max_messages=4)) == 4  # As they were given: every one counts.
    assert len(session.messages(max_tokens=60)) == 8  # They are not for a model.


def test_it_ends_no_answer_and_answers_no_call() -> None:
    """Of one answer of the Responses API: the reasoning stays with what it led to."""
    store, _ = store_in_memory()
    session = store.session("s")
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "e"}
    call = {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "c1",
        "name": "pay",
        "arguments": "{}",
    }
    session.append(said("go"), reasoning)
    session.append(ENVELOPE, opaque=True)
    session.append(call)
    session.append({"tool_call_id": "c1", "content": "paid"}, opaque=True)
    shown = session.messages(format="openai.responses")
    assert violations("openai.responses", shown) == []
    assert [item.get("type") for item in shown] == [
        None,
        "reasoning",
        "function_call",
        "function_call_output",
    ]
    assert [one.id for one in shown.interrupted_calls] == ["c1"]
    assert "c1" in session._replica.state.conversation.calls
    assert session.messages(format="openai.responses", max_messages=4).truncated_before == 0


def test_it_replaces_no_answer_that_was_cut() -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    with session.turn("go") as turn:
        list(turn.stream([one_choice(0, {"role": "assistant", "content": "one "})]))
        turn.append(ENVELOPE, opaque=True)
        assert turn.is_partial
    assert [m["content"] for m in session.messages(format="openai.chat")] == ["go", "one "]


def test_it_is_no_answer_of_a_turn_and_no_call_to_make() -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    lookalike = {"role": "assistant", "content": "not the answer"}
    with session.turn("go", id="t") as turn:
        turn.append(chat_call("c1", name="pay"))
        (told,) = session.run_tool_calls(None, {"pay": lambda a: f"paid {a}"})
        turn.append({"role": "tool", "tool_call_id": "c1", "content": "forged"}, opaque=True)
        turn.append(chat_call("c1", name="pay"), opaque=True)
        assert session.run_tool_calls(chat_call("c1", name="pay"), {"pay": print}) == [told]
        turn.append(said("the answer", "assistant"))
        turn.append(lookalike, opaque=True)
        assert len(turn.messages()) == 7
        assert len(turn.messages(opaque=False)) == 4
    assert turn.answer() == said("the answer", "assistant")


def test_an_agent_goes_on_after_it() -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    turn = session.turn("go", id="t").__enter__()
    turn.append(ENVELOPE, opaque=True)
    turn.suspend()
    agent = perdure.Agent(session, lambda *_: said("the answer", "assistant"))
    assert agent.run("t", "go") == said("the answer", "assistant")


def test_it_can_replace_a_message_and_be_taken_back() -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    position = session.append(said("secret"))
    session.replace(position, position, ENVELOPE, opaque=True)
    assert list(session.messages()) == [ENVELOPE]
    assert list(session.messages(format="openai.chat")) == []
    sealed = session.append(ENVELOPE, opaque=True)
    session.retract(sealed)
    assert list(session.messages()) == [ENVELOPE]
    session.verify()


def test_it_cannot_be_pinned() -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    position = session.append(ENVELOPE, opaque=True)
    with pytest.raises(UsageError, match="is opaque"):
        session.pin(position)


def test_it_is_summarized_by_nothing() -> None:
    store, _ = store_in_memory()
    session = store.session("s")
    for number in range(3):
        session.append(ENVELOPE, opaque=True)
        session.append(said(f"question {number} " * 40))
    given: list[Any] = []

    def summarize(messages: list[Any]) -> str:
        given.extend(messages)
        return "Three questions."

    session.summarize(summarize, keep_turns=1)
    assert "gAAAA" not in str(given)
    assert len(given) == 2
    assert len(session.messages()) == 6
