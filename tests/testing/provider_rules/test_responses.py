"""OpenAI's Responses API: what is accepted, and one breach of each rule."""

from typing import Any

import pytest
from openai.types.responses import response_input_item_param

from perdure.testing import violations
from perdure.testing.provider_rules.responses import DEFAULT_STATUSES, ITEMS, MESSAGES, STATUSES
from tests.testing.model_server.sdk_types import members
from tests.testing.provider_rules.breaking import GONE, Path, changed, inserted


def said(role: str, text: str, **more: Any) -> dict[str, Any]:
    part = {"type": "output_text" if role == "assistant" else "input_text", "text": text}
    return {"type": "message", "role": role, "content": [part], **more}


def thought(id: str) -> dict[str, Any]:
    summary = [{"type": "summary_text", "text": "hm"}]
    return {"type": "reasoning", "id": id, "summary": summary, "encrypted_content": "…"}


def call(id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": id, "name": "look_up", "arguments": "{}"}


def output(id: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": id, "output": "1"}


CUSTOM = {"type": "custom_tool_call", "call_id": "call_3", "name": "shell", "input": "ls"}
SHELL = {"type": "local_shell_call", "call_id": "call_4", "action": {}}
CLICK = {"type": "computer_call", "call_id": "call_5", "action": {}}
VALID: list[dict[str, Any]] = [
    {"role": "developer", "content": "Be brief."},
    said("user", "hello"),
    thought("rs_1"),
    {**call("call_1"), "id": "fc_1", "status": "completed"},
    {**call("call_2"), "id": "fc_2", "status": "completed"},
    output("call_2"),
    {**output("call_1"), "output": [{"type": "input_text", "text": "1"}]},
    thought("rs_2"),
    thought("rs_3"),
    said("assistant", "done", id="msg_1", status="completed", phase="final_answer"),
    {"role": "user", "content": [{"type": "input_image", "image_url": "data:,", "detail": "low"}]},
    {**CUSTOM, "id": "ctc_1"},
    {"type": "custom_tool_call_output", "call_id": "call_3", "output": "file"},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
    {"type": "item_reference", "id": "msg_7"},
    {"id": "msg_8"},
    {**SHELL, "id": "lsh_1", "status": "completed"},
    {"type": "local_shell_call_output", "id": "lsh_1", "output": "{}"},
    {**CLICK, "id": "cu_1", "pending_safety_checks": [], "status": "completed"},
    {
        "type": "computer_call_output",
        "call_id": "call_5",
        "output": {"type": "computer_screenshot"},
    },
    {"type": "web_search_call", "id": "ws_1", "action": {}, "status": "searching"},
    said("user", "and now?", id="msg_9"),
]
PAIRS = {"fc_1": "rs_1", "fc_2": "rs_1", "msg_1": "rs_3"}


def test_a_conversation_with_everything_in_it_is_accepted() -> None:
    assert violations("openai.responses", VALID, system="Be kind.", reasoning_of=PAIRS) == []


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ((0,), "hello", "Invalid type for 'input[0]'"),
        ((1, "type"), "speech", "Invalid value: 'speech'"),
        ((1, "type"), 5, "Invalid value: 'a number'"),
        ((1, "role"), ["user"], "input[1].role: Invalid value: 'an array'"),
        ((1, "role"), "tool", "input[1].role: Invalid value: 'tool'"),
        ((0, "content"), GONE, "Missing required parameter: 'input[0].content'"),
        ((0, "content"), None, "Invalid type for 'input[0].content'"),
        ((0, "content"), [], "Invalid 'input[0].content': empty array"),
        ((0, "content"), 5, "Invalid type for 'input[0].content'"),
        ((0, "metadata"), {}, "Unknown parameter: 'input[0].metadata'"),
        ((1, "content", 0, "type"), "text", "input[1].content[0]: Invalid value: 'text'"),
        ((1, "content", 0, "type"), "output_text", "Invalid value: 'output_text'"),
        ((9, "content", 0, "type"), "input_text", "Supported values are: 'output_text' and"),
        ((9, "content", 0, "text"), 5, "Invalid type for 'input[9].content[0].text'"),
        ((9, "content", 0, "text"), None, "Invalid type for 'input[9].content[0].text'"),
        ((9, "content", 0, "parsed"), {}, "Unknown parameter: 'input[9].content[0].parsed'"),
        ((9, "status"), "done", "input[9].status: Invalid value: 'done'"),
        ((9, "status"), None, "Invalid type for 'input[9].status'"),
        ((9, "phase"), "last", "input[9].phase: Invalid value: 'last'"),
        ((9, "id"), 5, "Invalid type for 'input[9].id'"),
        ((9, "id"), "chatcmpl-1", "Expected an ID that begins with 'msg'"),
        ((9, "id"), "", "Invalid 'input[9].id': empty string"),
        ((9, "id"), "msg_ö", "'input[9].id': string does not match pattern"),
        ((9, "id"), "msg_9", "Duplicate item found with id msg_9"),
        ((3, "id"), "call_1", "Expected an ID that begins with 'fc'"),
        ((2, "id"), GONE, "Missing required parameter: 'input[2].id'"),
        ((2, "id"), "msg_2", "Expected an ID that begins with 'rs'"),
        ((11, "id"), "fc_3", "Expected an ID that begins with 'ctc'"),
        ((2, "summary"), GONE, "Missing required parameter: 'input[2].summary'"),
        ((2, "summary"), "hm", "Invalid type for 'input[2].summary'"),
        ((2, "summary", 0, "type"), "text", "input[2].summary[0]: Invalid value: 'text'"),
        ((2, "content"), [{"type": "text"}], "input[2].content[0]: Invalid value: 'text'"),
        ((2, "status"), None, "Invalid type for 'input[2].status'"),
        ((20, "status"), "calling", "input[20].status: Invalid value: 'calling'"),
        ((3, "arguments"), {}, "Invalid type for 'input[3].arguments'"),
        ((3, "parsed_arguments"), {}, "Unknown parameter: 'input[3].parsed_arguments'"),
        ((3, "name"), "look up", "'input[3].name': string does not match pattern"),
        ((3, "call_id"), GONE, "Missing required parameter: 'input[3].call_id'"),
        ((3, "call_id"), "call_2", "Duplicate function call with call_id call_2"),
        ((3, "call_id"), "c" * 65, "'input[3].call_id': string does not match pattern"),
        ((5, "call_id"), "call_1", "Duplicate function call output with call_id call_1"),
        ((5, "call_id"), None, "Invalid type for 'input[5].call_id'"),
        ((5, "output"), GONE, "Missing required parameter: 'input[5].output'"),
        ((5, "output"), {"n": 1}, "Invalid type for 'input[5].output'"),
        ((6, "output", 0, "type"), "output_text", "Invalid value: 'output_text'"),
        ((5,), GONE, "No tool output found for function call call_2."),
        ((12,), GONE, "No tool output found for custom tool call call_3."),
        ((17,), GONE, "No tool output found for local shell call lsh_1."),
        ((3,), GONE, "No tool call found for function call output with call_id call_1."),
        ((11,), GONE, "No tool call found for custom tool call output with call_id call_3."),
        ((11, "type"), "function_call", "No tool call found for custom tool call output"),
        ((9,), GONE, "Item 'rs_3' of type 'reasoning' was provided without its required following"),
        ((22,), thought("rs_9"), "Item 'rs_9' of type 'reasoning' was provided without"),
        ((2,), GONE, "Item 'fc_2' of type 'function_call' was provided without its required"),
        ((8,), GONE, "Item 'msg_1' of type 'message' was provided without its required"),
        ((1,), {"type": "compaction_trigger"}, "A compaction trigger must be the final item"),
    ],
)
def test_a_breach_of_one_rule_is_found(path: Path, value: Any, complaint: str) -> None:
    broken = changed(VALID, path, value)
    found = violations("openai.responses", broken, reasoning_of=PAIRS)
    assert [text for text in found if complaint in text], found


def test_an_output_comes_after_its_call() -> None:
    swapped = [output("call_1"), call("call_1")]
    assert violations("openai.responses", swapped) == [
        "input: No tool call found for function call output with call_id call_1.",
        "input: No tool output found for function call call_1.",
    ]
    assert violations("openai.responses", swapped[::-1]) == []


def test_reasoning_is_missed_only_by_who_knows_of_it() -> None:
    alone = changed(VALID, (2,), GONE)
    assert violations("openai.responses", alone) == []
    assert len(violations("openai.responses", alone, reasoning_of=PAIRS)) == 2


def test_reasoning_of_an_earlier_turn_leads_to_nothing_in_a_later_one() -> None:
    torn = inserted(VALID, 9, said("user", "well?"))
    found = violations("openai.responses", torn, reasoning_of=PAIRS)
    assert ["following item" in text or "'reasoning' item" in text for text in found] == [True] * 2


def test_reasoning_leads_to_nothing_that_comes_after_the_output_of_a_tool() -> None:
    (found,) = violations("openai.responses", VALID, reasoning_of={"msg_1": "rs_1"})
    assert found.endswith("without its required 'reasoning' item: 'rs_1'.")


def test_nothing_said_at_all_is_refused() -> None:
    (found,) = violations("openai.responses", [])
    assert found.startswith("Invalid 'input': empty array")


def test_instructions_are_a_string() -> None:
    (found,) = violations("openai.responses", VALID, system=["Be kind."])
    assert found.startswith("Invalid type for 'instructions'")


def test_the_items_have_the_fields_and_statuses_of_the_package() -> None:
    known = {}
    for item in members(response_input_item_param.ResponseInputItemParam):
        (name,) = item.literals("type")
        if name == "message":
            assert item.all <= MESSAGES["assistant"].allowed
        else:
            known[name] = item
    assert known.keys() == ITEMS.keys()
    for name, item in known.items():
        wanted = (ITEMS[name].required, ITEMS[name].allowed, ITEMS[name].nullable)
        assert wanted == (item.required, item.all, item.nullable), name
        if "status" in item.all:
            assert {*STATUSES.get(name, DEFAULT_STATUSES)} == {*item.literals("status")}, name
