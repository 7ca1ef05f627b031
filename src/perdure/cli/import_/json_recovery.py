"""A possibly damaged JSON file → its readable elements, and the text of unreadable ones. Pure.

Accepts a list, JSON lines, and an object that contains a list. Elements are decoded one by one, so
damage costs only the element it is in, if the start of the next one can be found.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from perdure.cli.import_.encodings import IN_NOTE, DecodedFile, Repair

MESSAGE_KEYS = ("messages", "history", "chat_history", "conversation", "memory")

"""The keys of an object that may contain its messages."""


_DIGITS_MAX = 4_000  # digits; Python refuses to parse much longer integers, `codec` to store them

_KEYS_SHOWN = 20  # keys listed in a report

_TOO_DEEP = "Nested too deeply"

_SPACE = re.compile(r"\s*")

_LIST = re.compile(rf'"(?:{"|".join(MESSAGE_KEYS)})"\s*:\s*\[')

_STRING_OR_COMMA = re.compile(  # Possessive, so that a truncated string does not backtrack.
    r'("[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z))|,(?=\s*[\]}])', re.DOTALL
)


class Element(NamedTuple):
    """A decoded value; or, if `damage` says why it is unreadable, only its text in `raw`."""

    value: Any
    raw: str
    byte: int
    damage: str = ""


class ParsedFile(NamedTuple):
    """The content of a file: its elements, the other keys of its object, and the repairs."""

    elements: list[Element]
    about: dict[str, Element]
    repairs: list[Repair]


def read_elements(data: bytes) -> ParsedFile:
    """Read as much of a file as possible. Never raises: problems are listed in the repairs."""
    reader = _ElementReader(DecodedFile(data))
    reader.read()
    return ParsedFile(reader.elements, reader.about, reader.repairs)


class _ElementReader:
    """Reads the text in one pass; methods that read take an index and return the next one."""

    def __init__(self, source: DecodedFile) -> None:
        self.elements: list[Element] = []
        self.about: dict[str, Element] = {}
        self.repairs = source.repairs
        self._source, self._text = source, source.text
        self._values = _ValueDecoder(source.text)
        self._indent: str | None = None

    def read(self) -> None:
        at = self._skip(0)
        if at == len(self._text):
            self.repairs.append(Repair("an empty file", "no message was found", 0))
        elif self._text[at] == "[":
            self._rest(self._array(at + 1))
            self._require_elements("an empty list")
        elif self._text[at] == "{" and self._holds_list(at):
            self._rest(self._object(at + 1))
            keys = ", ".join(repr(key[:40]) for key in [*self.about][:_KEYS_SHOWN])
            expected = f"no message under {', '.join(map(repr, MESSAGE_KEYS))}"
            self._require_elements(f"{expected}; other keys: {keys or 'none'}")
        else:
            self._stream(at)

    def _require_elements(self, found: str) -> None:
        if not self.elements:
            self.repairs.append(Repair(found, "no message was found", 0))

    def _holds_list(self, at: int) -> bool:
        """Whether the file is one object, possibly truncated, that contains a list of messages."""
        if _LIST.search(self._text) is None:
            return False
        try:
            value, end, _ = self._values.decode(at)
        except ValueError:
            self._indent = self._indent_at(at)
            return self._next(at) == len(self._text)
        return self._skip(end) == len(self._text) and "role" not in value

    def _object(self, at: int) -> int:
        """Read the list in an object, and its other keys."""
        while (at := self._skip(at)) < len(self._text) and self._text[at] != "}":
            start = at
            try:
                key, at, _ = self._values.decode(at)
                at = self._skip(at, ":")
                if key in MESSAGE_KEYS and self._text[at : at + 1] == "[":
                    at = self._array(at + 1)
                else:
                    value, end, repairs = self._values.decode(at)
                    raw, byte = self._text[at:end], self._source.byte_at(at)
                    self.about[str(key)] = Element(value, raw, byte)
                    self.repairs += repairs
                    at = end
            except ValueError as error:
                match = _LIST.search(self._text, start + 1)
                at = self._damaged(start, error, match.start() if match else len(self._text))
            at = self._skip(at, ",")
        if at == len(self._text):
            self._cut("object")
        return at + 1

    def _array(self, at: int) -> int:
        needs_comma = False
        while (at := self._skip(at)) < len(self._text) and self._text[at] != "]":
            if self._text[at] == ",":
                after = self._skip(at + 1)
                if not needs_comma or self._text[after : after + 1] == "]":
                    self._repair("an extra comma", "ignored", at)
                at, needs_comma = at + 1, False
                continue
            if needs_comma:
                self._repair("a missing comma between two elements", "read as if it were there", at)
            at, needs_comma = self._element(at), not self.elements[-1].damage
        if at == len(self._text):
            self._cut("list")
        return at + 1

    def _stream(self, at: int) -> None:
        """Read consecutive values, whether on separate lines or not."""
        while (at := self._skip(at, ",")) < len(self._text):
            at = self._element(at)

    def _rest(self, at: int) -> None:
        at = self._skip(at)
        if at < len(self._text):
            self._repair("text after the end", "read too", at)
            self._stream(at)

    def _element(self, at: int) -> int:
        if not self.elements:
            self._indent = self._indent_at(at)
        try:
            value, end, repairs = self._values.decode(at)
        except ValueError as error:
            return self._damaged(at, error, self._next(at))
        number = len(self.elements) + 1
        self.repairs += [repair._replace(element=number) for repair in repairs]
        self.elements.append(Element(value, self._text[at:end], self._source.byte_at(at)))
        return end

    def _damaged(self, at: int, error: ValueError, end: int) -> int:
        """Keep the text of an unreadable element, up to `end`."""
        reason, where = "not JSON", at
        if isinstance(error, json.JSONDecodeError):
            reason, where = _describe_error(error.msg), error.pos
        byte = self._source.byte_at(at)
        self.elements.append(Element(None, self._text[at:end].rstrip(), byte, reason))
        is_last = end == len(self._text)
        found = "truncated, or damaged from here on" if is_last else "damaged here"
        byte, number = self._source.byte_at(where), len(self.elements)
        self.repairs.append(Repair(f"{found}: {reason}", f"its text {IN_NOTE}", byte, number))
        return end

    def _indent_at(self, at: int) -> str | None:
        line = self._text[self._text.rfind("\n", 0, at) + 1 : at]
        return None if line.strip() else line

    def _next(self, at: int) -> int:
        """Return where the next element begins: at a line indented like the first element."""
        if self._indent is not None:
            match = re.compile(rf"\n{re.escape(self._indent)}\{{").search(self._text, at + 1)
            if match is not None:
                return match.start() + 1
        return len(self._text)

    def _skip(self, at: int, separator: str = "") -> int:
        """Skip white space, and one separator with the white space around it."""
        match = _SPACE.match(self._text, at)
        at = match.end() if match else at
        if separator and self._text[at : at + 1] == separator:
            return self._skip(at + 1)
        return at

    def _cut(self, what: str) -> None:
        if not (self.elements and self.elements[-1].damage):  # Else the end is reported already.
            end = len(self._text.rstrip())
            self._repair(f"the file ends before its {what} does", "read up to here", end)

    def _repair(self, found: str, done: str, at: int) -> None:
        self.repairs.append(Repair(found, done, self._source.byte_at(at)))


def _describe_error(message: str) -> str:
    message = message.removesuffix(" at").removesuffix(" starting")
    return message[:1].lower() + message[1:]


class _UncountedText(str):
    """A string whose lines `json` cannot count: it would count from the start for each error."""

    __slots__ = ()

    def count(self, *_: object) -> int:
        return 0

    def rfind(self, *_: object) -> int:
        return -1


class _ValueDecoder:
    """Decodes single values, and collects the repairs of what is not valid JSON in them."""

    def __init__(self, text: str) -> None:
        self._text = _UncountedText(text)
        self._clean: _UncountedText | None = None
        self._repairs: list[Repair] = []
        hooks: dict[str, Any] = {
            "object_pairs_hook": self._pairs,
            "parse_constant": self._constant,
            "parse_float": self._float,
            "parse_int": self._int,
        }
        self._strict = json.JSONDecoder(**hooks)
        self._lenient = json.JSONDecoder(strict=False, **hooks)

    def decode(self, at: int) -> tuple[Any, int, list[Repair]]:
        """Return a value, its end and its repairs; raise ValueError if it cannot be read."""
        try:
            return self._decode(self._strict, self._text, at, [])
        except ValueError as error:
            strict_error = error
        for text, found in self._attempts(str(strict_error)):
            try:
                repair = Repair(found, "read leniently")
                return self._decode(self._lenient, text, at, [repair])
            except ValueError:
                continue
        raise strict_error

    def _attempts(self, error: str) -> Iterator[tuple[str, str]]:
        if error.startswith(_TOO_DEEP):
            return
        if error.startswith("Invalid control character"):
            yield self._text, "an unescaped control character"
        if self._clean is None:  # A space replaces a comma, so that indexes stay valid.
            clean = _STRING_OR_COMMA.sub(lambda match: match[1] or " ", self._text)
            self._clean = _UncountedText(clean)
        yield self._clean, "a comma before a closing bracket"

    def _decode(
        self, decoder: json.JSONDecoder, text: str, at: int, repairs: list[Repair]
    ) -> tuple[Any, int, list[Repair]]:
        self._repairs = repairs
        try:
            value, end = decoder.raw_decode(text, at)
        except RecursionError:
            raise json.JSONDecodeError(_TOO_DEEP, text, at) from None
        return value, end, self._repairs

    def _pairs(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        decoded = dict(pairs)
        if len(decoded) < len(pairs):
            for key, times in Counter(key for key, _ in pairs).items():
                if times > 1:
                    found = f"the key {key[:40]!r} {times} times in one object"
                    done = f"the last value is used; the text of all {IN_NOTE}"
                    self._repairs.append(Repair(found, done, keep_raw=True))
        return decoded

    def _constant(self, text: str) -> str:
        self._repairs.append(Repair(f"{text}, which is not valid JSON", "kept as a string"))
        return text

    def _float(self, text: str) -> float | str:
        number = float(text)
        return self._constant(text[:40]) if number in (float("inf"), -float("inf")) else number

    def _int(self, text: str) -> int | str:
        if len(text) <= _DIGITS_MAX:
            return int(text)
        self._repairs.append(Repair(f"an integer of {len(text):,} digits", "kept as a string"))
        return text
