# Generated from aio/large_body.py by scripts/generate_sync.py: do not edit.
"""LargeBody: a text, bytes or media of a session, read when it is asked for.

`Session.upload` stores one; messages, values and records have one in the place of what is too
large to be loaded with them.
"""

import os
import stat
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from perdure.core import bodies, compaction, uploads
from perdure.core.batching import T
from perdure.core.compaction import Cut
from perdure.core.plans import Plan
from perdure.core.settings import Settings
from perdure.core.validation import require_str
from perdure.errors import UsageError
from perdure.formats.bodies import Body, Citation, Form
from perdure.journal import large, reader
from perdure.journal.chain import BODY_EXTRA
from perdure.journal.reader import History
from perdure.journal.requests import Steps
from perdure.sync.concurrency import call_function, iterate

if TYPE_CHECKING:
    from perdure.sync.driver import Driver
    from perdure.sync.handle import Handle


class LargeBody(Body):
    """Bytes that are stored in parts: read all of them, or piece by piece.

    Put it into a message or a value of its session to store it there too: nothing is copied. Two
    are equal if they stand for the same text or bytes.
    """

    __slots__ = ("_source",)

    def __init__(
        self, citation: Citation, home: tuple[str, int], source: "Handle | PastReader"
    ) -> None:
        super().__init__(citation, home)
        self._source = source

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes piece by piece, at most 1 MiB each unless the store has another setting.

        DamagedError at a part that is missing or altered, and at the end if the pieces are not what
        was stored.
        """
        past = self._source.history
        check = large.BodyCheck(past.stream.session, self.citation)
        for position in large.positions_of(self.citation.parts):
            piece = self._source.run(large.read_part(past, position), past)
            check.add(piece)
            yield piece
        check.end()
        if self.home[0]:  # A session that was not opened may have lost its end.
            self._source.run(reader.require_tip(past), past)

    def read(self) -> bytes:
        """Return all bytes: of a text its UTF-8, of base64 what it encodes."""
        return b"".join(list(self.chunks()))

    def text(self) -> str:
        """Return the text that stood in the message or value; UsageError if it was bytes."""
        if not self.is_text:
            raise UsageError("the body is bytes, not a text: use read(), or as_text.text()")
        data = self.read()
        return str(large.as_leaf(self._source.history.stream.session, self.citation, data))

    @property
    def as_text(self) -> "LargeBody":
        """The same bytes as the text whose UTF-8 they are, for a message."""
        return self._as("text")

    @property
    def as_base64(self) -> "LargeBody":
        """The same bytes as base64, for a field of a message such as `data`."""
        return self._as("base64")

    @property
    def as_data_url(self) -> "LargeBody":
        """The same bytes as a data URL, for a field of a message such as `image_url`."""
        return self._as("base64", prefix=f"data:{self.media_type};base64,")

    def _as(self, form: Form, prefix: str = "") -> "LargeBody":
        citation = bodies.change_form(self.citation, form, prefix)
        return LargeBody(citation, self.home, self._source)


class PastReader:
    """Reads the bodies of a session that was not opened."""

    def __init__(self, driver: "Driver", history: History) -> None:
        self._driver = driver
        self.history = history

    def run(self, steps: Steps[T], past: History) -> T:  # noqa: ARG002 - as a handle
        """Run steps that read."""
        return self._driver.run(steps)

    def settings(self, settings: Settings) -> Settings:
        """Return settings whose codec makes bodies that are read here."""
        own = settings.codec.copy()
        own.make_body = lambda citation: LargeBody(citation, ("", 0), self)
        return settings._replace(codec=own)


def upload_body(handle: "Handle", source: Any, media_type: str) -> LargeBody:
    """Store what a source has, in parts; return the body. An equal one is not stored again.

    Nothing refers to the parts yet. If the source or the store fails, those that were stored have
    no effect, and a compaction drops them.
    """
    require_str(media_type, "media_type")
    if isinstance(source, Body):
        media_type, source = media_type or source.media_type, source.chunks()  # type: ignore[attr-defined]
    if isinstance(source, str):
        raise UsageError("a text is not a source: pass text.encode(), or a pathlib.Path of a file")
    if isinstance(source, bytes | bytearray | memoryview):
        source = BytesIO(source)
    if isinstance(source, os.PathLike):
        with Path(source).open("rb") as file:
            return _upload_file(handle, file, media_type)
    if hasattr(source, "read"):
        return _upload_file(handle, source, media_type)
    return _upload_pieces(handle, _cut(source, _part_bytes(handle)), media_type)


def _part_bytes(handle: "Handle") -> int:
    return handle.replica.settings.part_size - BODY_EXTRA


def _upload_file(handle: "Handle", file: BinaryIO, media_type: str) -> LargeBody:
    """Store the rest of a file. If one of the same size is stored, compare them first."""
    limit, start, size = _part_bytes(handle), 0, _rest_of(file)
    if size is not None and uploads.has_size(handle.replica.state, size):
        start, digest = file.tell(), sha256()
        for piece in _read_file(file, limit, size):
            digest.update(piece)
        text = b64encode(digest.digest()).decode()
        equal = handle.write(uploads.find_stored(size, text))
        if equal is not None:
            return handle.make_body(uploads.retype(equal, media_type))
        file.seek(start)
    return _upload_pieces(handle, _read_file(file, limit, size), media_type)


def _rest_of(file: BinaryIO) -> int | None:
    """Return how many bytes are left in a file on disk or in memory; None for any other source."""
    if isinstance(file, BytesIO):
        return file.getbuffer().nbytes - file.tell()
    try:
        status = os.fstat(file.fileno())
        return status.st_size - file.tell() if stat.S_ISREG(status.st_mode) else None
    except (AttributeError, OSError, ValueError):
        return None


def _read_file(file: BinaryIO, limit: int, size: int | None) -> Iterator[bytes]:
    """Yield pieces of a file; UsageError if it has another size at the end than at the start."""
    total = 0
    while True:
        answer = call_function(lambda: file.read(limit), timeout=None, name="upload")
        piece, error = answer or (b"", None)
        if error is not None:
            raise error
        if not isinstance(piece, bytes):
            raise UsageError("a file must be opened for reading bytes: use open(path, 'rb')")
        total += len(piece)
        if (not piece and size is not None and total < size) or total > (size or total):
            reason = f"the file had {size} bytes, and has {total} now"
            raise UsageError(f"{reason}: upload it when no other process writes it")
        if not piece:
            return
        yield piece


def _cut(source: Any, limit: int) -> Iterator[bytes]:
    """Yield the chunks of an iterable in pieces of the same length."""
    rest = bytearray()
    for chunk in iterate(source):
        if not isinstance(chunk, bytes | bytearray | memoryview):
            raise UsageError(f"a source must yield bytes, not {type(chunk).__name__}")
        rest += chunk
        while len(rest) >= limit:
            yield bytes(rest[:limit])
            del rest[:limit]
    if rest:
        yield bytes(rest)


def _upload_pieces(handle: "Handle", pieces: Iterator[bytes], media_type: str) -> LargeBody:
    upload = uploads.Upload(media_type)
    for piece in pieces:
        upload.add(piece, handle.write(uploads.store_part(piece)))
    if not upload.parts:
        upload.add(b"", handle.write(uploads.store_part(b"")))
    citation = upload.citation()
    equal = handle.write(uploads.find_stored(citation.size, citation.digest))
    return handle.make_body(uploads.retype(equal, media_type) if equal else citation)


def plan_with_parts(handle: "Handle", cut: Cut) -> Plan[int]:
    """Plan a compaction, after storing the parts again that it would drop and that are cited."""
    moved: dict[int, int] = {}
    for part in handle.run(compaction.needed_parts(handle.replica, cut)):
        piece = handle.run(large.read_part(handle.history, part))
        moved[part] = handle.write(uploads.store_part(piece))
    return compaction.plan_compaction(handle.replica, cut, moved)
