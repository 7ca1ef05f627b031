"""Rotate the keys of an encrypted store: wrap its data keys by a new wrapping key. Steps; pure.

    1. The new wrapping key is stored before the old one, which stays.
    2. Each data key is wrapped by the new one. No record is read or written.
    3. The old wrapping key is dropped.

A rotation that was interrupted is continued: two wrapping keys say so. Sessions are read and
written meanwhile. A process that stored a data key looks afterwards which wrapping key is the
newest (`key_store.require_write_key`): either it was stored before step 1, and step 2 finds it, or
it is wrapped again.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from perdure.errors import ConflictError
from perdure.journal import key_store
from perdure.journal.key_store import KeyChange, WrappedKey
from perdure.journal.requests import Steps

if TYPE_CHECKING:
    from perdure.journal.sealed import StoreKeys


class RotationProgress(NamedTuple):
    """How many data keys were looked at, and how many of them were wrapped again."""

    seen: int
    wrapped: int


def wrap_all(
    keys: "StoreKeys", *, time: str, on_progress: Callable[[RotationProgress], object]
) -> Steps[RotationProgress]:
    """Wrap all data keys by the newest wrapping key; return how many there are."""
    seen = wrapped = 0
    after: str | None = ""
    while after is not None:
        names, after = yield from key_store.list_names(after=after)
        wrapped += yield from _wrap_page(keys, names, time)
        seen += len(names)
        on_progress(RotationProgress(seen, wrapped))
    return RotationProgress(seen, wrapped)


def _wrap_page(keys: "StoreKeys", names: Sequence[str], time: str) -> Steps[int]:
    """Wrap keys again, in one commit if the store can; return how many were."""
    changes: list[KeyChange] = []
    for name in names:
        change = yield from _wrap_again(keys, name)
        if change is not None:
            changes.append(change)
    if len(changes) > 1 and (yield from key_store.put_together(changes, time=time)):
        return len(changes)
    for change in changes:
        current: KeyChange | None = change
        while current is not None:
            try:
                yield from key_store.put(*current[:2], time=time, after=current.after)
                break
            except ConflictError:  # Another process destroyed it, or rotates too.
                current = yield from _wrap_again(keys, current.name)
    return len(changes)


def _wrap_again(keys: "StoreKeys", name: str) -> Steps[KeyChange | None]:
    """Return a key wrapped by the newest wrapping key; None if it is already, or was destroyed."""
    stored = yield from key_store.get(name, WrappedKey)
    if stored is None or not isinstance(stored.content, WrappedKey):
        return None
    content, place = stored.content, key_store.parse_name(name)
    if not content.wrapped or content.by == keys.current:
        return None
    key = keys.unwrap(content.wrapped, content.by, *place)
    again = WrappedKey(by=keys.current, wrapped=keys.wrap(key, *place))
    return KeyChange(name, again, stored)
