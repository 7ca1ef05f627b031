r"""The key store: wrapped keys, in streams of their own beside the sessions. Steps; pure.

A key store is any store. Its streams begin with U+0001, which no session's id does, and have the
label `deleted`, so that no listing of sessions shows them:

    \x01sealed                  in the sealed store itself: says that it is, and its id
    \x01keys/STORE              the wrapping key, wrapped by the master key, and the key of names
    \x01key/STREAM/KEY          a data key of a stream, wrapped by the wrapping key

A key that was replaced or destroyed is appended as a new entry, and the old one is dropped. So
storing, durability and concurrent writers are those of every other append. A destroyed key leaves
its last entry, which says that this was on purpose.

To edit: a key must be durable before an entry names it; and the keys of a store before its mark.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

import msgspec

from perdure.backends.protocol import DELETED, Append, Entry, Head, Outcome
from perdure.errors import (
    ConflictError,
    MissingKeyError,
    PayloadError,
    UnsupportedError,
    UsageError,
)
from perdure.journal import chain
from perdure.journal.chain import EMPTY_CHAIN, ChainTip, PendingRecord, StreamIdentity
from perdure.journal.cipher import Cipher, KeyedCipher, PlainCipher, keyed
from perdure.journal.ids import GENERATED_PREFIX, random_text
from perdure.journal.records import Content
from perdure.journal.requests import (
    Commit,
    CommitTogether,
    Drop,
    Heads,
    Keys,
    Read,
    ReloadKeys,
    Steps,
)

OWN_PREFIX = "\x01"  # of streams that are perdure's own; ids of sessions have no control characters

OWN_END = "\x1f"  # comes after every stream of perdure's own, and before every session

SEAL = f"{OWN_PREFIX}sealed"

_DATA_KEYS = f"{OWN_PREFIX}key/"

_STORE_KEYS = f"{OWN_PREFIX}keys/"

_PAGE = 256  # heads per request

_PLAIN = PlainCipher()


class SealMark(Content, frozen=True, kw_only=True):
    """Says that a store is sealed; without keys nothing is written to it."""

    kind = "sealed"

    store: str
    elsewhere: bool = False
    """Whether its keys are in another store."""


class WrappedKeys(Content, frozen=True, kw_only=True):
    """The keys of a store: its wrapping keys, and the key of names, wrapped by the first one."""

    kind = "keys"

    wrapping: tuple[tuple[str, bytes], ...]
    """The id of each wrapping key, and the key wrapped by the master key; the newest first."""
    names: bytes


class WrappedKey(Content, frozen=True, kw_only=True):
    """A data key. Without `wrapped` it was destroyed."""

    kind = "key"

    by: str = ""
    """The id of the wrapping key."""
    wrapped: bytes = b""
    destroyed: str = ""
    """The reason that was given."""


class StoredContent(NamedTuple):
    """The newest content of a stream in the key store, and the tip to which the next one links."""

    content: Content
    stream: str
    tip: ChainTip


def keys_stream(store: str) -> str:
    """Return the name of the stream with the keys of a store."""
    return _STORE_KEYS + store


def data_key_stream(stream: str, key: str) -> str:
    """Return the name of the stream with a data key."""
    return f"{_DATA_KEYS}{stream}/{key}"


def is_own(name: str) -> bool:
    """Whether a stream is perdure's own, and no session."""
    return name.startswith(OWN_PREFIX)


# The mark is in the sealed store itself, and everything else in the key store.


def find_seal() -> Steps[SealMark | None]:
    """Return the mark of a sealed store, or None."""
    entries: list[Entry] = yield Read(SEAL, 0, 1, reverse=True)
    return parse_mark(entries[0]) if entries else None


def parse_mark(entry: Entry) -> SealMark | None:
    """Return the mark in an entry of its stream."""
    mark = _parse(SEAL, entry, SealMark).content
    return mark if isinstance(mark, SealMark) else None


def store_seal(mark: SealMark, *, time: str) -> Steps[bool]:
    """Mark a store as sealed; False if another process has."""
    append = _append(SEAL, mark, None, time)
    outcome: Outcome = yield Commit(append)
    return outcome.status == "stored"


def get(name: str, kind: type[Content]) -> Steps[StoredContent | None]:
    """Return the newest content of a stream of the key store, or None."""
    entries: list[Entry] = yield Keys(Read(name, 0, 1, reverse=True))
    return _parse(name, entries[0], kind) if entries else None


def put(
    name: str, content: Content, *, time: str, after: StoredContent | None = None
) -> Steps[None]:
    """Store content, durably, in the place of `after`; ConflictError if that is not the newest."""
    append = _append(name, content, after, time)
    outcome: Outcome = yield Keys(Commit(append))
    position = append.entries[0].position
    if outcome.status != "stored":
        raise ConflictError(name, position, 0, "another process changed the key")
    if after is not None:
        yield Keys(Drop(name, position))


class KeyChange(NamedTuple):
    """Content that is to be stored in the place of what a stream of the key store has."""

    name: str
    content: Content
    after: StoredContent


def put_together(changes: Sequence[KeyChange], *, time: str) -> Steps[bool]:
    """Store several changes in one commit; False, with nothing changed, if that cannot be done."""
    appends = [_append(name, content, after, time) for name, content, after in changes]
    try:
        outcome: Outcome = yield Keys(CommitTogether(appends))
    except UnsupportedError:
        return False
    if outcome.status != "stored":
        return False
    for append in appends:
        yield Keys(Drop(append.stream, append.entries[0].position))
    return True


def destroy(name: str, *, reason: str, time: str) -> Steps[bool]:
    """Destroy a data key; False if there was none, or it was destroyed before.

    On return the store no longer has it. Its journal, its free pages and backups may.
    """
    stored = yield from get(name, WrappedKey)
    if stored is None or not _as_key(name, stored).wrapped:
        return False
    yield from put(name, WrappedKey(destroyed=reason or "-"), time=time, after=stored)
    return True


def list_names(prefix: str = _DATA_KEYS, after: str = "") -> Steps[tuple[list[str], str | None]]:
    """Return a page of names of streams in the key store, and the `after` of the next, or None."""
    heads: list[Head] = yield Keys(Heads(prefix, after, (), _PAGE))
    names = [head.stream for head in heads]
    return names, names[-1] if len(names) == _PAGE else None


def parse_name(name: str) -> tuple[str, str]:
    """Return the stream and the id of a data key, from the name of its own stream."""
    stream, _, key = name.removeprefix(_DATA_KEYS).partition("/")
    return stream, key


def _append(name: str, content: Content, after: StoredContent | None, time: str) -> Append:
    payload = msgspec.json.encode(content)
    draft = PendingRecord(GENERATED_PREFIX + random_text(), content, payload)
    stream = StreamIdentity(name, after.stream if after else random_text())
    tip = after.tip if after else EMPTY_CHAIN
    entry, _ = chain.link_entry(stream, tip, [draft], time=time, cipher=_PLAIN)
    return Append(name, [entry], frozenset({DELETED}), tip.digest or "")


def _parse(name: str, entry: Entry, kind: type[Content]) -> StoredContent:
    linked = chain.verify_entry(name, entry)
    (record,) = linked.records
    body = record.body if record.kind == kind.kind else None
    try:
        payload, _ = _PLAIN.open(body or b"", record.place)
        content = msgspec.json.decode(payload, type=kind)
    except ValueError as error:  # msgspec's errors too.
        raise PayloadError(name, entry.position, "it is not a key") from error
    return StoredContent(content, linked.header.stream, linked.tip)


def _as_key(name: str, stored: StoredContent) -> WrappedKey:
    if not isinstance(stored.content, WrappedKey):
        raise PayloadError(name, stored.tip.position, "it is not a data key")
    return stored.content


# Data keys of sessions. A plain cipher needs none, and callers check `is_placed` first.


def load_keys(cipher: Cipher, header: chain.Header) -> Steps[None]:
    """Load the data keys of an entry that the cipher lacks. A key that is not there stays away.

    If the keys of the store were rotated since it was opened, they are loaded again.
    """
    own = keyed(cipher)
    for key in keys_of(header):
        if own.lacks(header.stream, key):
            name = data_key_stream(header.stream, key)
            stored = yield from get(name, WrappedKey)
            if stored is not None:
                content = _as_key(name, stored)
                if content.wrapped and not own.store.has(content.by):
                    yield ReloadKeys()
                add_key(own, header.stream, key, content)


def add_key(cipher: KeyedCipher, stream: str, key_id: str, stored: WrappedKey) -> None:
    """Add a data key, as the key store has it, to a cipher; WrongKeyError if it does not fit."""
    if not stored.wrapped:
        cipher.add_key(stream, key_id, None)
        return
    key = cipher.store.unwrap(stored.wrapped, stored.by, stream, key_id)
    cipher.add_key(stream, key_id, key)


def require_write_key(cipher: Cipher, stream: str, *, time: str) -> Steps[None]:
    """Make sure that new bodies of a stream have a key, which is durable on return."""
    own = keyed(cipher)
    if own.key_for(stream):
        return
    key_id, key = own.new_key()
    name, stored = data_key_stream(stream, key_id), None
    while True:
        content = WrappedKey(by=own.store.current, wrapped=own.store.wrap(key, stream, key_id))
        yield from put(name, content, time=time, after=stored)
        # After it is stored: a rotation that began before may not have seen it, and would drop the
        # wrapping key that it needs (`journal.rotation`).
        keys = yield from get(keys_stream(own.store.store), WrappedKeys)
        if keys is None or as_wrapped_keys(keys).wrapping[0][0] == content.by:
            break
        yield ReloadKeys()
        stored = yield from get(name, WrappedKey)
    own.add_key(stream, key_id, key)


def keys_of(header: chain.Header) -> Iterator[str]:
    """Yield the ids of the data keys of an entry."""
    if header.key:
        yield header.key
    for record in header.records:
        if isinstance(record, chain.KeyedRecordHeader) and record.key:
            yield record.key


def require_keys(mark: SealMark, name: str) -> Steps[WrappedKeys]:
    """Return the wrapped keys of a sealed store; MissingKeyError if the key store lacks them."""
    return as_wrapped_keys((yield from require_stored_keys(mark.store, name)))


def require_stored_keys(store: str, name: str) -> Steps[StoredContent]:
    """As `require_keys`, with the place that replaced ones are stored after."""
    stored = yield from get(keys_stream(store), WrappedKeys)
    if stored is None:
        hint = "give the store with its keys in key_store=, or restore them from a backup"
        raise MissingKeyError(name, "the key store has no keys of this store", hint)
    return stored


def as_wrapped_keys(stored: StoredContent) -> WrappedKeys:
    """Return the keys of a store that `get` returned."""
    return cast("WrappedKeys", stored.content)


def require_empty(name: str) -> Steps[None]:
    """Raise UsageError if a store has sessions: a plain store is not sealed by opening it."""
    heads: list[Head] = yield Heads("", OWN_END, (), 1)
    if heads:
        hint = "open it without keys=, or seal it first: `perdure keys seal`"
        raise UsageError(f"{name} has sessions that are not encrypted: {hint}")
