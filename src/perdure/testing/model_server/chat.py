"""An answer in the words of chat completions: whole, or as the chunks of a stream. Pure."""

from collections.abc import Iterator
from typing import Any

from perdure.testing.model_server.answers import Answer, Call, pieces, with_ids
from perdure.testing.model_server.prompts import Prompt

CREATED = 1_750_000_000

"""When everything is said: time stands still, so that an answer depends on its request alone."""


def completion(prompt: Prompt, answer: Answer) -> dict[str, Any]:
    """Make the body of an answer that is not streamed."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": answer.text,
        "refusal": answer.refusal,
        "annotations": [],
    }
    if answer.reasoning is not None:
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        message["tool_calls"] = [
            _call(call, id, call.arguments) for call, id in with_ids(answer, prompt.seed)
        ]
    choices = [
        {
            "index": index,
            "message": message,
            "logprobs": None,
            "finish_reason": answer.finish_reason,
        }
        for index in range(_choices(prompt))
    ]
    head = _head(prompt, "chat.completion")
    return {**head, "choices": choices, "usage": _usage(prompt, answer)}


def chunks(prompt: Prompt, answer: Answer) -> Iterator[dict[str, Any]]:
    """Make the chunks of an answer that is streamed, without the mark at the end of them."""
    head = _head(prompt, "chat.completion.chunk")
    wants_usage = bool((prompt.body.get("stream_options") or {}).get("include_usage"))
    if wants_usage:
        head["usage"] = None
    for index in range(_choices(prompt)):
        for delta in _deltas(prompt, answer):
            yield {**head, "choices": [_choice(index, delta)]}
        yield {**head, "choices": [_choice(index, {}, answer.finish_reason)]}
    if wants_usage:
        yield {**head, "choices": [], "usage": _usage(prompt, answer)}


def _deltas(prompt: Prompt, answer: Answer) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": None if answer.calls else "", "refusal": None}
    yield from ({"reasoning_content": piece} for piece in pieces(answer.reasoning or ""))
    yield from ({"content": piece} for piece in pieces(answer.text or ""))
    yield from ({"refusal": piece} for piece in pieces(answer.refusal or ""))
    for index, (call, id) in enumerate(with_ids(answer, prompt.seed)):
        yield {"tool_calls": [{"index": index, **_call(call, id, "")}]}
        kind, field = _names(call)
        for piece in pieces(call.arguments):
            yield {"tool_calls": [{"index": index, kind: {field: piece}}]}


def _choice(index: int, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}


def _call(call: Call, id: str, arguments: str) -> dict[str, Any]:
    kind, field = _names(call)
    return {"id": id, "type": kind, kind: {"name": call.name, field: arguments}}


def _names(call: Call) -> tuple[str, str]:
    return ("custom", "input") if call.custom else ("function", "arguments")


def _choices(prompt: Prompt) -> int:
    return int(prompt.body.get("n") or 1)


def _head(prompt: Prompt, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{prompt.seed}",
        "object": kind,
        "created": CREATED,
        "model": prompt.body["model"],
        "service_tier": "default",
        "system_fingerprint": "fp_perdure",
    }


def _usage(prompt: Prompt, answer: Answer) -> dict[str, Any]:
    completion = (answer.tokens + answer.reasoning_tokens) * _choices(prompt)
    return {
        "prompt_tokens": prompt.tokens,
        "completion_tokens": completion,
        "total_tokens": prompt.tokens + completion,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": answer.reasoning_tokens * _choices(prompt),
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }
