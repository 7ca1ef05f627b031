"""What the tests of transcripts have in common."""

from typing import Any

from perdure.formats.parts import StoredMessage
from perdure.formats.transcript import Transcript, render
from perdure.testing import violations

CHAT, RESPONSES, ANTHROPIC, GEMINI = "openai.chat", "openai.responses", "anthropic", "gemini"

USER: dict[str, Any] = {"role": "user", "content": "hello"}
ANSWER: dict[str, Any] = {"role": "assistant", "content": "hi"}


def said(*messages: dict[str, Any], **more: Any) -> list[StoredMessage]:
    """Return messages as they were stored, at positions from 1."""
    return [
        StoredMessage(position, message, **more) for position, message in enumerate(messages, 1)
    ]


def give(format: str, *messages: dict[str, Any]) -> Transcript:
    """Render messages, and make sure that the provider takes them."""
    return accepted(format, render(said(*messages), format))


def accepted(format: str, transcript: Transcript) -> Transcript:
    if transcript:
        assert violations(format, transcript, system=transcript.system) == []
    return transcript


def whats(transcript: Transcript) -> list[str]:
    return [loss.what for loss in transcript.losses]


def places(transcript: Transcript) -> list[int]:
    return [loss.position for loss in transcript.losses]


def chat_call(*ids: str, name: str = "f", arguments: str = '{"a": 1}') -> dict[str, Any]:
    calls = [
        {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for id in ids
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def chat_result(id: str, content: Any = "done") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": content}


def item_call(id: str, name: str = "f", item_id: str = "") -> dict[str, Any]:
    item = {"type": "function_call", "call_id": id, "name": name, "arguments": '{"a": 1}'}
    return {**item, "id": item_id} if item_id else item


def item_result(id: str, output: Any = "done") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": id, "output": output}


def item_reasoning(id: str = "rs_1") -> dict[str, Any]:
    return {"type": "reasoning", "id": id, "summary": [], "encrypted_content": "gAAA"}


def item_answer(text: str = "hi", id: str = "msg_1") -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    message = {"type": "message", "role": "assistant", "content": [part], "status": "completed"}
    return {**message, "id": id} if id else message


def use(*ids: str, name: str = "f") -> dict[str, Any]:
    blocks = [{"type": "tool_use", "id": id, "name": name, "input": {"a": 1}} for id in ids]
    return {"role": "assistant", "content": blocks}


def used(*ids: str, content: Any = "done") -> dict[str, Any]:
    results = [{"type": "tool_result", "tool_use_id": id, "content": content} for id in ids]
    return {"role": "user", "content": results}


def gemini_call(*names: str) -> dict[str, Any]:
    parts = [{"functionCall": {"name": name, "args": {"a": 1}}} for name in names]
    return {"role": "model", "parts": parts}


def gemini_result(*names: str) -> dict[str, Any]:
    parts = [{"functionResponse": {"name": name, "response": {"output": "done"}}} for name in names]
    return {"role": "user", "parts": parts}
