"""Chunks of a stream → what was said so far, in pieces that can be stored on the way. Pure.

A piece holds what came since the one before. Pieces are cut wherever it suits: those of one answer
make it again, up to where the last was cut.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from perdure.conversations import chat_chunks, response_events
from perdure.conversations.intake import Taken
from perdure.errors import UsageError, VersionError
from perdure.plain import field_of


class Collector(Protocol):
    """Collects one streamed answer, whatever colour the code has that reads the stream."""

    def take(self, chunk: object) -> None:
        """Take the next chunk. What is none is UsageError, and changes nothing."""
        ...

    def piece(self) -> dict[str, Any] | None:
        """Return what came since the last piece, as plain data for `rebuild`; None if nothing."""
        ...

    def finished(self) -> bool:
        """Whether the provider said that the answer is over, complete or failed.

        More may follow, such as the usage: read the stream to its end all the same.
        """
        ...

    def messages(self) -> list[Taken]:
        """Return what was said so far, as `intake.take` gives an answer that was not streamed.

        Until something was said it is empty.
        """
        ...


_REBUILT = {
    chat_chunks.FORMAT: chat_chunks.rebuilt,
    response_events.FORMAT: response_events.rebuilt,
}


def collector_for(chunk: object) -> Collector:
    """Return a collector for the stream that a chunk begins; the chunk is not yet taken."""
    if field_of(chunk, "object") == "chat.completion":
        raise UsageError("a whole chat completion is not a chunk of a stream: append it as it is")
    if isinstance(field_of(chunk, "choices"), list) or field_of(chunk, "chunk") is not None:
        return chat_chunks.ChatCollector()
    kind = field_of(chunk, "type")
    if isinstance(kind, str) and (kind.startswith("response.") or kind == "error"):
        return response_events.ResponseCollector()
    reason = f"a {type(chunk).__qualname__} is not known as a chunk of a stream"
    raise UsageError(f"{reason}: give chunks of chat completions or events of responses")


def rebuild(pieces: Sequence[dict[str, Any]]) -> list[Taken]:
    """Return what the collector's `messages` gave when the last of its pieces was cut."""
    try:
        formats = {str(piece["format"]) for piece in pieces}
        if len(formats) > 1:
            raise UsageError(f"pieces of several answers ({', '.join(sorted(formats))})")
        for found in formats - _REBUILT.keys():
            raise VersionError("a piece of a streamed answer", found, ", ".join(_REBUILT))
        return _REBUILT[formats.pop()](pieces) if formats else []
    except (LookupError, TypeError, AttributeError) as error:
        reason = "these are not the pieces of a streamed answer"
        raise UsageError(f"{reason}: give them as they were cut, in order") from error
