"""Read messages, values, versions and records of a session, and verify it. Pure.

In: a replica or a history. Out: steps that return public values. Nothing here writes, and nothing
changes the replica but its cache of values. Damage is raised, never skipped in silence.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from perdure import codec, journal, reading, steps, writing
from perdure.cache import Cached
from perdure.codec import Codec
from perdure.content import Content
from perdure.deltas import ValueFacts
from perdure.errors import ChainError, DamagedError, NotFoundError, UsageError
from perdure.fold import FOLD_VERSION, HALF_COPIED, Fold
from perdure.journal import Linked
from perdure.plans import require_int
from perdure.reading import Forward, OnDamage, Past
from perdure.records import Message, Note, Record, Snapshot, Summary, Value
from perdure.replica import Replica
from perdure.settings import Settings
from perdure.steps import Steps

_MESSAGES = frozenset({Message.kind})


class Version(NamedTuple):
    """One version of a value: its number, its position, and whether it is a deletion."""

    version: int
    position: int
    deleted: bool


class Verified(NamedTuple):
    """The result of `verify`, which checks every entry of a session's history, shared or own."""

    session: str
    entries: int
    position: int
    digest: str
    snapshots: int
    torn: int
    half_copied: bool = False
    """Whether its head is labeled as an unfinished copy: later records are still missing."""


def messages(replica: Replica, *, last: int | None) -> Steps[list[dict[str, Any]]]:
    """Return all messages in order, or the last few of them."""
    if last is not None and require_int(last, "last") < 0:
        raise UsageError(f"last must be 0 or more, not {last}")
    state, past, _ = replica.view
    total = state.messages
    count = total if last is None else min(last, total)
    entries = yield from reading.newest_first(past, kinds=_MESSAGES, count=count)
    if len(entries) != count:
        raise DamagedError(replica.name, 0, f"{len(entries)} of {count} messages were found")
    return [_message(replica, linked) for linked in reversed(entries)]


def _message(replica: Replica, linked: Linked) -> dict[str, Any]:
    payload = journal.open_body(replica.name, linked, replica.settings.cipher)
    return message_of(replica, payload, linked.entry.position)


def last_message(replica: Replica) -> dict[str, Any] | None:
    """Return the newest message, or None. It is part of the view, so nothing is read."""
    state, _, payload = replica.view
    return None if payload is None else message_of(replica, payload, state.last_message)


def last_role(replica: Replica) -> str:
    """Return the role of the newest message, or "". Needs none of the caller's types."""
    state, _, payload = replica.view
    if payload is None:
        return ""
    content = codec.decode(Message.kind, payload, stream=replica.name, position=state.last_message)
    role = content.message.get("role", "") if isinstance(content, Message) else ""
    return role if isinstance(role, str) else ""


def message_of(replica: Replica, payload: bytes, position: int) -> dict[str, Any]:
    """Return a message as the caller passed it."""
    return said_of(replica, payload, position).message


def said_of(replica: Replica, payload: bytes, position: int) -> Message:
    """Return the content of a message record, with values of the caller's types restored."""
    content = codec.decode(Message.kind, payload, stream=replica.name, position=position)
    unpacked = _unpack(replica.settings.codec, content, payload, replica.name, position)
    if not isinstance(unpacked, Message):
        raise ChainError(replica.name, position, "a message is expected here")
    return unpacked


def _unpack(own: Codec, content: Content, payload: bytes, name: str, position: int) -> Content:
    """Restore values of the caller's types in a record."""
    # Every tagged value contains `"$` in JSON; most records contain none and need no unpacking.
    if b'"$' not in payload or not isinstance(content, Message | Note):
        return content
    fields = ("message", "meta") if isinstance(content, Message) else ("data",)
    values = {
        field: own.unpack(getattr(content, field), stream=name, position=position)
        for field in fields
    }
    return type(content)(**{**_fields(content), **values})


def _fields(content: Content) -> dict[str, Any]:
    return {name: getattr(content, name) for name in content.__struct_fields__}


def value(replica: Replica, key: str, *, version: int | None) -> Steps[Any]:
    """Return the current version of a value, or the one asked for."""
    if version is not None:
        require_int(version, "version")
    facts = replica.state.values.get(key)
    if facts is None or (version is None and facts.deleted):
        raise NotFoundError(f"value {key!r}")
    if version is None or version == facts.version:
        data = replica.values.get(key, facts.position)
        if data is None:
            data = yield from _current(replica, key, facts)
    else:
        data = yield from _earlier(replica, key, version)
    return replica.settings.codec.unpack(codec.decode_tree(data), stream=replica.name)


def _current(replica: Replica, key: str, facts: ValueFacts) -> Steps[bytes]:
    if facts.deleted:
        raise NotFoundError(f"value {key!r} in version {facts.version}", "it was deleted then")
    data = yield from writing.value_data(replica, facts.chain)
    replica.values.put(key, Cached(facts.position, data))
    return data


def _earlier(replica: Replica, key: str, version: int) -> Steps[bytes]:
    """Skip back whole delta chains until one contains the version, then walk that chain."""
    facts = replica.state.values[key]
    if not 1 <= version < facts.version:
        raise NotFoundError(f"value {key!r} in version {version}", f"it has {facts.version}")
    past, newest = replica.past, facts.position
    start = yield from _value_at(replica, facts.chain[0])
    while start.version > version:
        newest = start.previous
        start = yield from _value_at(replica, start.earlier)
    chain = []
    while True:
        content = yield from _value_at(replica, newest)
        if content.version <= version:
            chain.append((newest, content))
        if content.form != "delta":
            break
        newest = content.previous
    if chain[0][1].form == "deleted":
        raise NotFoundError(f"value {key!r} in version {version}", "it was deleted then")
    data = b""
    for position, content in reversed(chain):
        data = writing.apply_version(past.stream.session, position, data, content)
    return data


def _value_at(replica: Replica, position: int) -> Steps[Value]:
    content = yield from reading.content_at(replica.past, position)
    if not isinstance(content, Value):
        raise ChainError(replica.name, position, "a value is expected here")
    return content


def history(replica: Replica, key: str) -> Steps[list[Version]]:
    """Return the versions of a value, oldest first."""
    facts = replica.state.values.get(key)
    if facts is None:
        raise NotFoundError(f"value {key!r}")
    versions, position = [], facts.position
    while position:
        content = yield from _value_at(replica, position)
        versions.append(Version(content.version, position, content.form == "deleted"))
        position = content.previous
    return versions[::-1]


class Records:
    """Reads the records of a history after a position, in order, one page at a time."""

    def __init__(
        self, past: Past, settings: Settings, *, after: int, on_damage: OnDamage | None
    ) -> None:
        self._name = past.stream.session
        self._settings = settings
        self._on_damage = on_damage
        first = max(require_int(after, "after"), 0)
        self._forward = Forward(past, after=first, on_damage=on_damage)

    def page(self) -> Steps[list[Record] | None]:
        """Return the next records, or None at the end. A page may be empty before that."""
        whole = yield from self._forward.page()
        return None if whole is None else list(self._records(whole))

    def _records(self, whole: list[Linked]) -> Iterator[Record]:
        for linked in whole:
            try:
                yield self._record(linked)
            except DamagedError as error:
                if self._on_damage is None:
                    raise
                self._on_damage(error)

    def _record(self, linked: Linked) -> Record:
        name, cipher = self._name, self._settings.cipher
        content = journal.decode(name, linked, cipher)
        payload = journal.open_body(name, linked, cipher)
        unpacked = _unpack(self._settings.codec, content, payload, name, linked.entry.position)
        return journal.record(name, linked, unpacked)


def verify(replica: Replica) -> Steps[Verified]:
    """Read the whole history, check it, and recompute everything derived from it."""
    state, past, _ = replica.view
    forward = Forward(past)
    recomputed = Fold()
    entries = snapshots = 0
    while (whole := (yield from forward.page())) is not None:
        for linked in whole:
            content = journal.decode(replica.name, linked, past.cipher)
            if isinstance(content, Snapshot):
                snapshots += _require_facts(replica.name, linked, content, recomputed)
            elif isinstance(content, Summary):
                yield from _require_source(replica.name, past, linked, content)
            payload = journal.open_body(replica.name, linked, past.cipher)
            recomputed.apply(linked.entry.position, linked.header.id, content, payload)
        entries += len(whole)
    if recomputed.facts() != state.facts():
        raise DamagedError(replica.name, 0, "its state does not match its records")
    half_copied = yield from _require_labels(replica, past, state)
    tip, torn = past.tip, len(forward.torn)
    return Verified(
        replica.name, entries, tip.position, tip.digest or "", snapshots, torn, half_copied
    )


def _require_facts(name: str, linked: Linked, content: Snapshot, state: Fold) -> int:
    """Raise unless a snapshot matches the state; return 1, or 0 for another version."""
    if content.fold != FOLD_VERSION:
        return 0
    if content.facts != state.facts():
        reason = "a state snapshot that does not match the records before it"
        raise DamagedError(name, linked.entry.position, reason)
    return 1


def _require_source(name: str, past: Past, linked: Linked, content: Summary) -> Steps[None]:
    """Raise unless the digest in a summary is that of the last entry it summarizes."""
    position = linked.entry.position
    if past.begin < content.first <= content.last < position:
        source = yield from reading.entry_at(past, content.last)
        if source.digest == content.digest:
            return
    reason = f"a summary of {content.first} to {content.last}, which have changed since"
    raise DamagedError(name, position, reason)


def _require_labels(replica: Replica, past: Past, state: Fold) -> Steps[bool]:
    """Raise unless the head's labels match the state; return whether it is an unfinished copy."""
    position = past.tip.position
    head = yield from steps.head(replica.name)
    current = 0 if head is None else head.position
    if current < position:
        raise ChainError(replica.name, position, "the head is behind the entries that were read")
    if head is None or current != position or past.torn:
        # Another writer was faster, or an interrupted append left its labels on the head; the next
        # append corrects them.
        return False
    if head.labels not in (state.head_labels, {HALF_COPIED}):
        raise DamagedError(replica.name, 0, "the labels of its head do not match its records")
    for label in head.labels:
        heads = yield from steps.heads(prefix=replica.name, labels=[label], limit=1)
        if not heads or heads[0].stream != replica.name:
            raise DamagedError(replica.name, 0, f"listing by its label {label!r} does not find it")
    return HALF_COPIED in head.labels
