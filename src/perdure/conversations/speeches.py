"""Stored messages in, speeches in the neutral form out: each read by its own format. Pure."""

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


def heard(said: Sequence[Said], losses: Losses) -> list[Speech]:
    """Read what was said; items of one answer of the Responses API become one speech."""
    speeches: list[Speech] = []
    latest: dict[str, Speech] = {}  # By turn: two workers may write at the same time.
    for position, message, author, recipient, _, turn, interrupted in said:
        speech = _READERS[shape(message)](message, position)
        speech.author, speech.recipient, speech.turn = author, recipient, turn
        if interrupted:
            _cut_off(speech, losses)
        before = latest.get(turn) if turn else speeches[-1] if speeches else None
        if not speech.parts:
            if before is not None:
                before.ended = True
            if not interrupted:
                losses.append(Loss(position, "the message was left out: it is empty"))
            continue
        if speech.role not in ("assistant", "context"):
            _set_role(speech, losses)
        if speech.home == RESPONSES and before is not None and _goes_on(before, speech):
            before.parts += speech.parts
        else:
            speeches.append(speech)
            latest[turn] = speech
    return speeches


def _set_role(speech: Speech, losses: Losses) -> None:
    """Give a role to what has none, or has one that can not be: only the assistant makes calls."""
    calls = any(type(part) is ToolCall for part in speech.parts)
    if speech.role and not calls:
        return
    role = "assistant" if calls else "user"
    losses.append(Loss(speech.at, f"the role {speech.word!r} is given as {role!r}"))
    speech.role, speech.word = role, ""


def _goes_on(before: Speech, speech: Speech) -> bool:
    """Whether an item belongs to the same answer as the one before it.

    After calls, only further calls do: what else comes was said after their results.
    """
    return (
        speech.role == before.role == "assistant"
        and not (before.ended or speech.ended)
        and before.turn == speech.turn
        and before.author == speech.author
        and before.recipient == speech.recipient
        and before.home in (RESPONSES, CHAT)
        and (type(before.parts[-1]) is not ToolCall or type(speech.parts[0]) is ToolCall)
    )


def _cut_off(speech: Speech, losses: Losses) -> None:
    """Keep the words of an answer that was cut off; what else there is of it is not whole."""
    words: list[Part] = []
    for part in speech.parts:
        if type(part) is Text:
            words.append(Text(part.at, part.text))
        elif type(part) is Refusal:
            words.append(Refusal(part.at, part.text))
        elif type(part) is Result:
            words.append(part)
        else:
            what = f"a call of {part.name!r}" if type(part) is ToolCall else "a part"
            losses.append(Loss(part.at, f"{what} was left out: the answer was cut off"))
    if not words:
        losses.append(Loss(speech.at, "an answer was left out: it was cut off before its words"))
    speech.parts = words
    speech.ended = True
