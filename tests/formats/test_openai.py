"""Transcripts for OpenAI's chat completions and for the Responses API."""

from typing import Any

import pytest

from perdure.formats.parts import StoredMessage
from perdure.formats.transcript import render
from perdure.testing import violations
from tests.formats.transcripts import (
    ANSWER,
    CHAT,
    GEMINI,
    RESPONSES,
    USER,
    chat_call,
    chat_result,
    give,
    item_answer,
    item_call,
    item_reasoning,
    item_result,
    places,
    said,
    use,
    used,
    whats,
)

PNG = "data:image/png;base64,AAAA"


def test_chat_messages_come_back_as_they_were() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": [{"type": "text", "text": "In French."}]},
        {"role": "user", "content": "hello", "name": "ann"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "see"},
                {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}},
                {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}},
                {"type": "file", "file": {"file_id": "file-1"}},
            ],
        },
        {**chat_call("a", "b"), "content": "Wait."},
        chat_result("a"),
        chat_result("b", [{"type": "text", "text": "done"}]),
        {"role": "assistant", "content": None, "refusal": "No."},
        {"role": "assistant", "content": None, "function_call": {"name": "g", "arguments": "{}"}},
        {"role": "function", "name": "g", "content": "old"},
        {"role": "assistant", "content": "bye", "name": "bot"},
    ]
    transcript = give(CHAT, *messages)
    assert [*transcript] == messages
    assert (transcript.losses, transcript.system) == ((), None)


def test_fields_of_answers_that_requests_do_not_take_go_without_loss() -> None:
    answer = {
        "role": "assistant",
        "content": "hi",
        "refusal": None,
        "annotations": [{"type": "url_citation"}],
        "audio": None,
        "function_call": None,
        "tool_calls": [],
        "parsed": {"a": 1},
    }
    transcript = give(CHAT, USER, answer)
    assert transcript[1] == ANSWER
    assert transcript.losses == ()


def test_other_fields_go_and_are_told() -> None:
    answer = {"role": "assistant", "content": "hi", "reasoning_content": "hm", "mood": "good"}
    transcript = give(CHAT, USER, answer)
    assert transcript[1] == ANSWER
    assert whats(transcript) == [
        "reasoning was left out: openai.chat does not accept it from another format",
        (
            "the field 'mood' of the message was left out: "
            f"{CHAT} does not accept it from the assistant"
        ),
    ]


def test_a_spoken_answer_is_given_by_its_id_or_by_its_words() -> None:
    audio = {"id": "audio_1", "data": "AAAA", "expires_at": 9, "transcript": "hi there"}
    answer = {"role": "assistant", "content": None, "audio": audio}
    transcript = give(CHAT, USER, answer)
    assert transcript[1] == {"role": "assistant", "content": None, "audio": {"id": "audio_1"}}
    assert transcript.losses == ()
    elsewhere = give(RESPONSES, USER, answer)
    assert elsewhere[1] == {"role": "assistant", "content": "hi there"}
    assert places(elsewhere) == [2]
    unnamed = give(CHAT, USER, {**answer, "audio": {**audio, "id": {}}})
    assert unnamed[1] == {"role": "assistant", "content": "hi there"}
    assert places(unnamed) == [2]


def test_names_that_chat_refuses_are_changed_and_told() -> None:
    transcript = give(CHAT, {**USER, "name": "Ann B"}, chat_call("a", name="my tool"))
    assert transcript[0]["name"] == "Ann_B"
    assert transcript[1]["tool_calls"][0]["function"]["name"] == "my_tool"
    assert places(transcript) == [1, 2]


def test_a_name_that_only_chat_can_say_is_told_elsewhere() -> None:
    transcript = give(RESPONSES, {**USER, "name": "ann"})
    assert whats(transcript) == [
        "the speaker's name 'ann' was left out: openai.responses has no field for it"
    ]


def test_long_ids_are_shortened_and_stay_apart() -> None:
    first, second = "c" * 50 + "1", "c" * 50 + "2"
    results = [chat_result(first, "one"), chat_result(second, "two")]
    transcript = give(CHAT, USER, chat_call(first, second), *results)
    ids = [call["id"] for call in transcript[1]["tool_calls"]]
    assert [each["tool_call_id"] for each in transcript[2:]] == ids
    assert [each["content"] for each in transcript[2:]] == ["one", "two"]


def test_items_come_back_as_they_were() -> None:
    shell = {"type": "shell_call", "call_id": "s", "action": {"commands": ["ls"]}}
    outcome = {"type": "exit", "exit_code": 0}
    output = [{"stdout": "a", "stderr": "", "outcome": outcome}]
    items: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        item_reasoning("rs_1"),
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {}},
        item_call("a"),
        item_call("b"),
        item_result("a"),
        item_result("b", [{"type": "input_text", "text": "done"}]),
        shell,
        {"type": "shell_call_output", "call_id": "s", "output": output},
        item_reasoning("rs_2"),
        item_answer("hi", "msg_2"),
        {"type": "compaction", "encrypted_content": "gAAA"},
        {"role": "user", "content": "bye"},
    ]
    transcript = give(RESPONSES, *items)
    assert [*transcript] == items
    assert transcript.losses == ()


def test_only_the_item_after_its_reasoning_keeps_its_id() -> None:
    """The API looks for the reasoning of an item that has an id, and refuses it without."""
    items = [
        item_call("a", item_id="fc_1"),
        item_result("a"),
        item_reasoning(),
        item_call("b", item_id="fc_2"),
        item_call("c", item_id="fc_3"),
        item_result("b"),
        item_result("c"),
    ]
    transcript = give(RESPONSES, USER, *items)
    assert [item.get("id") for item in transcript] == [
        None,
        None,
        None,
        "rs_1",
        "fc_2",
        None,
        None,
        None,
    ]
    known = {"fc_1": "rs_0", "fc_2": "rs_1", "fc_3": "rs_1"}
    assert violations(RESPONSES, transcript, reasoning_of=known) == []


@pytest.mark.parametrize(
    "after", [[USER], [], [item_result("x")], [{**item_answer(), "role": "user"}], [use("x")]]
)
def test_reasoning_without_what_it_led_to_is_left_out(after: list[dict[str, Any]]) -> None:
    transcript = give(RESPONSES, USER, item_reasoning(), *after)
    assert "reasoning" not in [item.get("type") for item in transcript]
    assert "reasoning was left out: the content it led to is missing" in whats(transcript)


def test_reasoning_goes_with_an_answer_that_was_cut_off() -> None:
    history = [
        *said(USER, item_reasoning()),
        StoredMessage(3, item_answer("par"), interrupted=True),
    ]
    transcript = render(history, RESPONSES)
    assert transcript[1:] == [{"role": "assistant", "content": "par"}]
    assert places(transcript) == [2]


def test_reasoning_is_for_its_own_provider() -> None:
    transcript = give(CHAT, USER, item_reasoning(), item_answer())
    assert [*transcript] == [USER, ANSWER]
    assert "does not accept it from openai.responses" in whats(transcript)[0]


def test_a_hosted_call_whose_reasoning_may_be_cut_off_is_left_out() -> None:
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {}}
    transcript = give(RESPONSES, search, item_answer(), USER)
    assert [item.get("type") for item in transcript] == ["message", None]
    assert places(transcript) == [1]
    assert give(RESPONSES, USER, search, item_answer()).losses == ()


def test_items_stored_twice_are_given_once_or_without_their_id() -> None:
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {}}
    answer = [item_reasoning(), search, item_answer()]
    transcript = give(RESPONSES, USER, *answer, USER, *answer)
    assert [item.get("id") for item in transcript] == [
        None, "rs_1", "ws_1", None, None, None,
    ]  # fmt: skip
    assert places(transcript) == [6, 7]


def test_unknown_items_and_fields_are_left_out_and_told() -> None:
    new = {"type": "hologram", "id": "h_1"}
    call = {**item_call("a"), "parsed_arguments": {}, "mood": "good", "status": None}
    transcript = give(RESPONSES, USER, new, call, item_result("a"))
    assert transcript[1] == item_call("a")
    assert places(transcript) == [2, 3]
    assert whats(transcript)[1] == (
        "the field 'mood' of an item of type 'function_call' was left out"
    )


def test_an_approval_is_given_only_after_its_request() -> None:
    asked = {"type": "mcp_approval_request", "id": "mcpr_1", "name": "f", "arguments": "{}"}
    asked["server_label"] = "s"
    given = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
    assert [*give(RESPONSES, USER, asked, given)] == [USER, asked, given]
    assert places(give(RESPONSES, USER, given)) == [2]


def test_items_of_one_answer_become_one_chat_message() -> None:
    parts = [item_answer("Wait."), item_call("a"), item_call("b"), item_result("a")]
    transcript = give(CHAT, USER, *parts, item_result("b"), item_answer("done"))
    assert [message["role"] for message in transcript] == [
        "user", "assistant", "tool", "tool", "assistant",
    ]  # fmt: skip
    assert transcript[1]["content"] == "Wait."
    assert [call["id"] for call in transcript[1]["tool_calls"]] == ["a", "b"]


def test_what_comes_after_calls_is_said_after_their_results() -> None:
    transcript = give(CHAT, USER, item_call("a"), item_answer("so"), item_result("a"))
    assert [message["role"] for message in transcript] == ["user", "assistant", "tool", "assistant"]


def test_chat_and_responses_say_the_same() -> None:
    chat = [USER, {**chat_call("a"), "content": "Wait."}, chat_result("a"), ANSWER]
    there = give(RESPONSES, *chat)
    assert there.losses == ()
    back = give(CHAT, *there)
    assert [*back] == chat


def test_free_text_of_custom_tools_goes_between_the_two() -> None:
    call = {"id": "c", "type": "custom", "custom": {"name": "f", "input": "not json"}}
    chat = [USER, {"role": "assistant", "content": None, "tool_calls": [call]}, chat_result("c")]
    there = give(RESPONSES, *chat)
    assert there[1] == {
        "type": "custom_tool_call",
        "call_id": "c",
        "name": "f",
        "input": "not json",
    }
    assert there[2]["type"] == "custom_tool_call_output"
    assert [*give(CHAT, *there)] == chat


def test_a_refusal_stays_a_refusal() -> None:
    refused = {"role": "assistant", "content": None, "refusal": "No."}
    there = give(RESPONSES, USER, refused)
    assert there[1]["content"] == [{"type": "refusal", "refusal": "No."}]
    assert [*give(CHAT, *there)] == [USER, refused]


def test_images_and_files_go_between_the_two() -> None:
    parts = [
        {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}},
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA"}},
    ]
    there = give(RESPONSES, {"role": "user", "content": parts})
    assert [part["type"] for part in there[0]["content"]] == [
        "input_image", "input_file", "input_file",
    ]  # fmt: skip
    back = give(CHAT, *there)
    assert [part["type"] for part in back[0]["content"]] == ["image_url", "file", "file"]
    assert back[0]["content"][0]["image_url"] == {"url": PNG, "detail": "low"}
    assert (there.losses, back.losses) == ((), ())


def test_what_the_other_can_not_take_is_told() -> None:
    sound = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    content = [{"type": "text", "text": "hear"}, sound]
    transcript = give(RESPONSES, {"role": "user", "content": content})
    assert transcript[0]["content"] == "hear"
    assert "audio was left out" in whats(transcript)[0]
    by_url = {"type": "input_file", "file_url": "https://e.org/a.pdf"}
    transcript = give(CHAT, {"role": "user", "content": [by_url]})
    assert [*transcript] == []
    assert "a file was left out" in whats(transcript)[0]


def test_images_in_results_reach_responses_and_are_told_in_chat() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A"}}
    content = [{"type": "text", "text": "done"}, image]
    history = [USER, use("a"), used("a", content=content)]
    assert give(RESPONSES, *history)[2]["output"][1]["image_url"] == "data:image/png;base64,A"
    transcript = give(CHAT, *history)
    assert transcript[2]["content"] == "done"
    assert places(transcript) == [3]


def test_hosted_calls_are_functions_elsewhere_and_that_is_told() -> None:
    action = {"type": "click", "x": 1, "y": 2, "button": "left"}
    call: dict[str, Any] = {
        "type": "computer_call",
        "id": "cu_1",
        "call_id": "a",
        "status": "completed",
    }
    call |= {"pending_safety_checks": [], "action": action}
    shot = {"type": "computer_screenshot", "image_url": PNG}
    result = {"type": "computer_call_output", "call_id": "a", "output": shot}
    assert [*give(RESPONSES, USER, call, result)] == [USER, call, result]
    transcript = give(GEMINI, USER, call, result)
    assert transcript[1]["parts"][0]["functionCall"]["name"] == "computer"
    assert transcript[2]["parts"][0]["functionResponse"]["parts"][0]["inlineData"]["data"] == "AAAA"
    assert places(transcript) == [2]


def test_autogens_answers_to_several_calls_are_told_apart() -> None:
    several = [{"tool_call_id": id, "role": "tool", "content": id * 3} for id in ("a", "b")]
    answer = {"role": "tool", "content": "aaa\n\nbbb", "tool_responses": several}
    transcript = give(CHAT, USER, chat_call("a", "b"), answer)
    assert [*transcript[2:]] == [chat_result("a", "aaa"), chat_result("b", "bbb")]
    assert (transcript.losses, transcript.interrupted_calls) == ((), ())


def test_results_come_before_what_is_said_after_the_calls() -> None:
    blocks = [*use("a")["content"], {"type": "text", "text": "so"}]
    transcript = give(RESPONSES, USER, {"role": "assistant", "content": blocks}, used("a"))
    assert [item.get("type") for item in transcript] == [
        None, "function_call", "function_call_output", None,
    ]  # fmt: skip


def test_reasoning_of_one_turn_is_not_joined_to_the_answer_of_another() -> None:
    history = [*said(USER, item_reasoning(), turn="t1"), *said(item_answer())]
    transcript = render(history, RESPONSES)
    assert [item.get("type") for item in transcript] == [None, "message"]
    assert "id" not in transcript[1]


@pytest.mark.parametrize("summary", [[{"type": "summary_text"}], [{"type": "x", "text": "a"}], "a"])
def test_reasoning_in_parts_that_are_not_known_is_left_out(summary: Any) -> None:
    transcript = give(RESPONSES, USER, {**item_reasoning(), "summary": summary}, item_answer())
    assert "reasoning" not in [item.get("type") for item in transcript]
    assert places(transcript) == [2]


def test_a_picture_from_the_system_is_told() -> None:
    url = {"type": "image_url", "image_url": {"url": PNG}}
    content = [{"type": "text", "text": "Look."}, url]
    for format in (CHAT, RESPONSES):
        transcript = give(format, {"role": "system", "content": content}, USER)
        assert places(transcript) == [1]
        assert "image" not in str([*transcript])


def test_the_result_of_a_deprecated_function_is_a_text() -> None:
    call = {"role": "assistant", "content": None, "function_call": {"name": "g", "arguments": ""}}
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    transcript = give(CHAT, USER, call, {"role": "function", "name": "g", "content": parts})
    assert transcript[2] == {"role": "function", "name": "g", "content": "a\nb"}


@pytest.mark.parametrize(
    "more",
    [
        {"tool_calls": ["f"]},
        {"tool_calls": "f"},
        {"function_call": "f"},
        {"refusal": True},
        {"audio": "AAAA"},
    ],
)
def test_fields_that_hold_something_else_are_told(more: dict[str, Any]) -> None:
    transcript = give(CHAT, USER, {**ANSWER, **more})
    assert [*transcript] == [USER, ANSWER]
    assert places(transcript) == [2]


@pytest.mark.parametrize(
    "half", [StoredMessage(3, item_call("a"), interrupted=True), StoredMessage(3, item_answer(""))]
)
def test_reasoning_is_not_given_to_what_came_after_an_answer_that_was_cut_off(
    half: StoredMessage,
) -> None:
    history = [*said(USER, item_reasoning()), half, StoredMessage(4, item_answer("again", "msg_2"))]
    transcript = render(history, RESPONSES)
    assert [item.get("type") for item in transcript] == [None, "message"]
    assert "id" not in transcript[1], "it would be looked for with reasoning that it never had"
    assert {*places(transcript)} == {2, 3}


@pytest.mark.parametrize("named", [{"call_id": "a"}, {"id": "a"}, {"id": "lsh_1"}])
def test_the_output_of_a_local_shell_finds_its_call_by_either_id(named: dict[str, Any]) -> None:
    call: dict[str, Any] = {
        "type": "local_shell_call",
        "id": "lsh_1",
        "call_id": "a",
        "status": "completed",
    }
    call |= {"action": {"command": ["ls"]}}
    output = {"type": "local_shell_call_output", "output": "done", **named}
    transcript = give(RESPONSES, USER, call, output)
    assert transcript[2] == {"type": "local_shell_call_output", "id": "lsh_1", "output": "done"}
    assert (transcript.interrupted_calls, transcript.losses) == ((), ())


def test_items_that_lack_what_they_must_have_go_with_their_results() -> None:
    call = {"type": "shell_call", "call_id": "a"}
    output = {"type": "shell_call_output", "call_id": "a", "output": []}
    transcript = give(RESPONSES, USER, call, output)
    assert [*transcript] == [USER]
    assert {*places(transcript)} == {2, 3}
    search = {"type": "web_search_call", "id": "ws_1", "status": "odd", "action": {}}
    assert places(give(RESPONSES, USER, search)) == [2]


def test_reasoning_that_is_stored_again_with_what_it_led_to_is_given() -> None:
    again = [item_reasoning(), item_answer()]
    transcript = give(RESPONSES, USER, item_reasoning(), USER, *again)
    assert [item.get("id") for item in transcript] == [None, None, "rs_1", "msg_1"]
    assert places(transcript) == [2]
