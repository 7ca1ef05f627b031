"""What SDKs give, taken in whole: messages, and what came with them."""

import dataclasses
import enum
import math
import sys
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Iterator
from copy import deepcopy
from datetime import UTC, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import msgspec
import openai
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionMessage,
    ParsedChatCompletion,
)
from openai.types.chat.chat_completion import Choice
from openai.types.responses import (
    Response,
    ResponseFunctionToolCall,
    ResponseReasoningItem,
    ResponseTextDeltaEvent,
)

import perdure
from perdure.errors import UsageError
from perdure.formats.intake import ROLES, IncomingMessage, extract_messages, require_role
from perdure.journal.codec import Codec, encode_tree

CALL = {"id": "call_1", "type": "function", "function": {"name": "pay", "arguments": '{"n":1}'}}

MESSAGE: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "refusal": None,
    "annotations": [],
    "audio": {"id": "audio_1", "data": "UklGRg==", "expires_at": 99, "transcript": "hm"},
    "tool_calls": [
        CALL,
        {"id": "call_2", "type": "custom", "custom": {"name": "sql", "input": "select 1"}},
    ],
    "reasoning_content": "first I think",
}

COMPLETION: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1_760_000_000,
    "model": "gpt-4o-mini",
    "service_tier": "default",
    "system_fingerprint": None,
    "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
    "choices": [{"index": 0, "finish_reason": "tool_calls", "logprobs": None, "message": MESSAGE}],
    "x_provider": {"region": "eu"},
}

RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1_760_000_000.0,
    "model": "gpt-5",
    "status": "completed",
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "incomplete_details": None,
    "usage": {
        "input_tokens": 1,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 3,
    },
    "output": [
        {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "c2VjcmV0"},
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "4711", "annotations": []}],
        },
        {
            "id": "fc_1",
            "type": "function_call",
            "call_id": "call_1",
            "name": "pay",
            "arguments": "{}",
            "async": True,
        },
        {"id": "new_1", "type": "something_of_next_year", "payload": {"deep": [1]}},
    ],
}

ANTHROPIC: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude",
    "content": [
        {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
        {"type": "tool_use", "id": "toolu_1", "name": "pay", "input": {"n": 1}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 1, "output_tokens": 2},
}


def without(data: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name not in names}


Model = TypeVar("Model", bound=openai.BaseModel)


def built(kind: type[Model], data: dict[str, Any]) -> Model:
    """Return a model as the SDK makes it from an answer, unknown fields and all."""
    return kind.construct(**data)


def only(given: object) -> IncomingMessage:
    (taken,) = extract_messages(given)
    return taken


def test_a_dict_with_a_role_is_the_message_itself() -> None:
    for message in (
        {"role": "user", "content": "4711"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "user", "content": [{"type": "text", "text": "4711"}], "unknown": b"\0"},
        {"type": "message", "role": "assistant", "content": [], "status": "completed"},
    ):
        taken = only(message)
        assert taken.message is message
        assert taken.meta == {}


def test_a_completion_is_its_message_and_everything_around_it() -> None:
    taken = only(built(ChatCompletion, COMPLETION))
    assert taken.message == MESSAGE
    assert taken.meta == without(COMPLETION, "choices") | {
        "index": 0,
        "finish_reason": "tool_calls",
        "logprobs": None,
    }


def test_other_choices_are_kept_beside_the_first() -> None:
    other = {
        "index": 1,
        "finish_reason": "stop",
        "logprobs": None,
        "message": {"role": "assistant", "content": "or this"},
    }
    data = COMPLETION | {"choices": [*COMPLETION["choices"], other]}
    taken = only(built(ChatCompletion, data))
    assert taken.message == MESSAGE
    assert taken.meta["choices"] == [other]


def test_what_stands_both_in_the_completion_and_in_its_choice_is_kept_twice() -> None:
    choice = COMPLETION["choices"][0] | {"usage": {"prompt_tokens": 99}}
    taken = only(COMPLETION | {"choices": [choice]})
    assert taken.meta["usage"] == COMPLETION["usage"]
    assert taken.meta["choice"] == {"usage": {"prompt_tokens": 99}}


@pytest.mark.parametrize("choices", [[], None])
def test_a_completion_without_a_choice_is_an_empty_answer_with_its_meta(choices: object) -> None:
    data = COMPLETION | {"choices": choices, "error": {"code": 502}}
    assert only(data) == IncomingMessage(
        {"role": "assistant", "content": ""}, without(data, "choices")
    )


def test_a_choice_and_a_message_are_taken_alone() -> None:
    choice = COMPLETION["choices"][0]
    around = without(choice, "message")
    assert only(built(Choice, choice)) == IncomingMessage(MESSAGE, around)
    assert only(choice) == IncomingMessage(MESSAGE, around)
    assert only(built(ChatCompletionMessage, MESSAGE)) == IncomingMessage(MESSAGE, {})


def test_an_answer_around_a_message_is_taken_as_its_message() -> None:
    answer = {"model": "llama", "message": {"role": "assistant", "content": "4711"}, "done": True}
    assert only(answer) == IncomingMessage(answer["message"], {"model": "llama", "done": True})  # type: ignore[arg-type]


def test_each_item_of_a_response_is_a_message_and_the_last_has_the_meta() -> None:
    taken = extract_messages(built(Response, RESPONSE))
    assert [one.message for one in taken] == RESPONSE["output"]
    assert [one.meta for one in taken] == [{}, {}, {}, without(RESPONSE, "output")]


@pytest.mark.parametrize("output", [[], None])
def test_a_response_without_output_is_an_empty_answer_with_its_meta(output: object) -> None:
    data = RESPONSE | {"output": output, "status": "failed"}
    empty = {"type": "message", "role": "assistant", "content": []}
    assert only(data) == IncomingMessage(empty, without(data, "output"))


def test_single_items_of_a_response_are_messages_by_the_provider_s_names() -> None:
    call = built(ResponseFunctionToolCall, RESPONSE["output"][2])
    assert call.async_ is True
    assert only(call) == IncomingMessage(RESPONSE["output"][2], {})
    reasoning = built(ResponseReasoningItem, RESPONSE["output"][0])
    assert only(reasoning) == IncomingMessage(RESPONSE["output"][0], {})
    assert only(RESPONSE["output"][3]) == IncomingMessage(RESPONSE["output"][3], {})


class AnthropicLike(openai.BaseModel):
    """The Anthropic SDK's models are made by the same generator."""

    type: str
    role: str
    content: list[object]
    stop_reason: str | None = None


def test_an_anthropic_message_is_role_and_content_and_the_rest_is_meta() -> None:
    message = {"role": "assistant", "content": ANTHROPIC["content"]}
    expected = IncomingMessage(message, without(ANTHROPIC, "role", "content"))
    assert only(built(AnthropicLike, ANTHROPIC)) == expected
    assert only(ANTHROPIC) == expected


def test_objects_and_dicts_and_mappings_of_the_same_answer_are_taken_alike() -> None:
    completion = built(ChatCompletion, COMPLETION)
    response = built(Response, RESPONSE)
    for data, given_ in ((COMPLETION, completion), (RESPONSE, response)):
        expected = extract_messages(given_)
        assert extract_messages(data) == expected
        assert extract_messages(MappingProxyType(data)) == expected
        assert extract_messages(OrderedDict(data)) == expected
    assert only(dict(completion)).message == MESSAGE  # pydantic's own, shallow


def test_what_is_in_a_mapping_is_judged_as_what_is_in_a_dict() -> None:
    session = perdure.open("memory:").session("s")
    message = {"role": "user", "content": "x", "pair": (1, 2)}
    for mapping in (message, OrderedDict(message), MappingProxyType(message)):
        with pytest.raises(UsageError, match="tuple") as caught:
            session.append(mapping)
        assert caught.value.path == "$.pair"
    session.append(OrderedDict(role="user", content="x"))
    assert session.messages() == [{"role": "user", "content": "x"}]


def test_objects_of_an_sdk_inside_a_dict_are_exported() -> None:
    message = built(ChatCompletionMessage, MESSAGE)
    given_ = {"role": "assistant", "content": None, "tool_calls": message.tool_calls}
    assert only(given_).message == given_ | {"tool_calls": MESSAGE["tool_calls"]}
    reply = built(AnthropicLike, ANTHROPIC | {"content": [message, "text"]})
    again = {"role": "assistant", "content": reply.content}
    assert only(again).message == {"role": "assistant", "content": [MESSAGE, "text"]}
    assert again["content"] is reply.content
    assert reply.content[0] is message


class Kind(enum.Enum):
    HOME = "home"


class Claim(pydantic.BaseModel):
    """What an application lets the SDK parse: nothing of it is plain JSON."""

    kind: Kind
    tags: set[str]
    seen: datetime
    site: pydantic.HttpUrl


def test_parsed_objects_are_kept_as_data_without_a_warning() -> None:
    claim = {"kind": "home", "tags": ["x"], "seen": "2026-01-01T00:00:00", "site": "https://a.b/"}
    message = MESSAGE | {"refusal": "", "tool_calls": [CALL]}
    choices = [COMPLETION["choices"][0] | {"message": message}]
    completion = built(ParsedChatCompletion[Claim], COMPLETION | {"choices": choices})
    completion.choices[0].message.parsed = Claim.model_validate(claim)
    taken = only(completion)
    assert taken.message["parsed"] == claim
    assert taken.message["refusal"] == ""
    assert taken.meta["usage"] == COMPLETION["usage"]
    assert Codec().unpack(Codec().pack(taken.message)) == taken.message


def test_a_number_that_json_lacks_is_left_for_the_codec_to_refuse() -> None:
    completion = built(ChatCompletion, COMPLETION | {"x_provider": math.nan})
    assert math.isnan(only(completion).meta["x_provider"])


def test_the_id_of_the_request_is_kept() -> None:
    completion = built(ChatCompletion, COMPLETION)
    assert "request_id" not in only(completion).meta
    completion._request_id = "req_1"
    assert only(completion).meta["request_id"] == "req_1"


class UserSaid(pydantic.BaseModel):
    """An application's own message: its defaults are part of it."""

    role: Literal["user"] = "user"
    content: str
    extra_: int | None = pydantic.Field(default=None, alias="extra")
    price: Decimal = Decimal("1.50")


@dataclasses.dataclass(frozen=True)
class Said:
    role: Kind | str
    content: tuple[UserSaid, ...] | str
    at: datetime


class Struct(msgspec.Struct, rename="camel", omit_defaults=True):
    role: str
    tool_call_id: str
    content: bytes = b""
    name: str | msgspec.UnsetType = msgspec.UNSET


def test_models_of_one_s_own_are_taken_with_their_defaults() -> None:
    plain = {"role": "user", "content": "4711", "extra": None, "price": Decimal("1.50")}
    assert only(UserSaid(content="4711")) == IncomingMessage(plain, {})
    now = datetime.now(UTC)
    said = Said("user", (UserSaid(content="4711"),), now)
    assert only(said) == IncomingMessage({"role": "user", "content": [plain], "at": now}, {})
    assert only(Said(Kind.HOME, "", now)).message["role"] == "home"
    struct = Struct("tool", "call_1", b"\0")
    assert only(struct) == IncomingMessage(
        {"role": "tool", "toolCallId": "call_1", "content": b"\0"}, {}
    )


class Shout(str):
    __slots__ = ()


class OldSdk:
    """An SDK's model over pydantic 1, which knows neither modes nor warnings."""

    def to_dict(self) -> dict[str, Any]:
        return {"role": "assistant", "content": Shout("4711")}

    def model_dump(self) -> dict[str, Any]:
        return {}


def test_models_of_an_sdk_over_pydantic_1_are_taken() -> None:
    taken = only(OldSdk())
    assert taken == IncomingMessage({"role": "assistant", "content": "4711"}, {})
    assert type(taken.message["content"]) is str


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="pydantic.v1 ends with Python 3.13")
def test_models_of_pydantic_1_are_taken() -> None:
    from pydantic import v1

    class Old(v1.BaseModel):
        role: str = "user"
        content: str

    assert only(Old(content="4711")) == IncomingMessage({"role": "user", "content": "4711"}, {})


class Broken(pydantic.BaseModel):
    role: str = "user"

    @pydantic.model_serializer
    def broken(self) -> dict[str, Any]:
        raise ValueError("no")


async def stream() -> AsyncIterator[int]:
    yield 1


def chunks() -> Iterator[int]:
    yield 1


CHUNK = {
    "id": "chatcmpl-1",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}],
}

EVENT = {
    "type": "response.output_text.delta",
    "item_id": "msg_1",
    "output_index": 0,
    "content_index": 0,
    "sequence_number": 1,
    "delta": "a",
    "logprobs": [],
}


@pytest.mark.parametrize(
    ("given_", "text"),
    [
        ("hello", '"role": "user"'),
        ([{"role": "user"}], "pass messages one by one, not as a list"),
        (None, "^a NoneType is not a message: pass a message such as"),
        (42, "^an int is not a message"),
        (b"", "bytes is not a message"),
        (ChatCompletion, "class ChatCompletion"),
        (Claim.model_construct(), "Claim is not a message"),
        (MappingProxyType({"a": 1}), "mappingproxy is not a message"),
        (built(ChatCompletionChunk, CHUNK), "chunk of a stream"),
        (CHUNK, "chunk of a stream"),
        (CHUNK | {"object": ""}, "chunk of a stream"),
        (CHUNK["choices"][0], "chunk of a stream"),  # type: ignore[index]
        (built(ResponseTextDeltaEvent, EVENT), "chunk of a stream"),
        (EVENT, r"chunk of a stream is not a message: pass the stream to turn\.stream"),
        ({"type": "error", "code": "server_error", "message": "m"}, "chunk of a stream"),
        (chunks(), r"^a generator is a stream: pass it to turn\.stream\(\.\.\.\), or append"),
        (stream(), "^an async_generator is a stream"),
        (Broken(), "Broken cannot be exported"),
    ],
)
def test_what_is_no_message_is_refused_with_advice(given_: object, text: str) -> None:
    with pytest.raises(UsageError, match="(?s)" + text):
        extract_messages(given_)


def test_a_dict_of_no_known_shape_is_left_to_be_judged() -> None:
    given_ = {"anything": (1, 2)}
    assert only(given_).message is given_


def test_known_roles_and_items_of_any_type_pass() -> None:
    for role in ROLES - {"tool"}:
        require_role({"role": role})
    require_role({"role": "tool", "tool_call_id": "call_1"})
    require_role({"role": "tool", "tool_responses": [{"tool_call_id": "call_1"}]})
    require_role({"type": "something_of_next_year"})
    require_role({"type": "function_call_output", "call_id": "call_1", "output": ""})


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"role": "critic"}, r"\$\.role: this is not a role.*assistant.*note"),
        ({"role": "User"}, "is not a role"),
        ({"role": ["user"]}, "is not a role"),
        ({"role": ""}, "is not a role"),
        ({"type": "message", "role": "critic"}, "is not a role"),
        ({"content": "4711"}, 'needs a "role"'),
        ({"role": None}, 'needs a "role"'),
        ({"type": 7}, 'needs a "role"'),
        ({}, 'needs a "role"'),
        ({"role": "tool", "content": "4711"}, r"\$\.tool_call_id.*name the call"),
        ({"role": "tool", "tool_call_id": ""}, "name the call"),
        ({"type": "function_call_output", "output": ""}, r"\$\.call_id.*name the call"),
    ],
)
def test_a_message_that_nobody_can_have_said_is_refused(message: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match="(?s)" + text):
        require_role(message)


leaves = st.integers() | st.text(max_size=3) | st.none() | st.booleans()
trees = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
extras = st.dictionaries(st.sampled_from(["usage", "error", "x_a", "x_b", "index"]), trees)


@st.composite
def answers(draw: st.DrawFn) -> dict[str, Any]:
    """Completions and responses with unknown fields everywhere."""
    if draw(st.booleans()):
        items: list[dict[str, Any]] = [
            draw(extras) | {"type": draw(st.sampled_from(["message", "reasoning", "x"]))}
            for _ in range(draw(st.integers(0, 3)))
        ]
        return draw(extras) | {"object": "response", "output": items}
    choices = [
        draw(extras) | {"message": draw(extras) | {"role": "assistant"}}
        for _ in range(draw(st.integers(1, 3)))
    ]
    return draw(extras) | {"object": "chat.completion", "choices": choices}


def leaves_of(tree: Any) -> Counter[str]:
    if isinstance(tree, dict):
        found = Counter(repr(key) for key in tree)
        return sum((leaves_of(value) for value in tree.values()), found)
    if isinstance(tree, list):
        return sum((leaves_of(value) for value in tree), Counter[str]())
    return Counter([repr(tree)])


@settings(derandomize=True, deadline=None, max_examples=50)
@given(answers())
def test_nothing_that_was_given_is_lost_or_changed(data: dict[str, Any]) -> None:
    before = deepcopy(data)
    kind = Response if data["object"] == "response" else ChatCompletion
    for given_ in (data, built(kind, deepcopy(data))):
        kept = leaves_of([[taken.message, taken.meta] for taken in extract_messages(given_)])
        wrapping = Counter(["'choices'", "'message'", "'output'"])
        assert leaves_of(data) - kept - Counter(dict.fromkeys(wrapping, 9)) == Counter()
    assert data == before
    assert encode_tree(data) == encode_tree(before)
