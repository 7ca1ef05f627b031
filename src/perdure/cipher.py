"""Payload ⇄ body: the cipher protocol, and the plain cipher that leaves the payload readable.

A body is bound to its header prefix, the header bytes before the digest of the body, so that a
sealed body cannot be opened in any other location.
"""

import os
from binascii import b2a_base64
from typing import Protocol

DRAWN_AT_ONCE = 256  # random texts per system call; see `random_text`
_URLSAFE = bytes.maketrans(b"+/", b"-_")
_SALT_END = 2 + 22  # bytes; '["' and the characters of a salt


def random_text() -> str:
    """Return 132 random bits as 22 URL-safe characters, unique even in a forked child.

    The system's generator is read in batches: each read releases the interpreter lock, and six
    reads per append were most of the cost with many threads. Not for keys or nonces.
    """
    try:
        return _drawn.pop()  # Atomic, so no two threads get the same text.
    except IndexError:
        # 18 bytes are 24 characters without padding; 22 of those are enough.
        data = b2a_base64(os.urandom(18 * DRAWN_AT_ONCE), newline=False).translate(_URLSAFE)
        characters = data.decode("ascii")
        texts = [characters[at : at + 22] for at in range(0, len(characters), 24)]
        text = texts.pop()
        _drawn.extend(texts)
        return text


_drawn: list[str] = []
if hasattr(os, "register_at_fork"):
    # Otherwise parent and child would hand out the same texts.
    os.register_at_fork(after_in_child=_drawn.clear)


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


class Plain:
    """`["salt",payload]`: JSON that any tool can read; its digest reveals nothing once erased.

    The prefix is not needed: the same header also holds the digest of the body.
    """

    suite = "plain"
    key_id = ""

    def seal(self, payload: bytes, prefix: bytes) -> bytes:  # noqa: ARG002
        return b"".join((b'["', random_text().encode(), b'",', payload, b"]"))

    def open(self, body: bytes, prefix: bytes) -> bytes:  # noqa: ARG002
        if body[:2] != b'["' or body[_SALT_END : _SALT_END + 2] != b'",' or body[-1:] != b"]":
            raise ValueError
        return body[_SALT_END + 2 : -1]
