"""The rules of the providers for conversations, written independently of perdure's formats. Pure.

`formats` and these modules never import each other, so that each finds the errors of the other.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perdure.errors import UsageError
from perdure.testing.provider_rules import anthropic, chat, gemini, responses
from perdure.testing.provider_rules.shapes import Finding, wrong_type

FORMATS = ("openai.chat", "openai.responses", "anthropic", "gemini")


def violations(
    format: str,
    messages: Sequence[Mapping[str, Any]],
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
    if format not in FORMATS:
        raise UsageError(f"{format!r} is not one of {', '.join(FORMATS)}")
    found: Iterable[Finding]
    match format:
        case "openai.chat":
            found = chat.findings(messages, strict=strict)
            if system is not None:
                unknown = Finding("Unknown parameter: 'system'.", "system", "unknown_parameter")
                found = [unknown, *found]
        case "openai.responses":
            found = responses.findings(messages, reasoning_of=reasoning_of)
            if system is not None and not isinstance(system, str):
                found = [wrong_type("instructions", "a string", system), *found]
        case "anthropic":
            found = anthropic.findings(messages, system=system, prefill=prefill)
        case _:
            found = gemini.findings(
                messages, system=system, prefill=prefill, thought_signatures=thought_signatures
            )
    return [str(finding) for finding in found]
