"""What holds in every format: pairs, interruptions, empty messages, unknown roles."""

import json
from typing import Any

import pytest

from perdure.errors import UsageError
from perdure.formats.parts import StoredMessage
from perdure.formats.tool_calls import INTERRUPTED_NOTICE
from perdure.formats.transcript import FORMATS, InterruptedCall, detect_format, render
from tests.formats.transcripts import (
    ANSWER,
    ANTHROPIC,
    CHAT,
    GEMINI,
    RESPONSES,
    USER,
    accepted,
    chat_call,
    chat_result,
    gemini_call,
    gemini_result,
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

every_format = pytest.mark.parametrize("format", FORMATS)
PAIRS = [
    pytest.param(chat_call, chat_result, id="chat"),
    pytest.param(item_call, item_result, id="responses"),
    pytest.param(use, used, id="anthropic"),
    pytest.param(gemini_call, gemini_result, id="gemini"),
]
every_pair = pytest.mark.parametrize(("call", "result"), PAIRS)


def dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def test_an_unknown_format_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"openai.chat, openai.responses, anthropic, gemini"):
        render([], "openai")


@every_format
def test_nothing_said_gives_nothing(format: str) -> None:
    transcript = render([], format)
    assert ([*transcript], transcript.system, transcript.losses) == ([], None, ())


@pytest.mark.parametrize(
    ("message", "format"),
    [
        (USER, CHAT),
        ({}, CHAT),
        ({"role": "user", "content": [{"type": "text", "text": "a"}]}, CHAT),
        ({"role": "user", "content": [{"type": "file", "file": {}}]}, CHAT),
        (chat_call("a"), CHAT),
        ({**chat_call("a"), "content": [{"type": "text", "cache_control": {}}]}, CHAT),
        (chat_result("a", [{"type": "text", "text": "a"}]), CHAT),
        (item_answer(), RESPONSES),
        ({"role": "user", "content": [{"type": "input_text", "text": "a"}]}, RESPONSES),
        ({"type": "message", "role": "user", "content": "a"}, RESPONSES),
        ({"type": "message", "role": "assistant", "content": [{"type": "refusal"}]}, RESPONSES),
        (item_reasoning(), RESPONSES),
        ({"type": "never heard of"}, RESPONSES),
        ({"id": "msg_1"}, RESPONSES),
        (use("a"), ANTHROPIC),
        (used("a"), ANTHROPIC),
        ({"role": "assistant", "content": [{"type": "thinking"}]}, ANTHROPIC),
        ({"type": "message", "role": "assistant", "content": [], "stop_reason": "x"}, ANTHROPIC),
        ({"role": "user", "content": [{"type": "text", "cache_control": {}}]}, ANTHROPIC),
        (gemini_call("f"), GEMINI),
        ({"role": "model"}, GEMINI),
        ({"role": 5, "content": [{"type": []}, 7]}, CHAT),
    ],
)
def test_the_format_of_a_message_is_told_from_the_message(
    message: dict[str, Any], format: str
) -> None:
    assert detect_format(message) == format


@every_format
@every_pair
def test_an_open_call_is_closed_by_a_notice(call: Any, result: Any, format: str) -> None:
    transcript = give(format, USER, call("c1"), ANSWER)
    assert INTERRUPTED_NOTICE in dumped([*transcript])
    assert [(each.position, each.id) for each in transcript.interrupted_calls] == [(2, "c1")]
    assert give(format, USER, call("c1"), result("c1"), ANSWER).interrupted_calls == ()


def test_what_was_closed_bears_its_stored_name_and_id() -> None:
    transcript = give(ANTHROPIC, USER, chat_call("an id!", name="a tool"))
    assert transcript.interrupted_calls == (InterruptedCall(2, "an id!", "a tool"),)


@every_format
@every_pair
def test_a_late_result_goes_to_its_call(call: Any, result: Any, format: str) -> None:
    late = give(format, USER, call("c1"), {"role": "user", "content": "still there?"}, result("c1"))
    there = dumped([*late])
    assert there.index("done") < there.index("still there?")
    assert late.interrupted_calls == ()


@every_format
@every_pair
def test_a_result_without_a_call_is_left_out_and_told(call: Any, result: Any, format: str) -> None:
    transcript = give(format, USER, result("c1"), ANSWER)
    assert "done" not in dumped([*transcript])
    assert places(transcript) == [2]


@every_format
@every_pair
def test_a_result_is_never_given_to_a_later_call(call: Any, result: Any, format: str) -> None:
    """It may be that of an earlier call with the same id, which a window left out."""
    transcript = give(format, USER, result("c1"), call("c1"))
    assert "done" not in dumped([*transcript])
    assert len(transcript.interrupted_calls) == 1


@every_format
@every_pair
def test_of_two_results_the_first_is_given(call: Any, result: Any, format: str) -> None:
    transcript = give(format, USER, call("c1"), result("c1"), result("c1"), ANSWER)
    assert dumped([*transcript]).count("done") == 1
    assert places(transcript) == [4]
    assert "already has a result" in whats(transcript)[0]


@every_format
def test_a_result_takes_the_place_of_a_notice_before_it(format: str) -> None:
    notice = chat_result("c1", INTERRUPTED_NOTICE)
    transcript = give(format, USER, chat_call("c1"), notice, ANSWER, chat_result("c1"))
    assert "done" in dumped([*transcript])
    assert INTERRUPTED_NOTICE not in dumped([*transcript])
    assert places(transcript) == [3]
    again = give(format, USER, chat_call("c1"), chat_result("c1"), notice)
    assert INTERRUPTED_NOTICE not in dumped([*again])


@every_format
def test_ids_that_repeat_are_told_apart(format: str) -> None:
    """The crashed call is not given the result of the call that was made again after it."""
    transcript = give(format, USER, chat_call("c1"), USER, chat_call("c1"), chat_result("c1"))
    assert [each.position for each in transcript.interrupted_calls] == [2]
    there = dumped([*transcript])
    assert there.index(INTERRUPTED_NOTICE) < there.index("done")
    assert "c1_2" in there


def test_calls_of_one_message_with_one_id_are_answered_in_order() -> None:
    results = [chat_result("c", "one"), chat_result("c", "two")]
    transcript = give(CHAT, USER, chat_call("c", "c"), *results)
    assert [(each["tool_call_id"], each["content"]) for each in transcript[2:]] == [
        ("c", "one"),
        ("c_2", "two"),
    ]


@every_format
def test_results_follow_in_the_order_of_their_calls(format: str) -> None:
    results = [chat_result("b", "second"), chat_result("a", "first")]
    there = dumped([*give(format, USER, chat_call("a", "b"), *results)])
    assert there.index("first") < there.index("second")


@every_format
def test_results_of_any_format_answer_calls_of_any_other(format: str) -> None:
    asked = [chat_call("a"), item_call("b"), use("c")]
    given = [item_result("a"), used("b"), chat_result("c")]
    transcript = give(format, USER, *asked, *given)
    assert (transcript.interrupted_calls, transcript.losses) == ((), ())


@every_format
@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": ""},
        {"role": "user", "content": None},
        {"role": "user", "content": []},
        {"role": "assistant", "content": "", "tool_calls": []},
        {"type": "message", "role": "assistant", "content": []},
        {"role": "assistant", "content": [{"type": "text", "text": ""}]},
        {"role": "model", "parts": []},
        {},
    ],
)
def test_an_empty_message_is_left_out_and_told(message: dict[str, Any], format: str) -> None:
    transcript = give(format, USER, message, USER)
    assert places(transcript) == [2]
    assert dumped([*transcript]).count("hello") == 2


@every_format
def test_an_unknown_role_is_given_as_the_user_and_told(format: str) -> None:
    transcript = give(format, {"role": "narrator", "content": "Once upon a time"}, ANSWER)
    assert "Once upon a time" in dumped([*transcript])
    assert transcript[0]["role"] == "user"
    assert whats(transcript) == ["the role 'narrator' is sent as 'user'"]


@every_format
def test_whoever_makes_calls_is_given_as_the_assistant(format: str) -> None:
    transcript = give(format, USER, {**chat_call("a"), "role": "bot"}, chat_result("a"))
    assert "the role 'bot' is sent as 'assistant'" in whats(transcript)
    assert transcript.interrupted_calls == ()


@every_format
def test_the_words_of_an_answer_that_was_cut_off_are_given(format: str) -> None:
    cut = {**chat_call("c1"), "content": "The answer is", "refusal": None}
    history = [*said(USER), StoredMessage(2, cut, interrupted=True)]
    transcript = accepted(format, render(history, format))
    assert "The answer is" in dumped([*transcript])
    assert "c1" not in dumped([*transcript])
    assert transcript.interrupted_calls == ()
    assert whats(transcript) == ["a call of 'f' was left out: the answer was interrupted"]


@every_format
@pytest.mark.parametrize(
    "message", [chat_call("a"), item_reasoning(), use("a"), gemini_call("f"), item_call("a")]
)
def test_an_answer_that_was_cut_off_before_its_words_is_left_out(
    message: dict[str, Any], format: str
) -> None:
    history = [*said(USER), StoredMessage(2, message, interrupted=True)]
    transcript = accepted(format, render(history, format))
    assert len(transcript) == 1
    assert {*places(transcript)} == {2}


@every_format
def test_what_is_rendered_shares_no_change_with_what_is_stored(format: str) -> None:
    messages = [USER, chat_call("a"), chat_result("a"), item_answer(), use("b"), gemini_call("f")]
    before = dumped(messages)
    transcript = give(format, *messages)
    for message in transcript:
        message.clear()
    assert dumped(messages) == before


def test_losses_come_in_the_order_of_what_was_said() -> None:
    transcript = give(CHAT, item_reasoning(), USER, chat_result("x"), item_reasoning("rs_2"))
    assert places(transcript) == [1, 3, 4]
