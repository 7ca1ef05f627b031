"""Render a conversation of several agents from one agent's perspective.

Normalized messages come in, those that the agent sees go out. Pure, but it changes the messages it
is given.
"""

from perdure.formats.names import legal_person
from perdure.formats.parts import CHAT, Loss, Losses, Media, Part, Refusal, Speech, Text, ToolCall


def seen_by(name: str, messages: list[Speech], format: str, losses: Losses) -> list[Speech]:
    """Return a conversation as the agent `name` sees it.

    Messages by `name` get the role assistant, messages by other authors the role user. A message
    without an author keeps its role. System messages are for all agents, unless they have a
    recipient. A message addressed to another agent only is omitted, which is not a loss.

    The calls and the reasoning of other agents, with their results, are left out and reported as
    losses. Other authors are named: in chat completions always, in the `name` field; in the other
    formats only where there are several, by a prefix of the text.
    """
    visible = [
        message for message in messages if message.author == name or message.recipient in ("", name)
    ]
    speakers = set()
    for message in visible:
        if message.role in ("system", "context"):
            continue
        if message.author == name or (not message.author and message.role == "assistant"):
            message.role, message.stored_role = "assistant", ""
            continue
        speakers.add(message.author)
        if message.author:
            message.parts = _as_others_see(message, losses)
            message.role, message.stored_role = "user", ""
    visible = [message for message in visible if message.parts]
    reported: set[str] = set()
    for message in visible:
        if message.role == "user" and message.author:
            if format == CHAT:
                _name(message, reported, losses)
            elif len(speakers) > 1:
                _prefix(message)
    return visible


def _as_others_see(message: Speech, losses: Losses) -> list[Part]:
    parts: list[Part] = []
    for part in message.parts:
        if type(part) is Text or type(part) is Refusal:
            parts.append(Text(part.at, part.text))
        elif type(part) is Media:
            parts.append(part)
        else:
            what = "a call" if type(part) is ToolCall else "a part that only its own model can use"
            reason = f"it belongs to {message.author!r}"
            losses.append(Loss(part.at, f"{what} was left out: {reason}"))
            if type(part) is ToolCall and part.result is not None:
                losses.append(Loss(part.result.at, f"a result was left out: {reason}"))
    return parts


def _name(message: Speech, reported: set[str], losses: Losses) -> None:
    message.name = legal_person(message.author)
    if message.name != message.author and message.author not in reported:
        reported.add(message.author)
        what = f"the name {message.author!r} is sent as {message.name!r}"
        losses.append(Loss(message.at, f"{what}: {CHAT} does not allow it"))


def _prefix(message: Speech) -> None:
    first = message.parts[0]
    if type(first) is Text:
        message.parts[0] = Text(first.at, f"{message.author}: {first.text}")
    else:
        message.parts.insert(0, Text(message.at, f"{message.author}:"))
