"""The suite `sealed`: bodies encrypted with AES-256-GCM under keys of their own. Pure.

A payload comes in, a sealed body goes out, bound to its place: its entry's header, its position and
id, and the tenant and session that the reader asked for. docs/reference/format.md has the suite;
tests/journal/sealed-vectors.json has vectors. All cryptography is that of the package
`cryptography`: here it is only put together.

A `SealedCipher` has the data keys of one session. `journal.key_store` loads them, because that is
I/O; a body whose key was not loaded cannot be opened.
"""

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from perdure.backends.fields import FIELD_MARK
from perdure.errors import DamagedError, ErasedError, MissingKeyError, WrongKeyError
from perdure.journal.cipher import SEALED, Place, decode_given_id
from perdure.journal.ids import random_bytes, random_text
from perdure.keys import KEY_BYTES, decrypt, encrypt

NONCE_BYTES = 24  # bytes; random ones never repeat, so each body has a key of its own

COMMITMENT_BYTES = 32  # bytes; no two keys open the same body

TAG_BYTES = 16  # bytes of AES-GCM's tag

NAMES_KEY_BYTES = 64  # bytes: AES-256-SIV takes two keys

_HEAD_BYTES = NONCE_BYTES + COMMITMENT_BYTES

_GCM_NONCE = bytes(12)  # zeros: each key encrypts one body

_INFO = b"perdure 1 entry"

_BLINDED_MAX = 4096  # labels whose blinded form is cached; bounds the memory

_encode = msgspec.json.Encoder().encode


def seal_bytes(key: bytes, nonce: bytes, plain: bytes, associated: bytes) -> bytes:
    """Return N ‖ C ‖ AES-256-GCM(K, 0, plain, A) for a nonce, which must never be used again."""
    derived = _derive(key, nonce, associated)
    sealed = AESGCM(derived[:KEY_BYTES]).encrypt(_GCM_NONCE, plain, associated)
    return b"".join((nonce, derived[KEY_BYTES:], sealed))


def open_bytes(key: bytes, body: bytes, associated: bytes) -> bytes:
    """Return what was sealed; ValueError if the body, the key or the associated data differs."""
    if len(body) < _HEAD_BYTES + TAG_BYTES:
        raise ValueError("too short")
    derived = _derive(key, body[:NONCE_BYTES], associated)
    if not hmac.compare_digest(derived[KEY_BYTES:], body[NONCE_BYTES:_HEAD_BYTES]):
        raise ValueError("another key or place")
    try:
        return AESGCM(derived[:KEY_BYTES]).decrypt(_GCM_NONCE, body[_HEAD_BYTES:], associated)
    except InvalidTag as error:
        raise ValueError("altered") from error


def _derive(key: bytes, nonce: bytes, associated: bytes) -> bytes:
    size = KEY_BYTES + COMMITMENT_BYTES
    return HKDF(algorithm=SHA256(), length=size, salt=nonce, info=_INFO + associated).derive(key)


class StoreKeys:
    """The keys that all sessions of a store share: wrapping keys by id, and the key of names."""

    def __init__(
        self, store: str, current: str, wrapping: Mapping[str, bytes], names: bytes, name: str
    ) -> None:
        self.store = store
        """The id of the store in its key store."""
        self.current = current
        """The id of the wrapping key that new data keys are wrapped with."""
        self.name = name
        """The name of the store, for errors."""
        self._wrapping = dict(wrapping)
        self.names = names
        self._names = AESSIV(names)
        self._blinded: dict[str, str] = {}

    def has(self, by: str) -> bool:
        """Whether it has a wrapping key; if not, the keys were rotated since it was made."""
        return by in self._wrapping

    def update(self, current: str, wrapping: Mapping[str, bytes]) -> None:
        """Replace the wrapping keys, because they were rotated. The key of names stays."""
        self._wrapping, self.current = dict(wrapping), current

    def wrap(self, key: bytes, stream: str, key_id: str) -> bytes:
        """Return a data key, wrapped for its place in the key store."""
        return encrypt(self._wrapping[self.current], key, self._context(stream, key_id))

    def unwrap(self, wrapped: bytes, by: str, stream: str, key_id: str) -> bytes:
        """Return a data key; WrongKeyError if it was wrapped by another key, or altered."""
        try:
            return decrypt(self._wrapping[by], wrapped, self._context(stream, key_id))
        except (LookupError, ValueError) as error:
            reason = "a data key does not fit the wrapping key of the store"
            hint = "its key store is another one, or was altered: restore it from a backup"
            raise WrongKeyError(self.name, reason, hint, key_id) from error

    def _context(self, stream: str, key_id: str) -> bytes:
        return _encode(("perdure 1 data key", self.store, stream, key_id))

    def blind(self, label: str) -> str:
        """Return a label as the store has it: equal labels are equal, and say nothing else."""
        blinded = self._blinded.get(label)
        if blinded is None:
            name, mark, text = label.partition(FIELD_MARK)
            blinded = self._encrypt(name, "field" if mark else "label")
            if mark:
                blinded += mark + self._encrypt(text, f"value {name}")
            if len(self._blinded) >= _BLINDED_MAX:
                self._blinded.clear()
            self._blinded[label] = blinded
        return blinded

    def reveal(self, blinded: str) -> str:
        """Return the label that was blinded; ValueError if it is not one of this store."""
        name, mark, text = blinded.partition(FIELD_MARK)
        label = self._decrypt(name, "field" if mark else "label")
        return label + mark + self._decrypt(text, f"value {label}") if mark else label

    def _encrypt(self, text: str, purpose: str) -> str:
        data = self._names.encrypt(text.encode(), [f"perdure 1 {purpose}".encode()])
        return urlsafe_b64encode(data).rstrip(b"=").decode()

    def _decrypt(self, text: str, purpose: str) -> str:
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        try:
            return self._names.decrypt(data, [f"perdure 1 {purpose}".encode()]).decode()
        except InvalidTag as error:
            raise ValueError("not a label of this store") from error


class SealedCipher:
    """Seals and opens the bodies of one session, with the data keys that were loaded for it."""

    suite = SEALED
    is_placed = True

    def __init__(self, store: StoreKeys, tenant: str, clear: Collection[str]) -> None:
        self.store = store
        self._tenant = tenant
        self._clear = frozenset(clear)
        """Labels of perdure's own, which are not blinded."""
        self._keys: dict[tuple[str, str], bytes | None] = {}
        """Data keys by stream and id; None for one that was destroyed."""
        self._current: dict[str, str] = {}

    def fresh(self) -> "SealedCipher":
        """Return a cipher for another session, without data keys."""
        return SealedCipher(self.store, self._tenant, self._clear)

    def lacks(self, stream: str, key_id: str) -> bool:
        """Whether a data key was not loaded."""
        return (stream, key_id) not in self._keys

    def is_destroyed(self, stream: str, key_id: str) -> bool:
        """Whether a data key was destroyed."""
        return self._keys.get((stream, key_id), b"") is None

    def add_key(self, stream: str, key_id: str, key: bytes | None) -> None:
        """Add a data key that was loaded, or None for a destroyed one.

        The first one of a stream seals what is written: streams are read from their end.
        """
        self._keys[stream, key_id] = key
        if key is not None:
            self._current.setdefault(stream, key_id)

    def new_key(self) -> tuple[str, bytes]:
        """As `KeyedCipher.new_key`."""
        return random_text(), random_bytes(KEY_BYTES)

    def key_for(self, stream: str) -> str:
        """Return the id of the key for new bodies of a stream; "" if there is none yet."""
        return self._current.get(stream, "")

    def seal(
        self, payloads: Sequence[bytes], given_ids: Sequence[str], places: Sequence[Place]
    ) -> list[bytes]:
        """As `Cipher.seal`."""
        nonces = random_bytes(NONCE_BYTES * len(payloads))
        bodies: list[bytes] = []
        for number, (payload, place) in enumerate(zip(payloads, places, strict=True)):
            given = b"," + _encode(given_ids[number]) if given_ids and given_ids[number] else b""
            plain = b"".join((b'["",', payload, given, b"]"))
            nonce = nonces[number * NONCE_BYTES : (number + 1) * NONCE_BYTES]
            associated = self._associated(place)
            bodies.append(seal_bytes(self._require_key(place), nonce, plain, associated))
        return bodies

    def open(self, body: bytes, place: Callable[[], Place]) -> tuple[bytes, str]:
        """As `Cipher.open`; MissingKeyError or ErasedError if the key is not there."""
        payload = self.open_bytes(body, place)
        if payload[-1:] != b'"':
            return payload, ""
        end = payload.rindex(b'},"') + 1  # As in a plain body.
        return payload[:end], decode_given_id(payload[end + 1 :])

    def open_bytes(self, body: bytes, place: Callable[[], Place]) -> bytes:
        """As `Cipher.open_bytes`."""
        at = place()
        plain = open_bytes(self._require_key(at), body, self._associated(at)).rstrip(b" ")
        if plain[:4] != b'["",' or plain[-1:] != b"]":
            raise ValueError("not a body")
        return plain[4:-1]

    def _associated(self, place: Place) -> bytes:
        own = (place.position, place.kind, place.id, self._tenant, place.session)
        return b"".join((place.entry, b",", _encode(own)))

    def _require_key(self, place: Place) -> bytes:
        key = self._keys.get((place.stream, place.key), b"")
        if key:
            return key
        if key is None:
            raise ErasedError(place.session, place.position, place.key)
        reason = "the key store has not the key that it was sealed with"
        hint = "restore the key store from a backup, or give the right one in key_store="
        where = f"session {place.session!r}, record {place.position}"
        raise MissingKeyError(where, reason, hint, place.key)

    def blind(self, labels: Iterable[str]) -> frozenset[str]:
        """Return labels as the head of a stream has them; perdure's own stay as they are."""
        clear, blind = self._clear, self.store.blind
        return frozenset([label if label in clear else blind(label) for label in labels])

    def reveal(self, stream: str, labels: Iterable[str]) -> frozenset[str]:
        """Return the labels of a head; DamagedError if one was altered."""
        try:
            return frozenset(
                [label if label in self._clear else self.store.reveal(label) for label in labels]
            )
        except ValueError as error:
            raise DamagedError(stream, 0, "a label of its head was altered") from error
