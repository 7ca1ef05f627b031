"""Random ids, and the prefix that separates generated ids from those chosen by callers."""

import os
from binascii import b2a_base64

RANDOM_BATCH = 256  # random texts per system call; see `random_text`

_URLSAFE = bytes.maketrans(b"+/", b"-_")


def random_text() -> str:
    """Return 132 random bits as 22 URL-safe characters, unique even in a forked child.

    The system's generator is read in batches: each read releases the interpreter lock, and six
    reads per append were most of the cost with many threads. Not for keys or nonces.
    """
    try:
        return _random_pool.pop()  # Atomic, so no two threads get the same text.
    except IndexError:
        # 18 bytes are 24 characters without padding; 22 of those are enough.
        data = b2a_base64(os.urandom(18 * RANDOM_BATCH), newline=False).translate(_URLSAFE)
        characters = data.decode("ascii")
        text, *others = (characters[at : at + 22] for at in range(0, len(characters), 24))
        _random_pool.extend(others)
        return text


_random_pool: list[str] = []

if hasattr(os, "register_at_fork"):
    # Otherwise parent and child would hand out the same texts.
    os.register_at_fork(after_in_child=_random_pool.clear)

# prefix of ids that perdure generates; caller-chosen ids never begin with it
GENERATED_PREFIX = "."
