"""The rules of the providers for conversations, written independently of perdure's formats. Pure.

`formats` and these modules never import each other, so that each finds the errors of the other.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from perdure.errors import UsageError
from perdure.testing.provider_rules import anthropic, chat, gemini, responses
from perdure.testing.provider_rules.shapes import Finding, wrong_type

Messages = Sequence[Mapping[str, Any]]


class RequestOptions(NamedTuple):
    """Parameters of a request besides its messages, and properties of its model."""

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
    """Return what the provider would reject; an empty list means that it accepts the messages.

    `format` is `openai.chat`, `openai.responses`, `anthropic` or `gemini`; `messages` is what the
    provider calls messages, input or contents, as JSON. `system` is sent separately:
    Anthropic's `system`, Gemini's `systemInstruction`, the `instructions` of responses.

    - `reasoning_of` (responses) maps ids of items to the id of the reasoning they came with.
    - `strict=False` (chat) ignores unknown and null fields, as the hosted API does.
    - `prefill=False` (anthropic, gemini) for models that require a user message at the end.
    - `thought_signatures=True` (gemini) for models that require them with function calls.

    Raises UsageError if the format is unknown.
    """
    options = RequestOptions(
        system=system,
        reasoning_of=reasoning_of,
        strict=strict,
        prefill=prefill,
        thought_signatures=thought_signatures,
    )
    if format not in RULES:
        raise UsageError(f"{format!r} is not one of {', '.join(RULES)}")
    return [str(finding) for finding in RULES[format](messages, options)]


def _chat(messages: Messages, options: RequestOptions) -> Iterator[Finding]:
    if options.system is not None:
        yield Finding("Unknown parameter: 'system'.", "system", "unknown_parameter")
    yield from chat.findings(messages, strict=options.strict)


def _responses(messages: Messages, options: RequestOptions) -> Iterator[Finding]:
    if options.system is not None and not isinstance(options.system, str):
        yield wrong_type("instructions", "a string", options.system)
    yield from responses.findings(messages, reasoning_of=options.reasoning_of)


def _anthropic(messages: Messages, options: RequestOptions) -> Iterator[Finding]:
    yield from anthropic.findings(messages, system=options.system, prefill=options.prefill)


def _gemini(messages: Messages, options: RequestOptions) -> Iterator[Finding]:
    yield from gemini.findings(
        messages,
        system=options.system,
        prefill=options.prefill,
        thought_signatures=options.thought_signatures,
    )


RULES: dict[str, Callable[[Messages, RequestOptions], Iterator[Finding]]] = {
    "openai.chat": _chat,
    "openai.responses": _responses,
    "anthropic": _anthropic,
    "gemini": _gemini,
}
