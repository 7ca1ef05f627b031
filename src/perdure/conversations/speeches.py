"""Normalize stored messages: each is parsed by the reader of its own format.

Stored messages come in, `Speech` objects in the neutral form go out. Pure; stored messages are
never changed.
"""

from collections.abc import Callable, Sequence

from perdure.formats import anthropic, chat, gemini, responses
from perdure.formats.parts import (
    ANTHROPIC,
    CHAT,
    GEMINI,
    RESPONSES,
    Loss,
    Losses,
    Native,
    Part,
    Refusal,
    Result,
    Said,
    Speech,
    Text,
    ToolCall,
)
from perdure.formats.shapes import shape

_READERS: dict[str, Callable[[Native, int], Speech]] = {
    CHAT: chat.read,
    RESPONSES: responses.read,
    ANTHROPIC: anthropic.read,
    GEMINI: gemini.read,
}


def heard(stored: Sequence[Said], losses: Losses) -> list[Speech]:
    """Normalize messages; the items of one answer of the Responses API become one message."""
    normalized: list[Speech] = []
    latest: dict[str, Speech] = {}  # By turn: two workers may write at the same time.
    for position, native, author, recipient, _, turn, interrupted in stored:
        message = _READERS[shape(native)](native, position)
        message.author, message.recipient, message.turn = author, recipient, turn
        if interrupted:
            _cut_off(message, losses)
        previous = latest.get(turn) if turn else normalized[-1] if normalized else None
        if not message.parts:
            if previous is not None:
                previous.ended = True
            if not interrupted:
                losses.append(Loss(position, "the message was left out: it is empty"))
            continue
        if message.role not in ("assistant", "context"):
            _set_role(message, losses)
        if message.home == RESPONSES and previous is not None and _goes_on(previous, message):
            previous.parts += message.parts
        else:
            normalized.append(message)
            latest[turn] = message
    return normalized


def _set_role(message: Speech, losses: Losses) -> None:
    """Set the role of a message with an unknown role, or with calls: only assistants make calls."""
    calls = any(type(part) is ToolCall for part in message.parts)
    if message.role and not calls:
        return
    role = "assistant" if calls else "user"
    losses.append(Loss(message.at, f"the role {message.stored_role!r} is sent as {role!r}"))
    message.role, message.stored_role = role, ""


def _goes_on(previous: Speech, message: Speech) -> bool:
    """Whether an item belongs to the same answer as the one before it.

    After calls, only further calls do: any other item was written after their results.
    """
    return (
        message.role == previous.role == "assistant"
        and not (previous.ended or message.ended)
        and previous.turn == message.turn
        and previous.author == message.author
        and previous.recipient == message.recipient
        and previous.home in (RESPONSES, CHAT)
        and (type(previous.parts[-1]) is not ToolCall or type(message.parts[0]) is ToolCall)
    )


def _cut_off(message: Speech, losses: Losses) -> None:
    """Keep only texts and results of an interrupted answer: its other parts may be incomplete."""
    kept: list[Part] = []
    for part in message.parts:
        if type(part) is Text:
            kept.append(Text(part.at, part.text))
        elif type(part) is Refusal:
            kept.append(Refusal(part.at, part.text))
        elif type(part) is Result:
            kept.append(part)
        else:
            what = f"a call of {part.name!r}" if type(part) is ToolCall else "a part"
            losses.append(Loss(part.at, f"{what} was left out: the answer was interrupted"))
    if not kept:
        losses.append(
            Loss(message.at, "an answer was left out: it was interrupted before any text")
        )
    message.parts = kept
    message.ended = True
