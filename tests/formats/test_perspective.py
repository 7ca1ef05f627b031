"""One agent's side of a conversation of several."""

from typing import Any

import pytest

from perdure.formats.parts import StoredMessage
from perdure.formats.transcript import FORMATS, Transcript, render
from tests.formats.transcripts import (
    ANTHROPIC,
    CHAT,
    GEMINI,
    RESPONSES,
    accepted,
    chat_call,
    chat_result,
    item_reasoning,
    whats,
)


def group(*messages: tuple[str, str, Any]) -> list[StoredMessage]:
    """Return what was said, each by an author, to a recipient."""
    return [
        StoredMessage(
            position,
            content if type(content) is dict else {"role": "user", "content": content},
            author=author,
            recipient=recipient,
        )
        for position, (author, recipient, content) in enumerate(messages, 1)
    ]


def side(format: str, name: str, *messages: tuple[str, str, Any]) -> Transcript:
    return accepted(format, render(group(*messages), format, perspective=name))


THREE = (("ann", "", "Hello"), ("bob", "", "Hi"), ("cy", "", "Hey"))


def test_each_speaker_is_the_assistant_of_its_own_side() -> None:
    assert [*side(CHAT, "bob", *THREE)] == [
        {"role": "user", "content": "Hello", "name": "ann"},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "Hey", "name": "cy"},
    ]
    roles = [message["role"] for message in side(CHAT, "ann", *THREE)]
    assert roles == ["assistant", "user", "user"]


@pytest.mark.parametrize("format", [RESPONSES, ANTHROPIC, GEMINI])
def test_without_a_field_for_names_several_others_are_named_before_their_words(
    format: str,
) -> None:
    there = str([*side(format, "bob", *THREE)])
    assert "ann: Hello" in there
    assert "cy: Hey" in there
    assert "bob: " not in there
    assert "ann: " not in str([*side(format, "bob", *THREE[:2])]), "there is only one other"


def test_whoever_has_no_author_counts_as_another() -> None:
    transcript = side(RESPONSES, "bob", ("", "", "A question"), ("ann", "", "An idea"))
    assert [message["content"] for message in transcript] == ["A question", "ann: An idea"]


def test_a_picture_without_words_gets_a_name_all_the_same() -> None:
    url = {"type": "image_url", "image_url": {"url": "https://e.org/a.png"}}
    picture = {"role": "user", "content": [url]}
    transcript = side(RESPONSES, "bob", ("ann", "", picture), ("cy", "", "Hey"))
    assert transcript[0]["content"][0] == {"type": "input_text", "text": "ann:"}


@pytest.mark.parametrize("format", FORMATS)
def test_what_was_said_to_somebody_else_is_not_there(format: str) -> None:
    transcript = side(
        format,
        "bob",
        ("ann", "cy", "a secret"),
        ("ann", "bob", "for bob"),
        ("bob", "cy", "from bob"),
        ("cy", "", "for all"),
    )
    there = str([*transcript])
    assert "a secret" not in there
    assert all(words in there for words in ("for bob", "from bob", "for all"))
    assert transcript.losses == ()


@pytest.mark.parametrize("format", FORMATS)
def test_the_calls_of_others_are_left_out_with_their_results(format: str) -> None:
    words = {**chat_call("a"), "content": "I look it up."}
    transcript = side(
        format,
        "bob",
        ("ann", "", words),
        ("tool", "ann", chat_result("a", "found")),
        ("bob", "", "So?"),
        ("bob", "", chat_call("b")),
        ("tool", "bob", chat_result("b", "mine")),
    )
    there = str([*transcript])
    assert "I look it up." in there
    assert "found" not in there
    assert "mine" in there
    assert [loss.position for loss in transcript.losses] == [1, 2]
    assert transcript.interrupted_calls == ()


@pytest.mark.parametrize("format", FORMATS)
def test_an_open_call_of_another_is_not_closed_here(format: str) -> None:
    transcript = side(format, "bob", ("ann", "", chat_call("a")), ("bob", "", "So?"))
    assert transcript.interrupted_calls == ()
    mine = side(format, "ann", ("ann", "", chat_call("a")), ("bob", "", "So?"))
    assert [each.id for each in mine.interrupted_calls] == ["a"]


def test_the_reasoning_of_another_is_left_out() -> None:
    transcript = side(RESPONSES, "bob", ("ann", "", item_reasoning()), ("bob", "", "So?"))
    assert len(transcript) == 1
    assert len(transcript.losses) == 1


def test_without_an_author_a_role_stays_what_it_is() -> None:
    transcript = side(
        CHAT,
        "bob",
        ("", "", {"role": "system", "content": "Be brief."}),
        ("ann", "cy", {"role": "system", "content": "Only for cy."}),
        ("", "", {"role": "user", "content": "Hello"}),
        ("", "", {"role": "assistant", "content": "Hi"}),
    )
    assert [message["role"] for message in transcript] == ["system", "user", "assistant"]


def test_a_name_that_chat_refuses_is_changed_and_told_once() -> None:
    transcript = side(CHAT, "bob", ("Ann B", "", "Hello"), ("Ann B", "", "Still there?"))
    assert [message["name"] for message in transcript] == ["Ann_B", "Ann_B"]
    assert whats(transcript) == [
        "the name 'Ann B' is sent as 'Ann_B': openai.chat does not allow it"
    ]


def test_the_same_history_gives_every_side() -> None:
    """Rendering one side changes nothing for the next."""
    history = group(*THREE)
    first = [*render(history, CHAT, perspective="ann")]
    render(history, CHAT, perspective="bob")
    assert [*render(history, CHAT, perspective="ann")] == first
