"""Collect a streamed answer into storable pieces, and rebuild the answer from them.

Chunks of any known provider come in; pieces (plain data) and messages go out. Pure.

A piece holds everything since the previous one. Pieces may be cut anywhere: all pieces of an answer
rebuild it up to the point where the last one was cut.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from perdure.errors import UsageError, VersionError
from perdure.formats.intake import IncomingMessage, field_of
from perdure.formats.streaming import anthropic, chat, responses, text


class Collector(Protocol):
    """Collects one streamed answer, for sync and async readers alike."""

    def add(self, chunk: object) -> None:
        """Add the next chunk. Anything else raises UsageError and changes nothing."""
        ...

    def piece(self) -> dict[str, Any] | None:
        """Return the data since the last piece, for `rebuild`; None if there is none."""
        ...

    def finished(self, *, exhausted: bool = False) -> bool:
        """Whether the provider has declared the answer over, complete or failed.

        More may follow, such as the usage: keep reading to the end of the stream. `exhausted` says
        that the source has ended, which is all that a stream of plain texts can say.
        """
        ...

    def messages(self) -> list[IncomingMessage]:
        """Return the messages so far, as `intake.extract_messages` returns an unstreamed answer.

        Empty until the answer has content.
        """
        ...


_REBUILDERS = {
    anthropic.FORMAT: anthropic.rebuild,
    chat.FORMAT: chat.rebuild,
    responses.FORMAT: responses.rebuild,
    text.FORMAT: text.rebuild,
}


def collector_for(chunk: object) -> Collector:
    """Return a collector for the stream that begins with a chunk; the chunk is not added yet."""
    if isinstance(chunk, str):
        return text.TextCollector()
    if field_of(chunk, "object") == "chat.completion":
        raise UsageError("a whole chat completion is not a chunk of a stream: append it as it is")
    if isinstance(field_of(chunk, "choices"), list) or field_of(chunk, "chunk") is not None:
        return chat.ChatCollector()
    kind = field_of(chunk, "type")
    if isinstance(kind, str) and (kind.startswith("response.") or kind == "error"):
        return responses.ResponseCollector()
    if kind in anthropic.START_EVENTS:
        return anthropic.AnthropicCollector()
    reason = f"a {type(chunk).__qualname__} is not a known chunk of a stream"
    known = "chunks of chat completions, events of responses or of Anthropic messages, or texts"
    raise UsageError(f"{reason}: give {known}")


def rebuild(pieces: Sequence[dict[str, Any]]) -> list[IncomingMessage]:
    """Return the messages that the collector had when the last of these pieces was cut."""
    try:
        formats = {str(piece["format"]) for piece in pieces}
        if len(formats) > 1:
            raise UsageError(f"pieces of several answers ({', '.join(sorted(formats))})")
        for unknown in formats - _REBUILDERS.keys():
            raise VersionError("a piece of a streamed answer", unknown, ", ".join(_REBUILDERS))
        return _REBUILDERS[formats.pop()](pieces) if formats else []
    except (LookupError, TypeError, AttributeError) as error:
        reason = "these are not the pieces of a streamed answer"
        raise UsageError(f"{reason}: give them as they were cut, in order") from error
