"""Payload ⇄ body: the cipher protocol, and the plain cipher that leaves the payload readable.

A body is bound to its header prefix, the header bytes before the digest of the body, so that a
sealed body cannot be opened in any other location.
"""

from typing import Protocol

from perdure.journal.ids import random_ascii

_SALT_END = 2 + 22  # bytes; '["' and the characters of a salt


class Cipher(Protocol):
    """Seals payloads into bodies and opens them again."""

    suite: str
    key_id: str

    def seal(self, payload: bytes, prefix: bytes) -> bytes:
        """Return a body that `open` accepts with the same header prefix only."""
        ...

    def open(self, body: bytes, prefix: bytes) -> bytes:
        """Return the payload, or raise ValueError if the body is not valid for this suite."""
        ...


class PlainCipher:
    """`["salt",payload]`: JSON that any tool can read; its digest reveals nothing once erased.

    The prefix is not needed: the same header also holds the digest of the body.
    """

    suite = "plain"
    key_id = ""

    def seal(self, payload: bytes, prefix: bytes) -> bytes:  # noqa: ARG002
        return b"".join((b'["', random_ascii(), b'",', payload, b"]"))

    def open(self, body: bytes, prefix: bytes) -> bytes:  # noqa: ARG002
        if body[:2] != b'["' or body[_SALT_END : _SALT_END + 2] != b'",' or body[-1:] != b"]":
            raise ValueError
        return body[_SALT_END + 2 : -1]
