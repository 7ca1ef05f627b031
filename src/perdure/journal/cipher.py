"""Payload ⇄ body: the cipher protocol, and the plain cipher that leaves the payload readable.

A body holds the payload of one record and, if the caller chose an id for it, that id. A sealed body
is bound to its place, so that it cannot be opened in any other one.
"""

from collections.abc import Callable, Sequence
from operator import add
from typing import NamedTuple, Protocol

import msgspec

from perdure.journal.ids import RANDOM_CHARS, RANDOM_STRIDE, random_ascii

_SALT_END = 2 + RANDOM_CHARS  # bytes; '["' and the characters of a salt

_encode = msgspec.json.Encoder().encode

_decode_str = msgspec.json.Decoder(str).decode


class Place(NamedTuple):
    """What a body is bound to: the fields of its entry, and of its record, without any digest."""

    entry: bytes
    """The header of the entry up to and including `bound`."""
    position: int
    kind: str
    id: str


class Cipher(Protocol):
    """Seals payloads into bodies and opens them again."""

    suite: str
    key_id: str
    is_placed: bool
    """Whether bodies are bound to their place; if not, `seal` gets no places."""

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


class PlainCipher:
    """`["salt",payload]`: JSON that any tool can read; its digest reveals nothing once erased.

    A caller's id follows the payload. The place is not needed: the header of the entry also holds
    the digest of the body.
    """

    suite = "plain"
    key_id = ""
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
        return body[_SALT_END + 2 : end], _decode_str(body[end + 1 : -1])
