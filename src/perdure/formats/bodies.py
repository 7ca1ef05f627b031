"""Bodies that are kept apart from the message or value that has them: their forms. Pure.

A body is bytes. It stands for a text, for bytes, or for base64 in a text: images, audio and files
in messages are base64, which takes a third more than what it encodes. A citation says which parts
of the journal have the bytes, and how the text is made from them again.
"""

import binascii
import re
from base64 import b64encode, urlsafe_b64encode
from typing import Any, Literal, NamedTuple

import msgspec

TAG = "$large"  # the key of the object that stands for a body in a packed tree

LEAF_MIN = 4096  # bytes; below, a record of its own takes more than base64 wastes

Form = Literal["text", "bytes", "base64", "base64url"]


class Citation(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename={"media_type": "type"},
    gc=False,
):
    """Cites a body: its form, size and SHA-256, and the positions of the parts that have it.

    `prefix` comes before base64 in a text, as in a data URL.
    """

    form: Form
    size: int
    digest: str
    parts: tuple[tuple[int, int], ...]
    """Ranges of positions, in order of the bytes. One range may come before another one."""
    media_type: str = ""
    prefix: str = ""

    def as_leaf(self, data: bytes) -> str | bytes:
        """Return what stood in the message or value, given the bytes of the body."""
        match self.form:
            case "bytes":
                return data
            case "text":
                return data.decode()
            case "base64":
                return self.prefix + b64encode(data).decode()
            case "base64url":
                return self.prefix + urlsafe_b64encode(data).decode()

    @property
    def text_size(self) -> int:
        """The characters of the text that it stands for, about."""
        return self.size * 4 // 3 if self.form.startswith("base64") else self.size


def parse_citation(packed: object) -> Citation:
    """Return the citation in a tag; ValueError if it is none."""
    return msgspec.convert(packed, Citation)


def to_tag(citation: Citation) -> dict[str, Any]:
    """Return the object that stands for a body in a packed tree."""
    return {TAG: msgspec.to_builtins(citation)}


class Body:
    """A body in a message or value, in the place of the text or bytes that were stored.

    Sessions return a subclass that can be read: `LargeBody` or `AsyncLargeBody`.
    """

    __slots__ = ("citation", "home")

    def __init__(self, citation: Citation, home: tuple[str, int] = ("", 0)) -> None:
        self.citation = citation
        self.home = home
        """The stream that has its parts, and how often its history was replaced until then."""

    @property
    def size(self) -> int:
        """The number of bytes: of a text in UTF-8, of base64 what it encodes."""
        return self.citation.size

    @property
    def media_type(self) -> str:
        """The media type, such as `image/png`; empty if it is not known."""
        return self.citation.media_type

    @property
    def digest(self) -> str:
        """The SHA-256 of the bytes, in base64."""
        return self.citation.digest

    @property
    def is_text(self) -> bool:
        """Whether it stands for a text: as such, or as base64."""
        return self.citation.form != "bytes"

    def __repr__(self) -> str:
        kind = f" of {self.media_type}" if self.media_type else ""
        return f"<{type(self).__name__}: {self.size} bytes{kind}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Body):
            return NotImplemented
        mine, its = self.citation, other.citation
        return (mine.form, mine.prefix, mine.size, mine.digest) == (
            *(its.form, its.prefix, its.size, its.digest),
        )

    def __hash__(self) -> int:
        return hash((self.size, self.digest))


class Decoded(NamedTuple):
    """A text that is base64 as a whole, or a data URL: what it encodes, and how."""

    data: bytes
    form: Form
    prefix: str = ""
    media_type: str = ""


_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(?:;[\w.+-]+=[\w.+-]*)*;base64,")

_BASE64_START = re.compile(r"[A-Za-z0-9+/_-]{64}")

_STANDARD = str.maketrans("-_", "+/")


def decode_base64(text: str) -> Decoded | None:
    """Return what a long text encodes, if encoding that again gives exactly this text; else None.

    The first characters of most texts are enough to decide.
    """
    head = _DATA_URL.match(text) if text.startswith("data:") else None
    start = head.end() if head else 0
    if not _BASE64_START.match(text, start):
        return None
    prefix, encoded = text[:start], text[start:]
    form: Form = "base64"
    if "-" in encoded or "_" in encoded:
        form, encoded = "base64url", encoded.translate(_STANDARD)
    try:
        data = binascii.a2b_base64(encoded, strict_mode=True)
    except (binascii.Error, ValueError):
        return None
    if b64encode(data).decode() != encoded or (form == "base64url" and _is_mixed(text, start)):
        return None
    return Decoded(data, form, prefix, head[1] or "" if head else "")


def _is_mixed(text: str, start: int) -> bool:
    return text.find("+", start) >= 0 or text.find("/", start) >= 0
