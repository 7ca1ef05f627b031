"""Check the arguments of callers: texts, numbers, ids and labels. Pure.

Each function returns the argument, or raises UsageError that says what is wrong with it.
"""

import re
from collections.abc import Collection, Sequence
from hashlib import sha256

from perdure.errors import UsageError
from perdure.journal.ids import GENERATED_PREFIX

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


def require_text(text: object, what: str, *, longest: int) -> str:
    """Return a caller-chosen name, or raise UsageError that says what is wrong with it."""
    name = require_str(text, what)
    size = len(name.encode())
    if not 1 <= size <= longest:
        raise UsageError(f"{what} must be 1 to {longest} bytes of UTF-8, not {size}")
    if _CONTROL.search(name):
        raise UsageError(f"{what} must not contain control characters")
    return name


def require_str(text: object, what: str) -> str:
    """Return a text, which may be empty; raise UsageError if UTF-8 cannot encode it."""
    if type(text) is not str:
        raise UsageError(f"{what} must be str, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} contains a lone surrogate at index {error.start}") from None
    return text


def require_int(number: object, what: str) -> int:
    """Return an integer argument, or raise UsageError that says what is wrong with it."""
    if type(number) is not int:
        raise UsageError(f"{what} must be int, not {type(number).__name__}")
    return number


def require_seconds(seconds: object, what: str) -> float:
    """Return a duration in seconds, 0 or more. Anything else is a UsageError."""
    timeout = require_timeout(seconds, what)
    if timeout is None:
        raise UsageError(f"{what} must be a number of seconds, 0 or more, not None")
    return timeout


def require_parallel(count: object) -> int:
    """Return how many calls may run at once; UsageError unless it is 1 or more."""
    if (number := require_int(count, "parallel")) < 1:
        raise UsageError(f"parallel must be 1 or more, not {number}")
    return number


def require_timeout(seconds: object, what: str = "timeout") -> float | None:
    """Return a timeout in seconds; None waits forever. Anything else is a UsageError."""
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        raise UsageError(f"{what} must be a number of seconds, 0 or more, or None, not {seconds!r}")
    return float(seconds)


RECORD_ID_BYTES_MAX = 128  # bytes of UTF-8; every header of such a record has it


def require_record_id(record_id: object) -> str:
    """Return a caller-chosen record id, or raise UsageError that says what is wrong with it."""
    text = require_text(record_id, "an id", longest=RECORD_ID_BYTES_MAX)
    if text.startswith(GENERATED_PREFIX):
        raise UsageError(f"an id must not begin with {GENERATED_PREFIX!r}: those ids are reserved")
    return text


SESSION_ID_BYTES_MAX = 512  # bytes of UTF-8

NAME_BYTES_MAX = 512  # bytes of UTF-8; keys and correlation ids

_DIGEST_CHARS = 32  # hexadecimal characters, 128 bits: two texts never share one by accident

_CHANGED = re.compile(f"~[0-9a-f]{{{_DIGEST_CHARS}}}$")

_NOT_READABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def safe_id(text: str) -> str:
    """Return an id for any text: valid for sessions, turns, messages and keys, and always the same.

    A text that is a valid id of at most 128 bytes is returned as it is. Any other one is made
    readable and shortened, and gets `~` and a digest of the whole text, so that two texts have two
    ids. Call it once: an id that looks like such a one gets a digest too.
    """
    if type(text) is not str:
        raise UsageError(f"a text for an id must be str, not {type(text).__name__}")
    data = text.encode("utf-8", "surrogatepass")
    reserved = text.startswith(GENERATED_PREFIX) or _CHANGED.search(text) is not None
    if 1 <= len(data) <= RECORD_ID_BYTES_MAX and not reserved and not _NOT_READABLE.search(text):
        return text
    readable = _NOT_READABLE.sub("_", text).lstrip(GENERATED_PREFIX).encode()
    start = readable[: RECORD_ID_BYTES_MAX - _DIGEST_CHARS - 1].decode(errors="ignore")
    return f"{start}~{sha256(data).hexdigest()[:_DIGEST_CHARS]}"


def require_session_id(session_id: object) -> str:
    """Return a session id, or raise UsageError that says what is wrong with it."""
    return require_text(session_id, "a session id", longest=SESSION_ID_BYTES_MAX)


def require_labels(labels: Sequence[str]) -> None:
    """Raise UsageError for a str instead of a list: it would be read as single letters."""
    if isinstance(labels, str):
        raise UsageError(f"labels must be a list of str, not str: write [{labels!r}]")
    if not isinstance(labels, Collection):
        raise UsageError(f"labels must be a list of str, not {type(labels).__name__}")
