"""The bytes of a file that should be UTF-8 → its text, byte offsets, and repairs. Pure.

Offsets count the bytes of the file, from 0.
"""

from typing import NamedTuple

_BYTE_ORDER_MARKS = (
    (b"\xef\xbb\xbf", "utf-8", "UTF-8"),
    (b"\xff\xfe", "utf-16-le", "UTF-16"),
    (b"\xfe\xff", "utf-16-be", "UTF-16"),
)


IN_NOTE = "is kept in a note"

"""The end of a repair's text if the original is stored in a note (not in a dry run)."""


class Repair(NamedTuple):
    """A problem in the file (`found`), and how it was handled (`done`). `element` counts from 1."""

    found: str
    done: str
    byte: int | None = None
    element: int | None = None
    keep_raw: bool = False
    """Whether the repaired element lost information, so that its text has to be kept."""

    def as_dict(self) -> dict[str, object]:
        """Return the repair as a dict, for a report."""
        fields = self._asdict()
        del fields["keep_raw"]
        return fields


class DecodedFile:
    """The decoded text of a file; `repairs` lists the problems found while decoding."""

    def __init__(self, data: bytes) -> None:
        self.repairs: list[Repair] = []
        self._encoding, self._start = "utf-8", 0
        for mark, encoding, name in _BYTE_ORDER_MARKS:
            if data.startswith(mark):
                self._encoding, self._start = encoding, len(mark)
                self.repairs.append(Repair("a byte order mark", f"read as {name}", 0))
                break
        self.text = self._decode(data[self._start :])
        self._last_offset = (0, self._start)  # A character index, and its byte offset.

    def byte_at(self, index: int) -> int:
        """Return the byte offset of a character; cheap near the previously requested one."""
        at, byte = self._last_offset
        if index < at:
            byte -= self._size(index, at)
        else:
            byte += self._size(at, index)
        self._last_offset = (index, byte)
        return byte

    def _size(self, start: int, end: int) -> int:
        return len(self.text[start:end].encode(self._encoding, "replace"))

    def _decode(self, data: bytes) -> str:
        trimmed = data.rstrip(b"\0") if self._encoding == "utf-8" else data
        if len(trimmed) < len(data):
            found = f"{len(data) - len(trimmed):,} zero bytes at the end, as a crash leaves them"
            self.repairs.append(Repair(found, "ignored", self._start + len(trimmed)))
        try:
            return trimmed.decode(self._encoding)
        except UnicodeDecodeError as error:
            return self._decode_invalid(trimmed, error)

    def _decode_invalid(self, data: bytes, error: UnicodeDecodeError) -> str:
        """Decode a file in Windows-1252, or a damaged one."""
        first = self._start + error.start
        text = data.decode(self._encoding, "replace")
        if error.end == len(data):
            self.repairs.append(
                Repair("cut in the middle of a character", "it became U+FFFD", first)
            )
            return text
        # Only ASCII besides the errors: valid UTF-8 sequences would speak against Windows-1252.
        if all(character <= "\x7f" or character == "\ufffd" for character in text):
            try:
                text = data.decode("cp1252")
            except UnicodeDecodeError:
                pass
            else:
                self._encoding = "cp1252"
                self.repairs.append(Repair("not UTF-8 from here on", "read as Windows-1252", first))
                return text
        found = f"not UTF-8, here and in {text.count(chr(0xFFFD)) - 1:,} more places"
        self.repairs.append(Repair(found, "unreadable bytes became U+FFFD", first))
        return text
