"""What the providers accept as a conversation: written from their rules, apart from perdure. Pure.

Whoever makes transcripts does not import this, and this does not import whoever makes them: that
one finds the other's errors is the point.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from perdure.errors import UsageError
from perdure.testing.provider_rules import anthropic, chat, gemini, responses
from perdure.testing.provider_rules.shapes import Finding, wrong_type

Messages = Sequence[Mapping[str, Any]]


class Circumstances(NamedTuple):
    """What a request says besides its messages, and what is known of its model."""

    system: Any = None
    reasoning_of: Mapping[str, str] | None = None
    strict: bool = True
    prefill: bool = True
    thought_signatures: bool = False


def violations(
    format: str,
    messages: Messages,
    *,
    system: Any = None,
    reasoning_of: Mapping[str, str] | None = None,
    strict: bool = True,
    prefill: bool = True,
    thought_signatures: bool = False,
) -> list[str]:
    """Say what the provider would not accept; an empty list means that it accepts.

    `format` is `openai.chat`, `openai.responses`, `anthropic` or `gemini`; `messages` is what the
    provider calls messages, input or contents, as JSON. `system` is what goes apart from them:
    Anthropic's `system`, Gemini's `systemInstruction`, the `instructions` of responses.

    - `reasoning_of` (responses) tells of ids of items the id of the reasoning they came with.
    - `strict=False` (chat) overlooks unknown and null fields, as the hosted API does.
    - `prefill=False` (anthropic, gemini) for models that want the last word to be the user's.
    - `thought_signatures=True` (gemini) for models that want them back with function calls.

    Raises UsageError if the format is unknown.
    """
    given = Circumstances(
        system=system,
        reasoning_of=reasoning_of,
        strict=strict,
        prefill=prefill,
        thought_signatures=thought_signatures,
    )
    if format not in BOOKS:
        raise UsageError(f"{format!r} is not one of {', '.join(BOOKS)}")
    return [str(finding) for finding in BOOKS[format](messages, given)]


def _chat(messages: Messages, given: Circumstances) -> Iterator[Finding]:
    if given.system is not None:
        yield Finding("Unknown parameter: 'system'.", "system", "unknown_parameter")
    yield from chat.findings(messages, strict=given.strict)


def _responses(messages: Messages, given: Circumstances) -> Iterator[Finding]:
    if given.system is not None and not isinstance(given.system, str):
        yield wrong_type("instructions", "a string", given.system)
    yield from responses.findings(messages, reasoning_of=given.reasoning_of)


def _anthropic(messages: Messages, given: Circumstances) -> Iterator[Finding]:
    yield from anthropic.findings(messages, system=given.system, prefill=given.prefill)


def _gemini(messages: Messages, given: Circumstances) -> Iterator[Finding]:
    yield from gemini.findings(
        messages,
        system=given.system,
        prefill=given.prefill,
        thought_signatures=given.thought_signatures,
    )


BOOKS: dict[str, Callable[[Messages, Circumstances], Iterator[Finding]]] = {
    "openai.chat": _chat,
    "openai.responses": _responses,
    "anthropic": _anthropic,
    "gemini": _gemini,
}
