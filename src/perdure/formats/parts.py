"""The neutral form between the formats: normalized messages, made of parts. Pure.

A part keeps its original data (`native`) and format (`home`), so that it returns to its own
provider unchanged. `at` is the position of the stored message. Stored data is never changed;
rendered messages may share values with it.
"""

from typing import Any, NamedTuple, TypeAlias

Native: TypeAlias = dict[str, Any]


CHAT = "openai.chat"

RESPONSES = "openai.responses"

ANTHROPIC = "anthropic"

GEMINI = "gemini"


class StoredMessage(NamedTuple):
    """One stored message, as read; `interrupted` if its stream did not finish.

    `tokens` is 0 where nothing counts them.
    """

    position: int
    message: Native
    author: str = ""
    recipient: str = ""
    channel: str = ""
    turn: str = ""
    interrupted: bool = False
    tokens: int = 0


class Loss(NamedTuple):
    """Content of a stored message that the transcript lacks, and why, as a readable sentence."""

    position: int
    what: str


Losses: TypeAlias = list[Loss]


class Text(NamedTuple):
    """A text. `native` is its part or, in an answer of the Responses API, its whole item."""

    at: int
    text: str
    native: Native | None = None
    home: str = ""


class Refusal(NamedTuple):
    """The text of a model's refusal."""

    at: int
    text: str
    native: Native | None = None
    home: str = ""


class Media(NamedTuple):
    """An image, audio or a file: by URL, as base64, or by its provider's file id."""

    at: int
    kind: str
    mime: str = ""
    data: str = ""
    url: str = ""
    file_id: str = ""
    name: str = ""
    detail: str = ""  # The image resolution requested from OpenAI.
    native: Native | None = None
    home: str = ""


class Reasoning(NamedTuple):
    """Opaque reasoning: sent to its own provider only, and only with the content it led to."""

    at: int
    native: Native
    home: str


class Opaque(NamedTuple):
    """A part that only its own provider understands; without a home it is sent to none."""

    at: int
    what: str
    native: Native
    home: str


class ToolResult(NamedTuple):
    """The result of a tool. Without an id it belongs to a call of the same name."""

    at: int
    id: str
    name: str
    parts: "list[Text | Media | Opaque]"
    error: bool = False
    native: Native | None = None
    home: str = ""


class ToolCall:
    """A call that needs a result. Rendering sets `result` and `out_id`, the id that is sent."""

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
        self.result: ToolResult | None = None


Part: TypeAlias = Text | Refusal | Media | Reasoning | Opaque | ToolResult | ToolCall


class NormalizedMessage:
    """A normalized message. `role` is system, user, assistant, context, or "" if unknown."""

    __slots__ = (
        "at",
        "author",
        "ended",
        "home",
        "name",
        "parts",
        "recipient",
        "role",
        "stored_role",
        "turn",
    )

    def __init__(
        self,
        at: int,
        role: str,
        parts: list[Part],
        home: str,
        stored_role: str = "",
        name: str = "",
    ) -> None:
        self.at = at
        self.role = role
        self.parts = parts
        self.home = home
        self.stored_role = (
            stored_role  # The role as stored, such as `developer` for system, or an unknown one.
        )
        self.name = name
        self.author = ""
        self.recipient = ""
        self.turn = ""
        self.ended = False  # Whether later items can no longer be part of it.


_MEDIA_NAMES = {"image": "an image", "audio": "audio", "file": "a file"}


def unsupported_part(part: Part, format: str, where: str = "") -> Loss:
    """Return the loss for a part that a format does not support (`where`)."""
    place = f" {where}" if where else ""
    match part:
        case Media():
            what = f"{_MEDIA_NAMES[part.kind]} was left out: {format} does not accept it{place}"
        case Reasoning() if part.home == format:
            what = "reasoning was left out: the content it led to is missing"
        case Reasoning():
            origin = part.home or "another format"
            what = f"reasoning was left out: {format} does not accept it from {origin}"
        case Opaque(what=name):
            what = f"{name} was left out: {format} does not accept it{place}"
        case _:
            what = f"a part of the message was left out: {format} does not accept it{place}"
    return Loss(part.at, what)


def report_refusal(part: Text | Refusal, format: str, losses: Losses) -> None:
    """Report as a loss that a format cannot flag a refusal."""
    if type(part) is Refusal:
        losses.append(Loss(part.at, f"the refusal flag was left out: {format} has none"))
