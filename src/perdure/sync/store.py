"""Store: opens sessions, lists and deletes them, and says what it guarantees. For blocking code.

Every method here has its twin in `store_async`, in the same order, with the same parameters.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Self
from weakref import WeakSet

from perdure import events
from perdure.backends.addresses import Address, _emit_downgrades, open_backend, require_backend
from perdure.backends.guarantees import Guarantees, guarantees_of
from perdure.backends.protocol import Backend, Head, require_recent
from perdure.core import history, lifecycle, salvage
from perdure.core.effects import listing
from perdure.core.effects.listing import Approval
from perdure.core.replica import Replica
from perdure.core.settings import Settings, Types, settings_of
from perdure.core.state.labels import APPROVAL_WAITING
from perdure.core.validation import require_session_id
from perdure.errors import UsageError
from perdure.journal.reader import OnDamage
from perdure.journal.records import Record
from perdure.sync.driver import Driver
from perdure.sync.group_commit import GroupCommitter
from perdure.sync.handle import Handle
from perdure.sync.session import Session
from perdure.sync.values import Values

if TYPE_CHECKING:
    from perdure.formats.tokens import Counter


class Store:
    """Many sessions in one place. Made by `perdure.open`. Threads may share it."""

    def __init__(self, backend: Backend, settings: Settings) -> None:
        self._backend = backend
        self._settings = settings
        self._committer = GroupCommitter(backend)
        self._driver = Driver(backend, self._committer)
        self._closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._backend.name}>"

    def session(self, id: str) -> Session:
        """Open a session where it stopped, or a new one; a new one exists from its first record."""
        return Session(self._driver, self._open(id, must_exist=False))

    def resume(self, id: str) -> Session:
        """Open a session where it stopped; an unknown or deleted one is NotFoundError."""
        return Session(self._driver, self._open(id, must_exist=True))

    def values(self, id: str) -> Values:
        """Open the values under an id, for what is known apart from any one conversation.

        They are those of the session of that id, should there be one: the ids are shared.
        """
        return Values(Handle(self._driver, self._open(id, must_exist=False)))

    def _open(self, id: str, *, must_exist: bool) -> Replica:
        name = require_session_id(id)
        steps = lifecycle.open_session(name, self._settings, must_exist=must_exist)
        with events.span("open", store=self._backend.name, session=name) as seen:
            replica = self._driver.run(steps)
            if replica.exists:
                count, position = replica.state.messages, replica.tip.position
                seen.event = "resume"
                seen.fields.update(
                    count=count, role=history.read_last_role(replica), position=position
                )
        return replica

    def sessions(
        self,
        *,
        prefix: str = "",
        labels: Sequence[str] = (),
        after: str = "",
        deleted: bool = False,
        recent: bool = False,
    ) -> Iterator[Head]:
        """Yield the heads of sessions in order of their ids, a page at a time from the store.

        Only those whose id begins with `prefix`, comes after `after` and that bear all `labels`;
        deleted ones only where asked for. With `recent`, the most recently changed one comes
        first, and `after` can not be given; a store that does not know is UnsupportedError.
        """
        if recent:
            if after:
                raise UsageError("`after` is an id, so it cannot be combined with `recent`")
            lifecycle.require_filter(prefix, after, labels)
            without = lifecycle.excluded_labels(deleted=deleted)
            known = require_recent(self._backend)
            yield from known.recent(prefix=prefix, labels=labels, without=without)
            return
        going_on: str | None = after
        limit = lifecycle.FIRST_PAGE
        while going_on is not None:
            chosen = lifecycle.list_page(
                prefix=prefix, after=going_on, labels=labels, deleted=deleted, limit=limit
            )
            page, going_on = self._driver.run(chosen)
            limit = lifecycle.PAGE
            yield from page

    def records(
        self, id: str, *, after: int = 0, on_damage: OnDamage | None = None
    ) -> Iterator[Record]:
        """Yield the records of a session without opening it, which damage may prevent.

        Damage is raised; given `on_damage`, it is called with each error instead, and reading
        goes on with the next record that can be read.
        """
        name = require_session_id(id)
        past = self._driver.run(salvage.salvage_history(name, self._settings, on_damage))
        records = history.RecordReader(past, self._settings, after=after, on_damage=on_damage)
        while (page := self._driver.run(records.page())) is not None:
            yield from page

    def approvals(self, *, prefix: str = "") -> Iterator[Approval]:
        """Yield the approvals that wait for a decision, in all sessions or those of a prefix."""
        for head in self.sessions(prefix=prefix, labels=[APPROVAL_WAITING]):
            replica = self._driver.run(
                lifecycle.open_session(head.id, self._settings, must_exist=False)
            )
            yield from self._driver.run(listing.pending_approvals(replica))

    def delete(self, id: str, *, reason: str = "") -> None:
        """Delete a session: a last record stays, and says why; everything before it is dropped.

        InUseError while branches of it live, LeaseHeldError while a worker holds it, NotFoundError
        if there is none.
        """
        name = require_session_id(id)
        with events.span("delete", store=self._backend.name, session=name):
            self._driver.run(lifecycle.delete_session(name, self._settings, reason=reason))

    def guarantees(self) -> Guarantees:
        """Say what survives when an append has returned, who may share the store, and what else.

        It is what the backend found when it was opened; nothing is asked anew.
        """
        return guarantees_of(self._backend)

    def close(self) -> None:
        """Finish what is under way and let the store go. Closing twice is harmless."""
        if not self._closed:
            self._closed = self._driver.closed = True
            told = events.span("close", store=self._backend.name, session="")
            with told, ExitStack() as last:  # Whatever one of them raises, the others are drained.
                last.callback(self._backend.close)
                last.callback(self._committer.drain)
                for handle in _all_of(self._driver.handles):
                    last.callback(handle.drain)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _all_of(handles: WeakSet[Handle]) -> list[Handle]:
    """Return them all, also while other threads open sessions."""
    while True:
        try:
            return [*handles]
        except RuntimeError:  # One was added while they were gone through.
            continue


def open(
    address: "Address | Backend",
    *,
    types: Types | None = None,
    clock: Callable[[], float] = time.time,
    verify_writes: bool = False,
    tokens: "str | Counter | None" = None,
) -> Store:
    """Open a store: a path, `files:directory`, `postgresql://…`, `memory:`, or a backend.

    A path is a SQLite file, as is `sqlite:path`; `memory:` is for tests. `types` registers the
    caller's own classes that values may hold: dataclasses, pydantic models, or a TypeCodec. `clock`
    returns the recorded times, in seconds since 1970; nothing else depends on it. With
    `verify_writes` every append is read back and compared before it counts as stored. `tokens`, a
    model's name or a custom Counter, counts the tokens of messages as they are stored, so that
    windows need not count them again.

    A setting that would break a promise of the store raises UnsupportedError, unless the address
    accepts it by name: `sqlite:agents.db?accept=network-filesystem`. `Store.guarantees` lists what
    is guaranteed.
    """
    settings = settings_of(types, clock, verify_writes=verify_writes, tokens=tokens)
    if isinstance(address, str | os.PathLike):
        return Store(open_backend(address), settings)
    require_backend(address)
    _emit_downgrades(address)
    return Store(address, settings)
