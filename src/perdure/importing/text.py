"""The bytes of a file that should be UTF-8 → its text, where each letter stood, and what was wrong.

Pure. Offsets are those of bytes in the file, from 0.
"""

from typing import NamedTuple

_MARKS = (
    (b"\xef\xbb\xbf", "utf-8", "UTF-8"),
    (b"\xff\xfe", "utf-16-le", "UTF-16"),
    (b"\xfe\xff", "utf-16-be", "UTF-16"),
)

IN_NOTE = "is kept in a note"
"""How a repair ends whose text goes into a note, if anything is written at all."""


class Repair(NamedTuple):
    """Something that is not as it should be, and what was made of it. `element` counts from 1."""

    found: str
    done: str
    byte: int | None = None
    element: int | None = None
    keep_raw: bool = False
    """Whether the element says something that what was made of it does not say."""

    def as_dict(self) -> dict[str, object]:
        """Return the repair for a report."""
        found = self._asdict()
        del found["keep_raw"]
        return found


class Source:
    """The text of a file. What was wrong on the way is in `repairs`."""

    def __init__(self, data: bytes) -> None:
        self.repairs: list[Repair] = []
        self._encoding, self._start = "utf-8", 0
        for mark, encoding, name in _MARKS:
            if data.startswith(mark):
                self._encoding, self._start = encoding, len(mark)
                self.repairs.append(Repair("a byte order mark", f"read as {name}", 0))
                break
        self.text = self._decoded(data[self._start :])
        self._measured = (0, self._start)

    def byte_at(self, index: int) -> int:
        """Return where in the file a character stands; cheap near the last one asked for."""
        at, byte = self._measured
        if index < at:
            byte -= self._size(index, at)
        else:
            byte += self._size(at, index)
        self._measured = (index, byte)
        return byte

    def _size(self, start: int, end: int) -> int:
        return len(self.text[start:end].encode(self._encoding, "replace"))

    def _decoded(self, data: bytes) -> str:
        kept = data.rstrip(b"\0") if self._encoding == "utf-8" else data
        if len(kept) < len(data):
            found = f"{len(data) - len(kept):,} zero bytes at the end, as a crash leaves them"
            self.repairs.append(Repair(found, "left out", self._start + len(kept)))
        try:
            return kept.decode(self._encoding)
        except UnicodeDecodeError as error:
            return self._misdecoded(kept, error)

    def _misdecoded(self, data: bytes, error: UnicodeDecodeError) -> str:
        """Decode what a program on Windows wrote in its own encoding, or what was damaged."""
        first = self._start + error.start
        text = data.decode(self._encoding, "replace")
        if error.end == len(data):
            self.repairs.append(Repair("cut in the middle of a letter", "it became U+FFFD", first))
            return text
        if all(letter <= "\x7f" or letter == "\ufffd" for letter in text):
            try:
                text = data.decode("cp1252")
            except UnicodeDecodeError:
                pass
            else:
                self._encoding = "cp1252"
                self.repairs.append(Repair("not UTF-8 from here on", "read as Windows-1252", first))
                return text
        found = f"not UTF-8, here and in {text.count(chr(0xFFFD)) - 1:,} more places"
        self.repairs.append(Repair(found, "what can not be read became U+FFFD", first))
        return text
