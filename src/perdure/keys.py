"""Master keys: what `perdure.open(url, keys=…)` takes, and how a store's wrapping key is wrapped.

A source of a key comes in: text such as `env:PERDURE_KEY`, a callable, or an object with `wrap` and
`unwrap`. A `MasterKey` goes out. A store asks it once when it is opened, and once more when keys
are rotated; data keys never reach it. Nothing here is stored, and no key is ever in a text or repr.

Needs the package `cryptography` (`pip install 'perdure[crypto]'`).
"""

import base64
import binascii
import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, cast, runtime_checkable

from perdure.errors import (
    MissingKeyError,
    PerdureError,
    UnsupportedError,
    UsageError,
    WrongKeyError,
)

KEY_BYTES = 32  # bytes of a key: AES-256

_NONCE_BYTES = 12  # bytes of AES-GCM's nonce; a master key wraps a few keys in its life

_DISTINCT_MIN = 16  # of 32 random bytes about 30 differ; fewer than 16 is a chance of 1 in 10^14

_SALT_BYTES = 16  # bytes of Argon2id's salt

_PASSPHRASE_MIN = 12  # characters; anything shorter is guessed, however slow each guess is

# The second recommended option of RFC 9106: three passes over 64 MiB, four lanes.
_ARGON_PASSES, _ARGON_LANES, _ARGON_KIB = 3, 4, 64 * 1024

_FORMS = "32 random bytes in base64 or hexadecimal, as `perdure keys new` makes them"


@runtime_checkable
class MasterKey(Protocol):
    """A key that wraps a store's wrapping key. Any object with these two methods will do.

    `store` is the id of the store: a key that can bind what it wraps to a context uses it.
    """

    def wrap(self, key: bytes, *, store: str) -> bytes:
        """Return a key of 32 bytes, encrypted."""
        ...

    def unwrap(self, wrapped: bytes, *, store: str) -> bytes:
        """Return the key again; ValueError if this master key did not wrap it."""
        ...


KeySource = str | bytes | MasterKey | Callable[[], "str | bytes | MasterKey"]


class SecretKey:
    """A master key of 32 random bytes, in the memory of this process."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise UsageError(f"a key has {KEY_BYTES} bytes, not {len(key)}: give {_FORMS}")
        if len(set(key)) < _DISTINCT_MIN:
            raise UsageError("the key is not random: make one with `perdure keys new`")
        self._key = bytes(key)

    def wrap(self, key: bytes, *, store: str) -> bytes:
        """As `MasterKey.wrap`."""
        return encrypt(self._key, key, f"perdure 1 wrapping key {store}".encode())

    def unwrap(self, wrapped: bytes, *, store: str) -> bytes:
        """As `MasterKey.unwrap`."""
        return decrypt(self._key, wrapped, f"perdure 1 wrapping key {store}".encode())


class Passphrase:
    """A master key from a passphrase, by Argon2id with a random salt: a guess takes 64 MiB."""

    def __init__(self, text: str) -> None:
        if len(text) < _PASSPHRASE_MIN:
            raise UsageError(f"a passphrase has at least {_PASSPHRASE_MIN} characters")
        self._text = text.encode()

    def wrap(self, key: bytes, *, store: str) -> bytes:
        """As `MasterKey.wrap`."""
        salt = secrets.token_bytes(_SALT_BYTES)
        return salt + self._key(salt).wrap(key, store=store)

    def unwrap(self, wrapped: bytes, *, store: str) -> bytes:
        """As `MasterKey.unwrap`."""
        salt, rest = wrapped[:_SALT_BYTES], wrapped[_SALT_BYTES:]
        return self._key(salt).unwrap(rest, store=store)

    def _key(self, salt: bytes) -> SecretKey:
        _require_package()
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

        try:
            derivation = Argon2id(
                salt=salt,
                length=KEY_BYTES,
                iterations=_ARGON_PASSES,
                lanes=_ARGON_LANES,
                memory_cost=_ARGON_KIB,
            )
            return SecretKey(derivation.derive(self._text))
        except UnsupportedAlgorithm as error:
            hint = "install cryptography from PyPI, or use a random key"
            raise UnsupportedError("this OpenSSL has no Argon2id", hint) from error


def new_key() -> str:
    """Return a new random key as text, for `env:` or `file:`."""
    return base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()


def master_key(source: KeySource) -> MasterKey:
    """Return the master key that a source names.

    MissingKeyError if a variable or file does not exist, UsageError if it has no proper key.
    """
    _require_package()
    if isinstance(source, str):
        return _from_text(source)
    if isinstance(source, bytes | bytearray):
        return SecretKey(bytes(source))
    if hasattr(source, "wrap") and hasattr(source, "unwrap"):
        return cast("MasterKey", source)
    if callable(source):
        given = source()
        if isinstance(given, str):
            return SecretKey(_decode(given, "the key of the callable"))
        if not callable(given):
            return master_key(given)
    kind = type(source).__name__
    raise UsageError(f"keys must be a text such as 'env:PERDURE_KEY', or a callable, not {kind}")


def _from_text(source: str) -> MasterKey:
    kind, _, rest = source.partition(":")
    if kind == "passphrase":
        return Passphrase(_read_text(rest))
    if kind in {"env", "file"}:
        return SecretKey(_decode(_read_text(source), source))
    # The text is not repeated: it may be a key.
    forms = "'env:NAME', 'file:PATH', 'passphrase:env:NAME' or 'passphrase:file:PATH'"
    raise UsageError(f"keys must be {forms}; a key itself is passed as bytes, or by a callable")


def _read_text(source: str) -> str:
    kind, _, name = source.partition(":")
    if kind == "env" and name:
        text = os.environ.get(name)
        if not text:
            hint = f"set it to {_FORMS}"
            raise MissingKeyError(source, f"there is no variable {name} in the environment", hint)
        return text.strip()
    if kind == "file" and name:
        try:
            return Path(name).read_bytes().decode("ascii", "surrogateescape").strip()
        except OSError as error:
            reason = f"the file of the key cannot be read ({error.strerror})"
            raise MissingKeyError(source, reason, "give the path of the file") from error
    raise UsageError("a key is read from 'env:NAME' or 'file:PATH'")


def _decode(text: str, source: str) -> bytes:
    """Return the key of a text. The text itself is never repeated."""
    if re.fullmatch(r"[0-9a-fA-F]{64}", text):
        return bytes.fromhex(text)
    try:
        key = base64.b64decode(text.translate(str.maketrans("-_", "+/")), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise UsageError(f"{source} has no key of {KEY_BYTES} bytes: give {_FORMS}")
    return key


def _require_package() -> None:
    try:
        import cryptography.hazmat.primitives.ciphers.aead  # noqa: F401 - only whether it is there
    except ModuleNotFoundError as error:
        hint = "pip install 'perdure[crypto]'"
        raise UnsupportedError("keys= needs the package 'cryptography'", hint) from error


def encrypt(key: bytes, data: bytes, context: bytes) -> bytes:
    """Return data encrypted with AES-256-GCM under a random nonce, bound to a context."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, data, context)


def decrypt(key: bytes, data: bytes, context: bytes) -> bytes:
    """Return what `encrypt` was given; ValueError if the key, the data or the context differs."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        return AESGCM(key).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], context)
    except InvalidTag as error:
        raise ValueError("the key or the context is another one") from error


def unwrap_key(master: MasterKey, wrapped: bytes, *, store: str, name: str) -> bytes:
    """Return the wrapping key of a store; WrongKeyError if the master key does not fit.

    `store` is the id in its key store, `name` how errors call it.
    """
    try:
        key = master.unwrap(wrapped, store=store)
    except ValueError as error:
        if isinstance(error, PerdureError):
            raise
        reason, hint = "the master key is not the one it was sealed with", "give that one in keys="
        raise WrongKeyError(name, reason, hint) from error
    if type(key) is not bytes or len(key) != KEY_BYTES:
        raise UsageError(f"unwrap() of keys= must return the {KEY_BYTES} bytes given to wrap()")
    return key
