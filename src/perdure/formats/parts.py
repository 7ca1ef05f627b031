"""The neutral form between the formats: speeches, made of parts. Pure.

A part keeps what it was made of (`native`) and in which format (`home`), so that it goes back to
its own provider as it came. `at` is the position of the stored message. What is stored is never
changed; what is given out may share values with it.
"""

from typing import Any, NamedTuple, TypeAlias

Native: TypeAlias = dict[str, Any]

CHAT = "openai.chat"
RESPONSES = "openai.responses"
ANTHROPIC = "anthropic"
GEMINI = "gemini"


class Said(NamedTuple):
    """One stored message as the reader found it; `interrupted` if its stream was cut off."""

    position: int
    message: Native
    author: str = ""
    recipient: str = ""
    channel: str = ""
    turn: str = ""
    interrupted: bool = False


class Loss(NamedTuple):
    """What of a stored message is not in the transcript, and why: a sentence for people."""

    position: int
    what: str


Losses: TypeAlias = list[Loss]


class Text(NamedTuple):
    """Words. `native` is their part or, in an answer of the Responses API, their whole item."""

    at: int
    text: str
    native: Native | None = None
    home: str = ""


class Refusal(NamedTuple):
    """The words with which a model declined."""

    at: int
    text: str
    native: Native | None = None
    home: str = ""


class Media(NamedTuple):
    """An image, a sound or a file: by address, as base64, or by the id it has at its provider."""

    at: int
    kind: str
    mime: str = ""
    data: str = ""
    url: str = ""
    file_id: str = ""
    name: str = ""
    detail: str = ""  # How closely OpenAI's models are to look at an image.
    native: Native | None = None
    home: str = ""


class Reasoning(NamedTuple):
    """What a model thought, opaque: for its own provider only, and only with what it led to."""

    at: int
    native: Native
    home: str


class Opaque(NamedTuple):
    """Something that only its own provider understands; with no home, nobody."""

    at: int
    what: str
    native: Native
    home: str


class Result(NamedTuple):
    """What a tool gave. Without an id it answers by name."""

    at: int
    id: str
    name: str
    parts: "list[Text | Media | Opaque]"
    error: bool = False
    native: Native | None = None
    home: str = ""


class ToolCall:
    """A call that wants a result; pairing finds it, and gives the id that goes out."""

    __slots__ = ("at", "home", "id", "input", "kind", "name", "native", "out_id", "result")

    def __init__(
        self,
        at: int,
        id: str,
        name: str,
        input: str | Native,
        *,
        kind: str = "function",
        native: Native | None = None,
        home: str = "",
    ) -> None:
        self.at = at
        self.id = id
        self.name = name
        self.input = input
        self.kind = kind  # `function`, `custom`, `deprecated`, or an item type of Responses
        self.native = native
        self.home = home
        self.out_id = ""
        self.result: Result | None = None


Part: TypeAlias = Text | Refusal | Media | Reasoning | Opaque | Result | ToolCall


class Speech:
    """What one side said at once. `role` is system, user, assistant, or none of them ("")."""

    __slots__ = (
        "at",
        "author",
        "ended",
        "home",
        "name",
        "parts",
        "recipient",
        "role",
        "turn",
        "word",
    )

    def __init__(
        self, at: int, role: str, parts: list[Part], home: str, word: str = "", name: str = ""
    ) -> None:
        self.at = at
        self.role = role
        self.parts = parts
        self.home = home
        self.word = word  # The role's own word, where a format has two for one (`developer`).
        self.name = name
        self.author = ""
        self.recipient = ""
        self.turn = ""
        self.ended = False  # Whether nothing that comes later can be part of it.


_NAMES = {"image": "an image", "audio": "a sound", "file": "a file"}


def inexpressible(part: Part, format: str, where: str = "") -> Loss:
    """Say that a part has no form in a format (in some place)."""
    place = f" {where}" if where else ""
    match part:
        case Media():
            what = f"{_NAMES[part.kind]} was left out: {format} can not take it{place}"
        case Reasoning() if part.home == format:
            what = "reasoning was left out: what it led to is not there"
        case Reasoning():
            what = f"reasoning was left out: {format} can not take that of {part.home or 'others'}"
        case Opaque(what=name):
            what = f"{name} was left out: {format} can not take it{place}"
        case _:
            what = f"a part of the message was left out: {format} can not take it{place}"
    return Loss(part.at, what)


def tell_refusal(part: Text | Refusal, format: str, losses: Losses) -> None:
    """Report that a format has no mark for a refusal."""
    if type(part) is Refusal:
        losses.append(Loss(part.at, f"the mark of a refusal was left out: {format} has none"))
