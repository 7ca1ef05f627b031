"""Random ids, and the prefix that separates generated ids from those chosen by callers.

Nothing is drawn in advance and no generator has a state in this process. A restored snapshot of a
machine (SnapStart, CRIU) and a clone that Python knows nothing of would otherwise repeat keys that
payment services and the fencing of leases rely on, and salts that protect erased bodies.
"""

import os
from binascii import b2a_base64
from collections.abc import Callable

_URLSAFE = bytes.maketrans(b"+/", b"-_")


def _kernel_generator() -> Callable[[int], bytes]:
    """Return the function that reads the kernel's random generator.

    `os.getrandom` keeps the interpreter lock, unlike `os.urandom`: with 32 threads, giving it up
    for each of the two texts of an append cost a third of the CPU time.
    """
    try:
        os.getrandom(1)
    except (AttributeError, OSError):  # Not on this system, or not allowed in this sandbox.
        return os.urandom
    return os.getrandom


_random_bytes = _kernel_generator()


def random_bytes(count: int) -> bytes:
    """Return random bytes of the kernel's generator, for keys and nonces."""
    return _random_bytes(count)


def random_ascii(count: int) -> bytes:
    """Return random URL-safe characters, unique among all processes and clones.

    They are for `count` ids or salts: each is 132 bits in the first 22 of `RANDOM_STRIDE` ones.
    """
    return b2a_base64(_random_bytes(18 * count), newline=False).translate(_URLSAFE)


RANDOM_STRIDE = 24  # characters; 18 bytes in base64, without padding

RANDOM_CHARS = 22  # characters; 132 bits are enough


def random_texts(count: int) -> list[str]:
    """Return several random texts, drawn together: each call of the kernel costs as much."""
    text = random_ascii(count).decode("ascii")
    return [text[at : at + RANDOM_CHARS] for at in range(0, len(text), RANDOM_STRIDE)]


def random_text() -> str:
    """Return a random text of 22 characters, unique among all processes and clones."""
    return random_ascii(1)[:RANDOM_CHARS].decode("ascii")


# prefix of ids that perdure generates; caller-chosen ids never begin with it
GENERATED_PREFIX = "."
