"""Collect a stream of plain texts into storable pieces and one message of the assistant.

Texts come in; pieces and a message go out. Pure. Nothing in such a stream says that the answer is
over, so it is over when the source is exhausted.
"""

from collections.abc import Iterable
from typing import Any

from perdure.errors import UsageError
from perdure.formats.intake import IncomingMessage

FORMAT = "text"


class TextCollector:
    """Collects the texts of one answer; see `streaming.Collector`."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._stored = 0  # How many of them are in pieces.

    def add(self, text: object) -> None:
        """Add a text."""
        if not isinstance(text, str):
            raise UsageError(
                f"a {type(text).__qualname__} is not a text as the chunks before: yield texts only"
            )
        self._texts.append(require_unicode(text))

    def piece(self) -> dict[str, Any] | None:
        text = "".join(self._texts[self._stored :])
        self._stored = len(self._texts)
        return {"format": FORMAT, "text": text} if text else None

    def finished(self, *, exhausted: bool = False) -> bool:
        return exhausted

    def messages(self) -> list[IncomingMessage]:
        return rebuild([{"text": "".join(self._texts)}])


def rebuild(pieces: Iterable[dict[str, Any]]) -> list[IncomingMessage]:
    """Return the answer that the pieces add up to; empty if they have no text."""
    text = "".join(piece["text"] for piece in pieces)
    return [IncomingMessage({"role": "assistant", "content": text}, {})] if text else []


def require_unicode(text: str) -> str:
    """Return a text as a plain str; UsageError if UTF-8 cannot encode it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        reason = f"a chunk contains a lone surrogate at index {error.start}"
        raise UsageError(f"{reason}: clean the text with errors='replace'") from None
    return str(text)
