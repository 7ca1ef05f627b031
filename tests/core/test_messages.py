"""Messages that are only texts, which are neither parsed nor packed, are treated like others."""

import enum
import json
from typing import Any

import pytest

import perdure
from perdure.errors import UsageError
from perdure.journal.records import Message
from tests.support import said

CALL = {"role": "tool", "tool_call_id": "c", "content": "done"}


@pytest.mark.parametrize("message", [said("Grüße, 東京"), said("a", "system"), CALL])
def test_a_message_of_texts_is_stored_as_it_is(message: dict[str, Any]) -> None:
    session = perdure.open("memory:").session("s")
    session.append(message)
    (record,) = session.records()
    assert isinstance(record.content, Message)
    assert json.dumps(record.content.message) == json.dumps(message)


@pytest.mark.parametrize("field", ["content", "tool_call_id"])
def test_a_text_that_utf8_cannot_encode_is_refused_with_its_path(field: str) -> None:
    session = perdure.open("memory:").session("s")
    with pytest.raises(UsageError, match="lone surrogate at index 1") as caught:
        session.append(said("fine"), {**CALL, field: "a\ud800"})
    assert f"$.{field}" in str(caught.value)
    assert len(session) == 0


class Role(enum.StrEnum):
    USER = "user"


@pytest.mark.parametrize(
    "message",
    [
        {"role": Role.USER, "content": "a"},
        {"role": "robot", "content": "a"},
        {"role": "user", "text": "a"},
        {"role": "tool", "tool_call_id": "", "content": "a"},
        {"role": "tool", "call": "c", "content": "a"},
        {"role": "user", "content": 1},
        {},
    ],
)
def test_what_only_resembles_a_message_of_texts_is_refused(message: dict[str, Any]) -> None:
    session = perdure.open("memory:").session("s")
    with pytest.raises(UsageError):
        session.append(message)


def test_a_message_that_changes_while_it_is_written_is_stored_as_it_was() -> None:
    session = perdure.open("memory:").session("s")
    message = said("before")
    with session.batch() as batch:
        batch.append(message)
        message["content"] = "after"
    assert session.messages()[0]["content"] == "before"
