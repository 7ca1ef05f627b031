"""The neutral form between the formats: normalized messages, made of parts. Pure.

A part keeps its original data (`native`) and format (`home`), so that it returns to its own
provider unchanged. `at` is the position of the stored message. Stored data is never changed;
rendered messages may share values with it.
"""

from typing import Any, NamedTuple, TypeAlias

import msgspec

Native: TypeAlias = dict[str, Any]


CHAT = "openai.chat"

RESPONSES = "openai.responses"

ANTHROPIC = "anthropic"

GEMINI = "gemini"

UNKNOWN_TYPE = "application/octet-stream"  # The MIME type of media without one.


class StoredMessage(NamedTuple):
    """One stored message, as read; `interrupted` if its stream did not finish.

    `tokens` is 0 where nothing counts them. An `opaque` message is in no known format. One that
    `has_bodies` may have a `Body` in the place of a text.
    """

    position: int
    message: Native
    author: str = ""
    recipient: str = ""
    channel: str = ""
    turn: str = ""
    interrupted: bool = False
    tokens: int = 0
    opaque: bool = False
    has_bodies: bool = False


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

    @classmethod
    def from_url(cls, at: int, kind: str, url: str, name: str = "") -> "Media":
        """Return media from a URL, which may be a data URL."""
        head, comma, data = url.partition(",")
        if comma and head.startswith("data:") and head.endswith(";base64"):
            mime = head.removeprefix("data:").removesuffix(";base64").partition(";")[0]
            return cls(at, kind, mime=mime, data=data, name=name)
        return cls(at, kind, url=url, name=name)

    @property
    def data_url(self) -> str:
        return f"data:{self.mime or UNKNOWN_TYPE};base64,{self.data}"

    def file_id_for(self, format: str) -> str:
        """Return the file id if it is valid in a format: both are from one provider."""
        return self.file_id if self.home.partition(".")[0] == format.partition(".")[0] else ""


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


class ToolCall(msgspec.Struct, eq=False):
    """A call that needs a result. Rendering sets `result` and `out_id`, the id that is sent."""

    at: int
    id: str
    name: str
    input: str | Native
    kind: str = "function"  # or `custom`, `deprecated`, or an item type of Responses
    native: Native | None = None
    home: str = ""
    out_id: str = ""
    result: ToolResult | None = None


Part: TypeAlias = Text | Refusal | Media | Reasoning | Opaque | ToolResult | ToolCall


class NormalizedMessage(msgspec.Struct, eq=False):
    """A normalized message. `role` is system, user, assistant, context, or "" if unknown."""

    at: int
    role: str
    parts: list[Part]
    home: str
    stored_role: str = ""  # The role as stored, such as `developer` for system, or an unknown one.
    name: str = ""
    author: str = ""
    recipient: str = ""
    turn: str = ""
    ended: bool = False  # Whether later items can no longer be part of it.


def native_in(part: Text | Refusal | Media | ToolResult | ToolCall, format: str) -> Native | None:
    """Return the original data of a part if it is of this format."""
    return part.native if part.home == format else None


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
