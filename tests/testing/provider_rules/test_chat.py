"""OpenAI's chat completions: what is accepted, and one breach of each rule."""

from typing import Any

import pytest
from openai.types import chat

from perdure.testing import violations
from perdure.testing.provider_rules import chat as provider_rules_chat
from tests.testing.model_server.sdk_types import Fields, members
from tests.testing.provider_rules.breaking import GONE, Path, changed, inserted


def call(id: str, name: str = "look_up") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": '{"n": 1}'}}


HELLO = {"type": "text", "text": "hello"}
CUSTOM = {"id": "call_3", "type": "custom", "custom": {"name": "shell", "input": "ls"}}
VALID: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "name": "Zoë", "content": [HELLO, HELLO]},
    {"role": "assistant", "content": None, "tool_calls": [call("call_1"), call("call_2"), CUSTOM]},
    {"role": "tool", "tool_call_id": "call_2", "content": ""},
    {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "1"}]},
    {"role": "tool", "tool_call_id": "call_3", "content": "file"},
    {"role": "assistant", "content": "done"},
    {"role": "developer", "content": "Be longer."},
    {"role": "user", "content": "and now?"},
    {"role": "assistant", "refusal": "No."},
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
    {"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]},
    {"role": "assistant", "audio": {"id": "audio_1"}},
    {"role": "assistant", "function_call": {"name": "old", "arguments": "{}"}},
    {"role": "function", "name": "old", "content": None},
    # Ids of calls may come again in another turn.
    {"role": "assistant", "content": "", "tool_calls": [call("call_1")]},
    {"role": "tool", "tool_call_id": "call_1", "content": "again"},
]


def test_a_conversation_with_everything_in_it_is_accepted() -> None:
    assert violations("openai.chat", VALID) == []


CALLS: Path = (2, "tool_calls")


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ((0,), "hello", "Invalid type for 'messages[0]'"),
        ((0, "role"), "wizard", "Invalid value: 'wizard'. Supported values are: 'system',"),
        ((0, "role"), ["user"], "Invalid value: 'an array'"),
        ((0, "role"), GONE, "Supported values are: 'system',"),
        ((0, "content"), GONE, "Missing required parameter: 'messages[0].content'"),
        ((8, "content"), None, "messages.[8].content: Invalid value for 'content'"),
        ((6, "content"), None, "messages.[6].content: Invalid value for 'content'"),
        ((6, "content"), GONE, "messages.[6].content: Invalid value for 'content'"),
        ((3, "content"), None, "messages.[3].content: Invalid value for 'content'"),
        ((8, "content"), {"text": "x"}, "Invalid type for 'messages[8].content'"),
        ((15, "content"), [], "Invalid type for 'messages[15].content'"),
        ((1, "content"), [], "Invalid 'messages[1].content': empty array"),
        ((1, "content", 0, "type"), "input_text", "Invalid value: 'input_text'"),
        ((1, "content", 0, "text"), 5, "Invalid type for 'messages[1].content[0].text'"),
        ((1, "content", 0, "id"), "x", "Unknown parameter: 'messages[1].content[0].id'"),
        ((4, "content", 0), {"type": "image_url", "image_url": {}}, "'text'"),
        ((11, "content", 1), {"type": "text", "text": "x"}, "A refusal must be the only part"),
        ((1, "name"), "Zoë Ek", "does not match pattern"),
        ((6, "annotations"), [], "Unknown parameter: 'messages[6].annotations'"),
        ((6, "parsed"), None, "Unknown parameter: 'messages[6].parsed'"),
        ((6, "reasoning_content"), "hm", "Unknown parameter: 'messages[6].reasoning_content'"),
        ((6, "refusal"), None, "Invalid type for 'messages[6].refusal'"),
        ((6, "audio"), None, "Invalid type for 'messages[6].audio'"),
        ((9, "refusal"), 1, "Invalid type for 'messages[9].refusal'"),
        ((13, "audio"), "x", "Invalid type for 'messages[13].audio'"),
        ((13, "audio", "data"), "…", "Unknown parameter: 'messages[13].audio.data'"),
        ((14, "function_call", "name"), GONE, "'messages[14].function_call.name'"),
        ((6, "tool_calls"), [], "Invalid 'messages[6].tool_calls': empty array"),
        ((6, "tool_calls"), "x", "Invalid type for 'messages[6].tool_calls'"),
        ((*CALLS, 0, "type"), "retrieval", "Invalid value: 'retrieval'"),
        ((*CALLS, 0, "type"), ["function"], "Invalid value: 'an array'"),
        ((*CALLS, 0, "index"), 0, "Unknown parameter: 'messages[2].tool_calls[0].index'"),
        ((*CALLS, 0, "id"), GONE, "Missing required parameter: 'messages[2].tool_calls[0].id'"),
        ((*CALLS, 0, "type"), GONE, "Supported values are: 'function' and 'custom'"),
        ((*CALLS, 0, "id"), "", "Invalid 'messages[2].tool_calls[0].id': empty string"),
        ((*CALLS, 0, "id"), "c" * 41, "'messages[2].tool_calls[0].id': string does not match"),
        ((*CALLS, 0, "id"), "call_2", "Duplicate value for 'messages[2].tool_calls[1].id'"),
        ((*CALLS, 0, "function"), None, "Invalid type for 'messages[2].tool_calls[0].function'"),
        ((*CALLS, 0, "function", "name"), "look up", "tool_calls[0].function.name': string does"),
        ((*CALLS, 0, "function", "name"), "n" * 65, "tool_calls[0].function.name': string does"),
        ((*CALLS, 0, "function", "arguments"), {"n": 1}, "expected a string, but got an object"),
        ((*CALLS, 0, "function", "parsed_arguments"), None, "Unknown parameter"),
        ((*CALLS, 2, "custom", "input"), {}, "Invalid type for 'messages[2].tool_calls[2].custom"),
        ((3, "tool_call_id"), GONE, "Missing required parameter: 'messages[3].tool_call_id'"),
        ((3, "tool_call_id"), 5, "Invalid type for 'messages[3].tool_call_id'"),
        ((3, "tool_call_id"), "call_9", "'tool_call_id' of 'call_9' not found"),
        ((3, "tool_call_id"), "call_1", "Duplicate response for 'tool_call_id' of 'call_1'"),
        ((3,), GONE, "did not have response messages: call_2"),
        ((17,), GONE, "messages.[17].role: An assistant message with 'tool_calls' must be"),
        ((2,), GONE, "messages.[2].role: Invalid parameter: messages with role 'tool' must be"),
    ],
)
def test_a_breach_of_one_rule_is_found(path: Path, value: Any, complaint: str) -> None:
    found = violations("openai.chat", changed(VALID, path, value))
    assert [text for text in found if complaint in text], found


def test_nothing_may_stand_between_a_call_and_its_answers() -> None:
    broken = inserted(VALID, 4, {"role": "user", "content": "still there?"})
    first, *orphans = violations("openai.chat", broken)
    assert first.endswith("did not have response messages: call_1, call_3")
    assert first.startswith("messages.[4].role")
    assert [text[:17] for text in orphans] == ["messages.[5].role", "messages.[6].role"]


def test_only_an_assistant_says_something_without_content() -> None:
    refused = {"content": None, "refusal": "No."}
    assert violations("openai.chat", [{"role": "assistant", **refused}]) == []
    found = violations("openai.chat", [{"role": "user", **refused}], strict=False)
    assert found == [
        "messages.[0].content: Invalid value for 'content': expected a string, got null."
    ]


def test_nothing_said_at_all_is_refused() -> None:
    (found,) = violations("openai.chat", [])
    assert found.startswith("Invalid 'messages': empty array")


def test_the_instructions_stand_among_the_messages() -> None:
    assert violations("openai.chat", VALID, system="x") == ["Unknown parameter: 'system'."]


@pytest.mark.parametrize("extra", [{"annotations": []}, {"refusal": None}, {"parsed": {"n": 1}}])
def test_the_hosted_api_overlooks_what_strict_gateways_refuse(extra: dict[str, Any]) -> None:
    messages = [{"role": "assistant", "content": "hello", **extra}]
    assert len(violations("openai.chat", messages)) == 1
    assert violations("openai.chat", messages, strict=False) == []
    broken = [{"role": "assistant", "content": None, **extra}]
    assert len(violations("openai.chat", broken, strict=False)) == 1


def test_the_messages_have_the_fields_of_the_package() -> None:
    known = {}
    for message in members(chat.ChatCompletionMessageParam):
        (role,) = message.literals("role")
        known[role] = (message.required, message.all)
    assert known == {
        role: (wanted.required, wanted.allowed)
        for role, wanted in provider_rules_chat.MESSAGES.items()
    }


def test_the_parts_have_the_fields_of_the_package() -> None:
    parts = members(chat.ChatCompletionContentPartParam)
    parts.append(Fields(chat.ChatCompletionContentPartRefusalParam))
    assert {part.literals("type")[0]: part.all for part in parts} == {
        name: wanted.allowed for name, wanted in provider_rules_chat.PARTS.items()
    }
