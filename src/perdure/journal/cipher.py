"""Payload ⇄ body: the cipher protocol, and the plain cipher that leaves the payload readable.

A body holds the payload of one record and, if the caller chose an id for it, that id. A sealed body
is bound to its place, so that it cannot be opened in any other one.
"""

from collections.abc import Callable, Iterable, Sequence
from operator import add
from typing import NamedTuple, NoReturn, Protocol, cast

import msgspec

from perdure.errors import MissingKeyError
from perdure.journal.ids import GENERATED_PREFIX, RANDOM_CHARS, RANDOM_STRIDE, random_ascii

PLAIN, SEALED = "plain", "sealed"  # The suites.

_SALT_END = 2 + RANDOM_CHARS  # bytes; '["' and the characters of a salt

_encode = msgspec.json.Encoder().encode

_decode_str = msgspec.json.Decoder(str).decode


def decode_given_id(data: bytes) -> str:
    """Return a caller's id in a body; ValueError if it is none."""
    given = _decode_str(data)
    if given[:1] in ("", GENERATED_PREFIX):
        raise ValueError("not a caller's id")
    return given


class Place(NamedTuple):
    """What a body is bound to: the fields of its entry, and of its record, without any digest."""

    entry: bytes
    """The header of the entry up to and including `bound`."""
    position: int
    kind: str
    id: str
    session: str = ""
    """The session that the reader asked for, whatever the header says."""
    stream: str = ""
    key: str = ""
    """The id of the data key of the stream."""


class Cipher(Protocol):
    """Seals payloads into bodies and opens them again."""

    suite: str
    is_placed: bool
    """Whether bodies are bound to their place, and have keys; if not, `seal` gets no places.

    Those that are placed are a `KeyedCipher`; callers check this first (`keyed`).
    """

    def seal(
        self, payloads: Sequence[bytes], given_ids: Sequence[str], places: Sequence[Place]
    ) -> list[bytes]:
        """Return the bodies of one entry; `open` accepts each in its own place only.

        `given_ids` is empty, or has an id, or "", for each.
        """
        ...

    def open(self, body: bytes, place: Callable[[], Place]) -> tuple[bytes, str]:
        """Return the payload and the caller's id, or raise ValueError for an invalid body."""
        ...

    def open_bytes(self, body: bytes, place: Callable[[], Place]) -> bytes:
        """Return a payload that may be any bytes and has no caller's id, or raise ValueError."""
        ...


class WrappingKeys(Protocol):
    """What a cipher needs to store and load data keys (`perdure.journal.sealed.StoreKeys`)."""

    store: str
    current: str

    def has(self, by: str) -> bool: ...

    def wrap(self, key: bytes, stream: str, key_id: str) -> bytes: ...

    def unwrap(self, wrapped: bytes, by: str, stream: str, key_id: str) -> bytes: ...


class KeyedCipher(Cipher, Protocol):
    """A cipher that is placed: it has data keys, which are loaded before they are needed."""

    @property
    def store(self) -> WrappingKeys:
        """The keys that all sessions of the store share."""
        ...

    def fresh(self) -> "KeyedCipher":
        """Return a cipher for another session, without data keys."""
        ...

    def lacks(self, stream: str, key_id: str) -> bool:
        """Whether a data key was not loaded."""
        ...

    def is_destroyed(self, stream: str, key_id: str) -> bool:
        """Whether a data key was destroyed."""
        ...

    def add_key(self, stream: str, key_id: str, key: bytes | None) -> None:
        """Add a data key that was loaded; None for one that was destroyed."""
        ...

    def new_key(self) -> tuple[str, bytes]:
        """Return a new data key and its id, which is not added yet."""
        ...

    def key_for(self, stream: str) -> str:
        """Return the id of the key for new bodies of a stream; "" if there is none yet."""
        ...

    def blind(self, labels: Iterable[str]) -> frozenset[str]:
        """Return labels as the head of a stream has them."""
        ...

    def reveal(self, stream: str, labels: Iterable[str]) -> frozenset[str]:
        """Return the labels of a head; DamagedError if one was altered."""
        ...


def keyed(cipher: Cipher) -> KeyedCipher:
    """Return a cipher that is placed, with its type."""
    return cast("KeyedCipher", cipher)


class LockedCipher:
    """The cipher of a sealed store that was opened without keys: everything is refused."""

    suite = SEALED
    is_placed = True

    def __init__(self, name: str) -> None:
        self._name = name

    def fresh(self) -> "LockedCipher":
        """Return the same: it has no data keys."""
        return self

    @property
    def store(self) -> WrappingKeys:
        """Raise MissingKeyError."""
        raise self._error()

    def lacks(self, stream: str, key_id: str) -> bool:  # noqa: ARG002 - as in `KeyedCipher`
        """Return False: no key can be loaded."""
        return False

    def is_destroyed(self, stream: str, key_id: str) -> bool:  # noqa: ARG002
        """Return False: that is not known."""
        return False

    def key_for(self, stream: str) -> str:  # noqa: ARG002
        """Return "": there is no key for anything."""
        return ""

    def _refuse(self, *_: object) -> NoReturn:
        raise self._error()

    add_key = new_key = blind = reveal = seal = open = open_bytes = _refuse

    def _error(self) -> MissingKeyError:
        hint = "open it with keys=, such as keys='env:PERDURE_KEY'"
        return MissingKeyError(self._name, "it is encrypted, and was opened without keys", hint)


class PlainCipher:
    """`["salt",payload]`: JSON that any tool can read; its digest reveals nothing once erased.

    A caller's id follows the payload. The place is not needed: the header of the entry also holds
    the digest of the body.
    """

    suite = PLAIN
    is_placed = False

    def seal(
        self,
        payloads: Sequence[bytes],
        given_ids: Sequence[str],
        places: Sequence[Place],  # noqa: ARG002
    ) -> list[bytes]:
        if given_ids:
            endings = [b"," + _encode(id) if id else b"" for id in given_ids]
            payloads = [*map(add, payloads, endings)]
        random, start = random_ascii(len(payloads)), 0
        bodies: list[bytes] = []
        for payload in payloads:
            salt = random[start : start + RANDOM_CHARS]
            bodies.append(b"".join((b'["', salt, b'",', payload, b"]")))
            start += RANDOM_STRIDE
        return bodies

    def open(self, body: bytes, place: Callable[[], Place]) -> tuple[bytes, str]:  # noqa: ARG002
        if body[:2] != b'["' or body[_SALT_END : _SALT_END + 2] != b'",' or body[-1:] != b"]":
            raise ValueError
        if body[-2:-1] != b'"':
            return body[_SALT_END + 2 : -1], ""
        # A payload is an object, and quotes in an id are escaped, so `},"` is only between the two.
        end = body.rindex(b'},"') + 1
        return body[_SALT_END + 2 : end], decode_given_id(body[end + 1 : -1])

    def open_bytes(self, body: bytes, place: Callable[[], Place]) -> bytes:  # noqa: ARG002
        if body[:2] != b'["' or body[_SALT_END : _SALT_END + 2] != b'",' or body[-1:] != b"]":
            raise ValueError
        return body[_SALT_END + 2 : -1]
