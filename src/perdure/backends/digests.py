"""SHA-256 digests of headers and bodies, in base64. Pure.

The digests are stored: never change how they are computed.
"""

from binascii import b2a_base64
from hashlib import sha256

# Bytes. hashlib releases the GIL for inputs above 2047 bytes, and getting it back takes much longer
# than hashing a few pages: up to the second figure, data is hashed in chunks that keep the GIL.
_CHUNK, _CHUNKED_MAX = 2047, 32 * 1024


def digest_of(data: bytes) -> str:
    """Return the SHA-256 of some bytes in base64, as text for heads."""
    if len(data) <= _CHUNK:  # Most: as below, with one call less.
        return b2a_base64(sha256(data).digest(), newline=False).decode()
    return digest_bytes(data).decode()


def digest_bytes(data: bytes) -> bytes:
    """Return the SHA-256 of some bytes in base64, as bytes for headers."""
    if len(data) <= _CHUNK or len(data) > _CHUNKED_MAX:
        hasher = sha256(data)
    else:
        hasher = sha256(data[:_CHUNK])
        for start in range(_CHUNK, len(data), _CHUNK):
            hasher.update(data[start : start + _CHUNK])
    return b2a_base64(hasher.digest(), newline=False)
