"""Bodies ⇄ compressed bodies, for stores that are opened with `?compress=zstd`.

It happens below the protocol: entries that a store takes and returns are the same bytes as ever.
Each body is compressed alone, with a dictionary that is part of the package. A dictionary is named
by its number, and once shipped it is never changed or removed: stored bodies need it.

The driver is the standard library's from Python 3.14 on, else the package `zstandard`. It is loaded
with the first body that needs it.
"""

import hashlib
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from perdure.errors import UnsupportedError

ZSTD = "zstd"  # the only value of `?compress=`

DICTIONARY = 1  # the number of the dictionary for new bodies

LEVEL = 3  # 5 compresses 2 % better and takes twice the time

COMPRESS_MIN = 64  # bytes; a shorter body would hardly become smaller

DIGESTS = {1: "1fbe077efc15cfc5b396a107393da947e0f1c00cfb2abe70419278dc8faa0e8a"}
"""The SHA-256 of every dictionary that was shipped, by its number."""

_MAGIC = b"\x28\xb5\x2f\xfd"  # Every frame begins with it: it is not stored.

_SIZE_MAX = 2**30  # bytes; a body that claims to be longer is damaged

_FOLDER = Path(__file__).parent / "dictionaries"


class ZstdDriver(NamedTuple):
    """The functions of a driver with one dictionary, for one thread at a time."""

    compress: Callable[[bytes], bytes]
    decompress: Callable[[bytes], bytes]


def compress(body: bytes) -> bytes:
    """Return the number of the dictionary, one byte, and a frame without its magic number."""
    driver = _borrow(DICTIONARY)
    frame = driver.compress(body)
    _give_back(DICTIONARY, driver)
    return b"%c%b" % (DICTIONARY, frame[len(_MAGIC) :])


def decompress(stored: bytes, max_body: int) -> bytes | None:
    """Return a body; None if it is longer than `max_body`. ValueError if it is damaged."""
    size = content_size(stored)
    if size > _SIZE_MAX or stored[0] not in DIGESTS:
        raise ValueError(size)
    if size > max_body:
        return None
    driver = _borrow(stored[0])
    body = driver.decompress(_MAGIC + stored[1:])
    _give_back(stored[0], driver)
    if len(body) != size:
        raise ValueError(size)
    return body


def content_size(stored: bytes) -> int:
    """Return the length of the body that a frame says it has; ValueError if it does not say it.

    https://datatracker.ietf.org/doc/html/rfc8878#name-frame-header describes the bytes.
    """
    descriptor = stored[1] if len(stored) > 1 else 0
    width, is_single = (0, 2, 4, 8)[descriptor >> 6], descriptor >> 5 & 1
    width = width or is_single
    start = 2 + (not is_single) + (0, 1, 2, 4)[descriptor & 3]
    if not width or len(stored) < start + width:
        raise ValueError(descriptor)
    size = int.from_bytes(stored[start : start + width], "little")
    return size + 256 if width == 2 else size  # noqa: PLR2004 - the size of the field


def require_driver() -> None:
    """Raise UnsupportedError if there is no driver for zstd."""
    _give_back(DICTIONARY, _borrow(DICTIONARY))


@lru_cache(maxsize=8)
def load_dictionary(number: int) -> bytes:
    """Return a dictionary; UnsupportedError if this installation lacks it, or has another one."""
    try:
        data = (_FOLDER / f"{number}.zstd").read_bytes()
    except FileNotFoundError:
        data = b""
    if hashlib.sha256(data).hexdigest() != DIGESTS.get(number):
        what = f"dictionary {number} of this installation is missing or altered"
        raise UnsupportedError(what, "install perdure again")
    return data


# The drivers that no thread uses now, by the number of their dictionary. Two threads must not use
# one at a time, and making one takes 0.3 ms: tools run in threads that live for one call.
_drivers: dict[int, list[ZstdDriver]] = {}


def _borrow(number: int) -> ZstdDriver:
    try:
        return _drivers[number].pop()
    except (KeyError, IndexError):
        return _make_driver(load_dictionary(number))


def _give_back(number: int, driver: ZstdDriver) -> None:
    _drivers.setdefault(number, []).append(driver)


def _make_driver(dictionary: bytes) -> ZstdDriver:
    if sys.version_info >= (3, 14):
        return _standard_driver(dictionary)
    return _packaged_driver(dictionary)


if sys.version_info >= (3, 14):
    from compression import zstd

    def _standard_driver(dictionary: bytes) -> ZstdDriver:
        parameter, words = zstd.CompressionParameter, zstd.ZstdDict(dictionary)
        options = {parameter.compression_level: LEVEL, parameter.dict_id_flag: 0}

        def decompress_frame(frame: bytes) -> bytes:
            try:
                return zstd.decompress(frame, zstd_dict=words)
            except zstd.ZstdError as error:
                raise ValueError(len(frame)) from error

        return ZstdDriver(
            lambda body: zstd.compress(body, options=options, zstd_dict=words.as_digested_dict),
            decompress_frame,
        )


def _packaged_driver(dictionary: bytes) -> ZstdDriver:
    try:
        import zstandard
    except ImportError as error:
        what = "the store is compressed with zstd, and there is no driver for it"
        raise UnsupportedError(what, "pip install 'perdure[zstd]'") from error
    words = zstandard.ZstdCompressionDict(dictionary)
    words.precompute_compress(level=LEVEL)
    compressor = zstandard.ZstdCompressor(level=LEVEL, dict_data=words, write_dict_id=False)
    decompressor = zstandard.ZstdDecompressor(dict_data=words)

    def decompress_frame(frame: bytes) -> bytes:
        try:
            return decompressor.decompress(frame, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise ValueError(len(frame)) from error

    return ZstdDriver(compressor.compress, decompress_frame)
