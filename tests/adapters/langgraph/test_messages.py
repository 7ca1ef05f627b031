"""LangChain's messages as messages of a session: nothing is lost, and other formats read them."""

from typing import Any

import pytest
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    HumanMessageChunk,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)

import perdure
from perdure.adapters.langgraph.message_table import KnownMessage
from perdure.adapters.langgraph.state_codec import StateCodec, make_serde

CODEC = StateCodec(make_serde(()))
CALL = {"name": "look_up", "args": {"id": 17, "deep": [None, 1.5]}, "id": "c1", "type": "tool_call"}
INVALID = {"name": "f", "args": "{", "id": "c2", "error": "cut", "type": "invalid_tool_call"}
USAGE = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
MESSAGES = [
    HumanMessage("hi"),
    HumanMessage("hi", id="1", name="ann", additional_kwargs={"a": {"b": [1]}}),
    HumanMessage("own fields", rating=5),
    HumanMessage(
        [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "u"}}]
    ),
    HumanMessageChunk("half"),
    AIMessage("answer", id="2", usage_metadata=USAGE, response_metadata={"model": "m"}),
    AIMessage("", tool_calls=[CALL], invalid_tool_calls=[INVALID]),
    AIMessage(
        [{"type": "tool_use", "id": "c1", "name": "look_up", "input": {}}], tool_calls=[CALL]
    ),
    AIMessage("no id", tool_calls=[{**CALL, "id": None}]),
    AIMessageChunk("part", id="3"),
    SystemMessage("be brief"),
    ToolMessage("found", tool_call_id="c1", artifact={"rows": [1, 2]}, status="error"),
    ToolMessage(["a", {"type": "text", "text": "b"}], tool_call_id="c1"),
    FunctionMessage("r", name="f"),
    ChatMessage("I object", role="critic"),
    RemoveMessage(id="9"),
]


def case(message: Any) -> str:
    return f"{type(message).__name__}-{MESSAGES.index(message)}"


@pytest.mark.parametrize("message", MESSAGES, ids=case)
def test_a_message_comes_back_as_it_was(message: Any) -> None:
    back = CODEC.decode(CODEC.encode(message, "$"))
    assert type(back) is type(message)
    assert back == message
    assert back.model_dump() == message.model_dump()
    assert back.model_copy(update={"id": "x"}).id == "x"


@pytest.mark.parametrize("message", MESSAGES, ids=case)
def test_a_known_message_notices_every_change_of_a_field(message: Any) -> None:
    stored = CODEC.encode_message(message, "$")
    assert stored is not None
    known = KnownMessage.of(1, message, stored)
    assert known.equals(message, CODEC)
    built = known.build(CODEC)
    assert built == message
    assert built is not message
    for name in message.model_dump():
        changed = known.build(CODEC)
        object.__setattr__(changed, name, ["another"])
        assert not known.equals(changed, CODEC), name
    nested = known.build(CODEC)
    nested.additional_kwargs["new"] = {"x": 1}
    assert not known.equals(nested, CODEC)
    assert known.equals(known.build(CODEC), CODEC), "a built message shares what it holds"


def test_a_message_with_an_object_in_it_is_compared_as_stored() -> None:
    message = ToolMessage("x", tool_call_id="c", artifact={1, 2})
    stored = CODEC.encode_message(message, "$")
    assert stored is not None
    known = KnownMessage.of(1, message, stored)
    assert known.build(CODEC) == message
    message.artifact.add(3)
    assert not known.equals(message, CODEC)


def test_other_formats_read_them_without_losses() -> None:
    session = perdure.open("memory:").session("s")
    plain = [HumanMessage("q", id="1"), AIMessage("", id="2", tool_calls=[CALL])]
    for message in [*plain, ToolMessage("17", tool_call_id="c1", id="3"), AIMessage("a", id="4")]:
        session.append(CODEC.encode_message(message, "$"))
    for format in ("openai.chat", "openai.responses", "anthropic", "gemini"):
        transcript = session.messages(format=format)
        assert transcript.losses == ()
        assert transcript.interrupted_calls == ()
    assert session.messages(format="openai.chat")[1]["tool_calls"][0]["id"] == "c1"
