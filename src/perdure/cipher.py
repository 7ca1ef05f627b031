"""Payload ⇄ body: the protocol, and the plain case that leaves the payload readable.

A body is bound to its *place*, the bytes of its header before the digest of the body, so that a
sealed body opens nowhere else.
"""

import os
from binascii import b2a_base64
from typing import Protocol

DRAWN_AT_ONCE = 256
_URLSAFE = bytes.maketrans(b"+/", b"-_")
_SALT_END = 2 + 22  # '["' and the letters of a salt.


def random_text() -> str:
    """Return 132 random bits as 22 letters, never the same twice, in a forked child neither.

    They are drawn from the system a few hundred at a time: each draw lets other threads run, and
    six of them an append were most of the cost of many threads. Not for keys or nonces.
    """
    try:
        return _drawn.pop()  # One step for the interpreter, so no two threads get the same.
    except IndexError:
        # 18 bytes are 24 letters without a remainder; 22 of those are enough.
        data = b2a_base64(os.urandom(18 * DRAWN_AT_ONCE), newline=False).translate(_URLSAFE)
        letters = data.decode("ascii")
        pieces = [letters[at : at + 22] for at in range(0, len(letters), 24)]
        text = pieces.pop()
        _drawn.extend(pieces)
        return text


_drawn: list[str] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drawn.clear)


class Cipher(Protocol):
    """Seals payloads into bodies and opens them again."""

    suite: str
    key_id: str

    def seal(self, payload: bytes, place: bytes) -> bytes:
        """Return a body that `open` accepts at the same place only."""
        ...

    def open(self, body: bytes, place: bytes) -> bytes:
        """Return the payload, or raise ValueError where the body is not one of this suite."""
        ...


class Plain:
    """`["salt",payload]`: JSON that any tool can read, with a digest that says nothing once erased.

    The place is not needed: the header that holds it also holds the digest of the body.
    """

    suite = "plain"
    key_id = ""

    def seal(self, payload: bytes, place: bytes) -> bytes:  # noqa: ARG002
        return b"".join((b'["', random_text().encode(), b'",', payload, b"]"))

    def open(self, body: bytes, place: bytes) -> bytes:  # noqa: ARG002
        if body[:2] != b'["' or body[_SALT_END : _SALT_END + 2] != b'",' or body[-1:] != b"]":
            raise ValueError
        return body[_SALT_END + 2 : -1]
