"""Plans that set and delete values, and steps that read their versions. Pure.

A version is stored in full, or as a delta to the version before it (`core/state/values`).
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from perdure.core.bodies import split_tree, text_min_of
from perdure.core.plans import Plan, RecordBatch
from perdure.core.replica import Replica
from perdure.core.state import values
from perdure.core.state.values import DELTA_CHAIN_MAX, CachedValue, ValueState
from perdure.core.validation import NAME_BYTES_MAX, require_int, require_text
from perdure.errors import NotFoundError, PayloadError, UsageError
from perdure.formats.bodies import LEAF_MIN
from perdure.journal import codec, reader, requests
from perdure.journal.codec import PAYLOAD_MAX, UPLOAD_HINT
from perdure.journal.large import TAG_BYTES, citations_in, join_tree
from perdure.journal.ranges import Positions, merge_ranges
from perdure.journal.reader import History
from perdure.journal.records import Value
from perdure.journal.requests import Steps

COMPUTE_BYTES_MIN = 2**17  # bytes; a delta of shorter values takes less than 2 ms


def set_value(replica: Replica, key: str, value: object) -> Plan[int]:
    """Plan a new version of a value, as a delta if that is shorter. The result is the version."""
    require_text(key, "a key", longest=NAME_BYTES_MAX)
    data = replica.settings.codec.encode(value)
    if len(data) > codec.PAYLOAD_MAX:
        reason = f"{len(data)} bytes exceed the limit of {codec.PAYLOAD_MAX} for one record"
        raise UsageError(f"{reason}: split the value over several keys, or {UPLOAD_HINT}", "$")
    record_id = replica.new_id()

    def make(batch: RecordBatch) -> Steps[int]:
        facts, stored = batch.state.values.get(key), data
        parts: tuple[Positions, ...] = ()
        if len(data) >= LEAF_MIN or TAG_BYTES in data:
            stored, parts = _split(batch, data)
        edits = yield from _delta_edits(replica, batch, key, facts, stored)
        content = _version_record(key, facts, stored, edits)
        if parts:  # Those of the whole value, whatever a delta contains.
            content = msgspec.structs.replace(content, parts=parts)
        batch.add_content(record_id, content)
        batch.values[key] = stored
        return content.version

    return Plan("value", key, make)


def _split(batch: RecordBatch, data: bytes) -> tuple[bytes, tuple[Positions, ...]]:
    """Return the data with its large bodies cited, and their parts, which are added before it."""
    text_min = text_min_of(len(data), batch.bodies.part_size)
    tree = split_tree(batch, codec.decode_tree(data), "", text_min)
    parts = merge_ranges(part for item in citations_in(tree) for part in item.parts)
    return codec.encode_tree(tree), parts


def _delta_edits(
    replica: Replica, batch: RecordBatch, key: str, facts: ValueState | None, data: bytes
) -> Steps[list[values.Edit] | None]:
    """Return the edits from the current version to new data, or None to store it in full."""
    if facts is None or facts.deleted or len(facts.chain) > DELTA_CHAIN_MAX:
        return None
    if len(data) < values.DELTA_BYTES_MIN:
        return None
    old = batch.values.get(key) or replica.values.get(key, facts.position)
    if old is None:
        old = yield from read_value_data(batch.past, facts.chain)
    if len(data) < COMPUTE_BYTES_MIN:
        return values.make_delta(old, data)
    return (yield from requests.compute(partial(values.make_delta, old, data)))


def _version_record(
    key: str, facts: ValueState | None, data: bytes, edits: list[values.Edit] | None
) -> Value:
    version, previous = (facts.version + 1, facts.position) if facts else (1, 0)
    if edits is not None:
        return Value(key=key, version=version, form="delta", data=edits, previous=previous)
    tree, first = codec.decode_tree(data), facts.chain[0] if facts else 0
    return Value(
        key=key, version=version, form="full", data=tree, previous=previous, previous_full=first
    )


def read_value_data(past: History, chain: Sequence[int]) -> Steps[bytes]:
    """Read one version of a value: a full version, then the deltas that follow it."""
    data = b""
    for position in chain:
        content = yield from reader.read_kind(past, position, Value, check_tip=False)
        data = apply_version(past.stream.session, position, data, content)
    yield from reader.require_tip(past)
    return data


def apply_version(name: str, position: int, data: bytes, content: Value) -> bytes:
    """Return the full value after applying one more version."""
    if content.form != "delta":
        return codec.encode_tree(content.data)
    try:
        return values.apply_delta(data, content.data)
    except (LookupError, TypeError, ValueError) as error:
        reason = "its delta does not apply to the previous version"
        raise PayloadError(name, position, reason) from error


def delete_value(replica: Replica, key: str) -> Plan[int]:
    """Plan the deletion of a value; earlier versions stay readable."""
    require_text(key, "a key", longest=NAME_BYTES_MAX)
    record_id = replica.new_id()

    def make(batch: RecordBatch) -> int:
        facts = batch.state.values.get(key)
        if facts is None or facts.deleted:
            raise NotFoundError(f"value {key!r}")
        content = Value(
            key=key,
            version=facts.version + 1,
            form="deleted",
            previous=facts.position,
            previous_full=facts.chain[0],
        )
        batch.values.pop(key, None)  # An earlier plan of this batch may have set it.
        return batch.add_content(record_id, content)

    return Plan("value", key, make)


class Version(NamedTuple):
    """One version of a value: its number, its position, and whether it is a deletion."""

    version: int
    position: int
    deleted: bool


def read_value(replica: Replica, key: str, *, version: int | None) -> Steps[Any]:
    """Return the current version of a value, or the one asked for."""
    if version is not None:
        require_int(version, "version")
    # The view before the cache: accepting a rollback replaces them in the other order, so that a
    # position of one history is never looked up in the cache of another.
    view = replica.view
    cache, facts = replica.values, view.state.values.get(key)
    if facts is None or (version is None and facts.deleted):
        raise NotFoundError(f"value {key!r}")
    if version is None or version == facts.version:
        data = cache.get(key, facts.position)
        if data is None:
            data = yield from _read_current(view.history, key, facts)
            cache.put(key, CachedValue(facts.position, data))
    else:
        data = yield from _read_earlier(view.history, key, facts, version)
    tree = codec.decode_tree(data)
    if TAG_BYTES in data:
        size = sum(citation.size for citation in citations_in(tree))
        # A value comes back as it was set, unless it can only have been uploaded.
        tree = yield from join_tree(view.history, tree, size + 1 if size <= PAYLOAD_MAX else 0)
    return replica.settings.codec.unpack(tree, stream=replica.name)


def _read_current(past: History, key: str, facts: ValueState) -> Steps[bytes]:
    if facts.deleted:
        raise NotFoundError(f"value {key!r} in version {facts.version}", "it was deleted then")
    return (yield from read_value_data(past, facts.chain))


def _read_earlier(past: History, key: str, facts: ValueState, version: int) -> Steps[bytes]:
    """Skip back whole delta chains until one contains the version, then walk that chain."""
    if not 1 <= version < facts.version:
        raise NotFoundError(f"value {key!r} in version {version}", f"it has {facts.version}")
    newest = facts.position
    start = yield from reader.read_kind(past, facts.chain[0], Value, check_tip=False)
    while start.version > version:
        newest = start.previous
        start = yield from reader.read_kind(past, start.previous_full, Value, check_tip=False)
    chain = []
    while True:
        content = yield from reader.read_kind(past, newest, Value, check_tip=False)
        if content.version <= version:
            chain.append((newest, content))
        if content.form != "delta":
            break
        newest = content.previous
    yield from reader.require_tip(past)
    if chain[0][1].form == "deleted":
        raise NotFoundError(f"value {key!r} in version {version}", "it was deleted then")
    data = b""
    for position, content in reversed(chain):
        data = apply_version(past.stream.session, position, data, content)
    return data


def read_versions(replica: Replica, key: str) -> Steps[list[Version]]:
    """Return the versions of a value, oldest first, from where the session is complete."""
    state, past, _ = replica.view
    facts = state.values.get(key)
    if facts is None:
        raise NotFoundError(f"value {key!r}")
    versions, position = [], facts.position
    while position and not past.is_dropped(position):
        content = yield from reader.read_kind(past, position, Value, check_tip=False)
        versions.append(Version(content.version, position, content.form == "deleted"))
        position = content.previous
    yield from reader.require_tip(past)
    return versions[::-1]
