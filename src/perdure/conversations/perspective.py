"""One agent's side of a conversation of several. Pure."""

from perdure.formats.names import legal_person
from perdure.formats.parts import CHAT, Loss, Losses, Media, Part, Refusal, Speech, Text, ToolCall


def seen_by(name: str, speeches: list[Speech], format: str, losses: Losses) -> list[Speech]:
    """Return a conversation as one of its speakers sees it.

    What `name` said is the assistant's; what others said is the user's. Without an author, a role
    stays what it is. The system's words are for everybody, unless they have a recipient. What was
    said to somebody else alone is not there at all: it was not said to `name`, so it is no loss.

    The calls and the reasoning of others are theirs: they and their results are left out, and that
    is told. Where several others speak, each is named: in the field that chat completions have for
    it, or else before the words.
    """
    kept = [
        speech for speech in speeches if speech.author == name or speech.recipient in ("", name)
    ]
    speakers = set()
    for speech in kept:
        if speech.role in ("system", "context"):
            continue
        if speech.author == name or (not speech.author and speech.role == "assistant"):
            speech.role, speech.word = "assistant", ""
            continue
        speakers.add(speech.author)
        if speech.author:
            speech.parts = _as_others_see(speech, losses)
            speech.role, speech.word = "user", ""
    kept = [speech for speech in kept if speech.parts]
    told: set[str] = set()
    for speech in kept:
        if speech.role == "user" and speech.author:
            if format == CHAT:
                _name(speech, told, losses)
            elif len(speakers) > 1:
                _prefix(speech)
    return kept


def _as_others_see(speech: Speech, losses: Losses) -> list[Part]:
    parts: list[Part] = []
    for part in speech.parts:
        if type(part) is Text or type(part) is Refusal:
            parts.append(Text(part.at, part.text))
        elif type(part) is Media:
            parts.append(part)
        else:
            what = "a call" if type(part) is ToolCall else "something only its own model can use"
            why = f"it is that of {speech.author!r}"
            losses.append(Loss(part.at, f"{what} was left out: {why}"))
            if type(part) is ToolCall and part.result is not None:
                losses.append(Loss(part.result.at, f"a result was left out: {why}"))
    return parts


def _name(speech: Speech, told: set[str], losses: Losses) -> None:
    speech.name = legal_person(speech.author)
    if speech.name != speech.author and speech.author not in told:
        told.add(speech.author)
        what = f"the name {speech.author!r} is given as {speech.name!r}"
        losses.append(Loss(speech.at, f"{what}: {CHAT} takes no other"))


def _prefix(speech: Speech) -> None:
    first = speech.parts[0]
    if type(first) is Text:
        speech.parts[0] = Text(first.at, f"{speech.author}: {first.text}")
    else:
        speech.parts.insert(0, Text(speech.at, f"{speech.author}:"))
