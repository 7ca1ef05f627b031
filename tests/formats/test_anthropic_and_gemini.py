"""Transcripts for Anthropic and for Gemini."""

from typing import Any

import pytest

from perdure.formats.alternation import OPENING
from tests.formats.transcripts import (
    ANSWER,
    ANTHROPIC,
    CHAT,
    GEMINI,
    RESPONSES,
    USER,
    chat_call,
    chat_result,
    gemini_call,
    gemini_result,
    give,
    item_call,
    item_result,
    places,
    use,
    used,
    whats,
)

THINKING = {"type": "thinking", "thinking": "hm", "signature": "EqQB"}
HI = {"type": "text", "text": "hi"}
SYSTEM = {"role": "system", "content": "Be brief."}


def assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": [*blocks]}


def test_anthropics_messages_come_back_as_they_were() -> None:
    server = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []}
    messages = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "see", "cache_control": {"type": "ephemeral"}},
                {"type": "image", "source": {"type": "url", "url": "https://e.org/a.png"}},
                {"type": "document", "source": {"type": "file", "file_id": "f"}, "title": "t"},
            ],
        },
        assistant(THINKING, HI, *use("a", "b")["content"]),
        {
            "role": "user",
            "content": [*used("a", "b")["content"], {"type": "text", "text": "well?"}],
        },
        assistant({"type": "redacted_thinking", "data": "x"}, server, found, HI),
    ]
    transcript = give(ANTHROPIC, *messages)
    assert [*transcript] == messages
    assert (transcript.losses, transcript.system) == ((), None)


def test_what_an_answer_says_of_itself_is_no_loss() -> None:
    answer: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "usage": {},
    }
    answer |= {"stop_reason": "end_turn", "content": [{**HI, "citations": None}]}
    transcript = give(ANTHROPIC, USER, answer)
    assert [*transcript] == [USER, ANSWER]
    assert transcript.losses == ()


@pytest.mark.parametrize(
    ("format", "system"),
    [
        (ANTHROPIC, "Be brief.\n\nIn French."),
        (GEMINI, {"parts": [{"text": "Be brief."}, {"text": "In French."}]}),
    ],
)
def test_the_systems_words_go_apart(format: str, system: Any) -> None:
    later = {"role": "developer", "content": "In French."}
    assert give(format, SYSTEM, later, USER).losses == ()
    transcript = give(format, SYSTEM, USER, later)
    assert transcript.system == system
    assert len(transcript) == 1
    assert places(transcript) == [3], "that it came later is told"


def test_a_system_with_a_breakpoint_stays_in_blocks() -> None:
    block = {"type": "text", "text": "long", "cache_control": {"type": "ephemeral"}}
    assert give(ANTHROPIC, {"role": "system", "content": [block]}, USER).system == [block]


@pytest.mark.parametrize("format", [ANTHROPIC, GEMINI])
def test_the_user_begins(format: str) -> None:
    transcript = give(format, ANSWER, USER)
    assert OPENING in str(transcript[0])
    assert [message["role"] for message in transcript][::2] == ["user", "user"]


@pytest.mark.parametrize("format", [ANTHROPIC, GEMINI])
def test_what_one_side_says_in_a_row_is_one_turn(format: str) -> None:
    transcript = give(format, USER, USER, ANSWER, chat_call("a"), chat_result("a"), USER)
    assert len(transcript) == 3


def test_thinking_goes_with_what_it_led_to() -> None:
    alone = give(ANTHROPIC, USER, assistant(THINKING), USER)
    assert len(alone) == 1
    assert places(alone) == [2]
    unsigned = give(ANTHROPIC, USER, assistant({"type": "thinking", "thinking": "hm"}, HI))
    assert unsigned[1] == ANSWER
    assert places(unsigned) == [2]
    elsewhere = give(CHAT, USER, assistant(THINKING, HI))
    assert [*elsewhere] == [USER, ANSWER]
    assert places(elsewhere) == [2]


def test_thinking_in_the_middle_of_a_turn_is_left_out() -> None:
    transcript = give(ANTHROPIC, USER, assistant(THINKING, HI), assistant(THINKING, HI))
    assert transcript[1]["content"] == [THINKING, HI, HI]
    assert places(transcript) == [3]


def test_white_space_alone_is_left_out_and_at_the_end_trimmed() -> None:
    blank = {"role": "user", "content": " \n"}
    transcript = give(ANTHROPIC, USER, blank, {"role": "assistant", "content": "hi \n"})
    assert [*transcript] == [USER, ANSWER]
    assert places(transcript) == [2]


def test_what_a_server_did_not_answer_is_left_out() -> None:
    server = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srv_2", "content": []}
    transcript = give(ANTHROPIC, USER, assistant(HI, server), USER, assistant(found, HI), USER)
    assert places(transcript) == [2, 4]
    paused = give(ANTHROPIC, USER, assistant(HI, server))
    assert paused[1] == assistant(HI, server), "the server goes on with what was asked last"


def test_ids_that_anthropic_refuses_are_changed_on_both_sides() -> None:
    transcript = give(ANTHROPIC, USER, chat_call("functions.f:0"), chat_result("functions.f:0"))
    assert transcript[1]["content"][0]["id"] == "functions_f_0"
    assert transcript[2]["content"][0]["tool_use_id"] == "functions_f_0"


@pytest.mark.parametrize("format", [ANTHROPIC, GEMINI])
@pytest.mark.parametrize("arguments", ["{", "[1]", '"a"', "NaN", '{"a": "\\ud800"}', "[" * 5000])
def test_arguments_that_are_no_object_are_given_as_a_text_and_told(
    arguments: str, format: str
) -> None:
    transcript = give(format, USER, chat_call("a", arguments=arguments), chat_result("a"))
    assert {"input": arguments} in [
        part.get("input") or part["functionCall"]["args"]
        for part in transcript[1].get("content") or transcript[1]["parts"]
    ]
    assert places(transcript) == [2]


@pytest.mark.parametrize("format", [ANTHROPIC, GEMINI])
def test_no_arguments_are_an_empty_object(format: str) -> None:
    transcript = give(format, USER, chat_call("a", arguments=""), chat_result("a"))
    assert transcript.losses == ()


def test_errors_are_marked_where_there_is_a_mark() -> None:
    failed = used("a")
    failed["content"][0]["is_error"] = True
    assert give(ANTHROPIC, USER, use("a"), failed)[2] == failed
    there = give(GEMINI, USER, use("a"), failed)
    assert there[2]["parts"][0]["functionResponse"]["response"] == {"error": "done"}
    back = give(ANTHROPIC, *there)
    assert back[2]["content"][0]["is_error"] is True
    for format in (CHAT, RESPONSES):
        assert places(give(format, USER, use("a"), failed)) == [3]


def test_anthropic_takes_pictures_and_papers_from_others() -> None:
    parts = [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "image_url", "image_url": {"url": "https://e.org/a.png"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA"}},
        {"type": "file", "file": {"file_data": "data:text/plain;base64,aGk=", "filename": "n"}},
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "image_url", "image_url": {"url": "data:image/tiff;base64,AAAA"}},
    ]
    transcript = give(ANTHROPIC, {"role": "user", "content": parts})
    sources = [block["source"] for block in transcript[0]["content"]]
    assert [source["type"] for source in sources] == ["base64", "url", "base64", "text"]
    assert sources[3]["data"] == "hi"
    assert len(transcript.losses) == 2


def test_geminis_contents_come_back_in_the_spelling_of_the_api() -> None:
    picture = {"inline_data": {"mime_type": "image/png", "data": b"\0\0\0"}}
    call = {"name": "f", "args": {"a_b": 1}, "id": "x"}
    rows = {"name": "f", "id": "x", "response": {"rows": [1]}}
    thought = {"text": "hm", "thought": True}
    code = {"code": "1", "language": "PYTHON"}
    transcript = give(
        GEMINI,
        {"role": "user", "parts": [{"text": "see"}, picture]},
        {"role": "model", "parts": [thought, {"function_call": call, "thought_signature": b"sig"}]},
        {"role": "function", "parts": [{"function_response": rows}]},
        {"role": "model", "parts": [{"executable_code": code}, {"text": "hi"}]},
    )
    picture = {"inlineData": {"mimeType": "image/png", "data": "AAAA"}}
    assert [*transcript] == [
        {"role": "user", "parts": [{"text": "see"}, picture]},
        {"role": "model", "parts": [thought, {"functionCall": call, "thoughtSignature": "c2ln"}]},
        {"role": "user", "parts": [{"functionResponse": rows}]},
        {"role": "model", "parts": [{"executableCode": code}, {"text": "hi"}]},
    ]
    assert transcript.losses == ()


def test_gemini_calls_without_ids_are_paired_by_name_and_get_ids_elsewhere() -> None:
    history = [USER, gemini_call("f", "g"), gemini_result("g"), gemini_result("f"), ANSWER]
    there = give(CHAT, *history)
    ids = [call["id"] for call in there[1]["tool_calls"]]
    assert len({*ids}) == 2
    assert (there.interrupted_calls, there.losses) == ((), ())
    own = give(GEMINI, *history)
    names = [part["functionResponse"]["name"] for part in own[2]["parts"]]
    assert names == ["f", "g"]


def test_thoughts_alone_are_left_out() -> None:
    thought = {"role": "model", "parts": [{"text": "hm", "thought": True}]}
    assert places(give(GEMINI, USER, thought, USER)) == [2]
    empty = {"role": "model", "parts": [{"text": "", "thought": True}, {"text": "hi"}]}
    assert give(GEMINI, USER, empty)[1]["parts"] == [{"text": "hi"}]
    signed = {"role": "model", "parts": [{"text": "hi"}, {"text": "", "thoughtSignature": "c2ln"}]}
    assert [*give(GEMINI, USER, signed)][1] == signed


def test_results_keep_their_words_between_anthropic_and_gemini() -> None:
    history = [USER, use("a"), used("a", content="42"), ANSWER]
    there = give(GEMINI, *history)
    assert there[2]["parts"][0]["functionResponse"]["response"] == {"output": "42"}
    back = give(ANTHROPIC, *there)
    assert [*back] == history
    assert (there.losses, back.losses) == ((), ())


def test_a_refusal_is_words_where_there_is_no_mark() -> None:
    refused = {"role": "assistant", "content": None, "refusal": "No."}
    for format in (ANTHROPIC, GEMINI):
        transcript = give(format, USER, refused)
        assert "No." in str(transcript[1])
        assert whats(transcript) == [f"the refusal flag was left out: {format} has none"]


def test_a_conversation_keeps_its_meaning_through_all_four() -> None:
    history = [USER, {**chat_call("a", "b"), "content": "Wait."}, chat_result("a", "one")]
    history += [chat_result("b", "two"), ANSWER]
    through = history
    for format in (RESPONSES, ANTHROPIC, GEMINI, CHAT):
        transcript = give(format, *through)
        assert transcript.losses == ()
        through = [*transcript]
    arguments = '{"a":1}'
    for call in history[1]["tool_calls"]:
        call["function"]["arguments"] = arguments
    assert through == history


def test_unknown_blocks_are_left_out_and_told() -> None:
    transcript = give(ANTHROPIC, USER, assistant(HI, {"type": "hologram"}), use("a"), used("a"))
    assert places(transcript) == [2]


def test_calls_are_given_to_gemini_under_names_it_takes() -> None:
    transcript = give(GEMINI, USER, item_call("a", name="9 lives"), item_result("a"))
    assert transcript[1]["parts"][0]["functionCall"]["name"] == "_9_lives"
    assert transcript[2]["parts"][0]["functionResponse"]["name"] == "_9_lives"
    assert places(transcript) == [2]


def test_thinking_of_one_answer_is_not_joined_to_the_next() -> None:
    transcript = give(ANTHROPIC, USER, assistant(THINKING), assistant(HI))
    assert [*transcript] == [USER, ANSWER]
    assert places(transcript) == [2]


def test_thinking_with_an_empty_signature_is_left_out() -> None:
    transcript = give(ANTHROPIC, USER, assistant({**THINKING, "signature": ""}, HI))
    assert [*transcript] == [USER, ANSWER]
    assert places(transcript) == [2]


def test_gemini_parts_that_hold_too_much_are_told() -> None:
    both = {"text": "hi", "functionCall": {"name": "f"}}
    transcript = give(GEMINI, USER, {"role": "model", "parts": [both, {"text": "hi"}]})
    assert transcript[1]["parts"] == [{"text": "hi"}]
    assert places(transcript) == [2]
    more = {"text": "hi", "thoughtSignature": "c2ln", "mood": "good"}
    transcript = give(GEMINI, USER, {"role": "model", "parts": [more]})
    assert transcript[1]["parts"] == [{"text": "hi", "thoughtSignature": "c2ln"}]
    assert whats(transcript) == ["the field 'mood' of a part was left out"]


def test_a_gemini_result_has_the_id_of_its_call_or_none() -> None:
    result = gemini_result("f")
    result["parts"][0]["functionResponse"]["id"] = "x"
    transcript = give(GEMINI, USER, gemini_call("f"), result)
    assert "id" not in transcript[2]["parts"][0]["functionResponse"]
    assert transcript.interrupted_calls == ()


@pytest.mark.parametrize("message", [assistant(HI), {"role": "model", "parts": [{"text": "hi"}]}])
def test_fields_around_the_content_are_told(message: dict[str, Any]) -> None:
    for format in (ANTHROPIC, GEMINI, CHAT):
        transcript = give(format, USER, {**message, "mood": "good"})
        assert places(transcript) == [2]
        assert "the field 'mood' of the message was left out" in whats(transcript)[0]


def test_several_texts_of_one_answer_stay_one_message() -> None:
    two = assistant(HI, {"type": "text", "text": "there"})
    there = give(RESPONSES, USER, two)[1]["content"]
    assert [part["text"] for part in there] == ["hi", "there"]
    assert [part["text"] for part in give(CHAT, USER, two)[1]["content"]] == ["hi", "there"]
    assert give(ANTHROPIC, USER, two)[1] == two


@pytest.mark.parametrize(
    "source",
    [
        {"type": "text", "media_type": "text/plain", "data": "words"},
        {"type": "content", "content": [{"type": "text", "text": "words"}]},
        {"type": "content", "content": "words"},
    ],
)
def test_a_document_of_words_is_its_words_elsewhere(source: dict[str, Any]) -> None:
    message = {"role": "user", "content": [{"type": "document", "source": source}]}
    assert [*give(ANTHROPIC, message)] == [message]
    assert [*give(CHAT, message)] == [{"role": "user", "content": "words"}]


def test_what_is_not_a_known_block_in_a_result_is_told() -> None:
    transcript = give(CHAT, USER, use("a"), used("a", content=[HI, {"type": "hologram"}, 7]))
    assert transcript[2]["content"] == "hi"
    assert places(transcript) == [3, 3]


def test_a_document_with_images_stays_whole_or_is_told_as_lost() -> None:
    image = {"type": "image", "source": {"type": "url", "url": "http://a"}}
    text = {"type": "text", "text": "see"}
    for content, losses in (([text, image], 1), ([text, text], 0)):
        block = {"type": "document", "source": {"type": "content", "content": content}}
        message = {"role": "user", "content": [text, block]}
        assert give(ANTHROPIC, message)[0]["content"][1] == block
        assert len(give(CHAT, message).losses) == losses
