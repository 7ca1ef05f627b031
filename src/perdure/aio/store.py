"""AsyncStore: open, list and delete sessions, for code in an event loop."""

import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar
from weakref import WeakSet

from perdure import events
from perdure.aio.batch import AsyncStoreBatch
from perdure.aio.driver import AsyncDriver
from perdure.aio.group_commit import AsyncGroupCommitter
from perdure.aio.handle import AsyncHandle
from perdure.aio.large_body import AsyncPastReader
from perdure.aio.session import AsyncSession
from perdure.aio.unlock import reload_keys, rotate, unlock
from perdure.aio.values import AsyncValues
from perdure.aio.verify import verify_store
from perdure.backends.addresses import (
    Address,
    _emit_downgrades,
    open_async_backend,
    require_backend,
)
from perdure.backends.guarantees import Guarantees, guarantees_of
from perdure.backends.protocol import (
    AsyncBackend,
    Head,
    require_atomic,
    require_order,
    require_recent,
    tenant_of,
)
from perdure.core import fields, history, lifecycle, salvage
from perdure.core.effects import listing
from perdure.core.effects.listing import Approval
from perdure.core.fields import SessionQuery, Where
from perdure.core.lifecycle import SessionInfo
from perdure.core.replay import guard
from perdure.core.replay.guard import Guard
from perdure.core.replica import Replica
from perdure.core.settings import SealOptions, Settings, settings_of
from perdure.core.state.session_state import APPROVAL_WAITING
from perdure.core.validation import require_session_id
from perdure.core.verify import StoreVerifyResult
from perdure.errors import UsageError
from perdure.journal.cipher import keyed
from perdure.journal.key_store import is_own
from perdure.journal.large import PART_SIZE
from perdure.journal.reader import OnDamage
from perdure.journal.records import Record
from perdure.journal.requests import Steps
from perdure.journal.user_types import Types

if TYPE_CHECKING:
    from perdure.formats.tokens import Counter
    from perdure.journal.rotation import RotationProgress
    from perdure.keys import KeySource, MasterKey

T = TypeVar("T")


class AsyncStore:
    """A store of sessions, created by `perdure.open_async`. Tasks of one loop may share it."""

    def __init__(
        self,
        backend: AsyncBackend,
        settings: Settings,
        *,
        master: "MasterKey | None" = None,
        key_backend: AsyncBackend | None = None,
    ) -> None:
        self._backend = backend
        self._settings = settings._replace(tenant=tenant_of(backend))
        self._committer = AsyncGroupCommitter(backend)
        self._driver = AsyncDriver(backend, self._committer)
        self._key_backend = key_backend
        if key_backend is not None:
            self._key_committer = AsyncGroupCommitter(key_backend)
            self._driver.key_driver = AsyncDriver(key_backend, self._key_committer)
        self._master = master
        self._unlocked = False
        """Whether it is known whether the store is sealed, and its keys are at hand."""
        self._closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._backend.name}>"

    @property
    def closed(self) -> bool:
        """Whether the store was closed: its sessions can no longer be used."""
        return self._closed

    async def session(self, id: str) -> AsyncSession:
        """Open a session where it stopped, or a new one, which exists from its first record."""
        return AsyncSession(self._driver, await self._open(id, must_exist=False))

    async def resume(self, id: str) -> AsyncSession:
        """Open a session where it stopped; NotFoundError if it is unknown or deleted."""
        return AsyncSession(self._driver, await self._open(id, must_exist=True))

    async def values(self, id: str) -> AsyncValues:
        """Open the values under an id, for data that belongs to no single conversation.

        Ids are shared with sessions: if a session has this id, these are its values.
        """
        return AsyncValues(AsyncHandle(self._driver, await self._open(id, must_exist=False)))

    def _require_live(self, action: str) -> None:
        """Raise ReplayBlockedError if a replayed agent uses this store."""
        if Guard.used:
            guard.require_live(f"{action} in the live store {self._backend.name}")

    async def _unlock(self) -> Settings:
        """Return the settings; find out first whether the store is sealed, and get its keys."""
        if not self._unlocked:
            self._require_live("read")
            options = SealOptions(self._master, self._key_backend is not None)
            self._settings = await unlock(self._driver, self._settings, options)
            self._set_master(self._master)
            self._unlocked = True
        return self._settings

    def _set_master(self, master: "MasterKey | None") -> None:
        self._master, cipher = master, self._settings.cipher
        if master is not None and cipher.is_placed:
            keys: Any = keyed(cipher).store
            self._driver.reload_keys = partial(reload_keys, keys=keys, master=master)

    async def rotate_keys(
        self,
        new_keys: "KeySource | None" = None,
        *,
        on_progress: "Callable[[RotationProgress], object] | None" = None,
    ) -> "RotationProgress":
        """Wrap the keys of an encrypted store by a new wrapping key; no record is read or written.

        With `new_keys`, that is wrapped by another master key, with which the store is to be opened
        from now on. Sessions may be read and written meanwhile. If it is interrupted, repeat it,
        with the same arguments. UsageError if the store is not encrypted.
        """
        self._require_live("rotate keys")
        settings = await self._unlock()
        if self._master is None or not settings.cipher.is_placed:
            raise UsageError(f"{self._backend.name} was opened without keys: nothing to rotate")
        new, keys = _require_master(new_keys) if new_keys else self._master, keyed(settings.cipher)
        masters: Any = (self._master, new)
        report = on_progress or (lambda _: None)
        progress = await rotate(self._driver, settings, keys.store, masters, report)  # type: ignore[arg-type]
        self._set_master(new)
        return progress

    async def _run(self, steps: Steps[T], action: str = "read") -> T:
        self._require_live(action)
        return await self._driver.run(steps)

    async def _open(self, id: str, *, must_exist: bool) -> Replica:
        name = require_session_id(id)
        settings = self._settings if self._unlocked else await self._unlock()
        steps = lifecycle.open_session(name, settings, must_exist=must_exist)
        with events.span("open", store=self._backend.name, session=name) as span:
            replica = await self._run(steps, f"session {name!r}")
            if replica.exists:
                role, count = history.read_last_role(replica), replica.state.messages
                span.event = "resume"
                span.fields.update(count=count, role=role, position=replica.tip.position)
        return replica

    def batch(self) -> AsyncStoreBatch:
        """Return a batch for `async with`: records of several sessions in one commit, all or none.

        UnsupportedError if the store cannot do that; `session.batch` works on every store.
        """
        self._require_live("batch")
        require_atomic(self._backend)
        return AsyncStoreBatch(self._driver, self._unlock)

    async def sessions(  # noqa: PLR0913 - each is a choice of its own
        self,
        *,
        prefix: str = "",
        labels: Sequence[str] = (),
        where: Where | None = None,
        order: str | None = None,
        after: str = "",
        limit: int | None = None,
        deleted: bool = False,
        recent: bool = False,
    ) -> AsyncIterator[SessionInfo]:
        """Yield the sessions in order of their ids, read page by page from the store.

        Only sessions whose id begins with `prefix`, that have all `labels`, and the values in
        `where` in the fields of `session.describe`: one value, or for one field a range as a tuple
        (lowest, highest), both included, of which one may be None. At most `limit` sessions;
        deleted ones only with `deleted`.

        `order` is "id", the name of a field, "-" and its name for the highest value first, or
        "-changed" for the last changed first, as with `recent`. Sessions without the field are left
        out. The listing continues after the session `after`; "-changed" cannot. UnsupportedError if
        the store has no such order.
        """
        query = fields.parse_query(labels, where, order, recent=recent)
        if query.recent and after:
            raise UsageError(
                "`after` cannot continue the order by last change: use a higher limit= instead"
            )
        lifecycle.require_filter(prefix, after, query.labels, limit)
        self._require_live("read")
        if limit == 0:
            return
        settings = await self._unlock()
        query = fields.seal_query(query, settings)
        remaining = limit
        async for head in self._heads(query, prefix=prefix, after=after, deleted=deleted):
            if is_own(head.stream):  # Keys, which have the label of deleted sessions.
                continue
            yield lifecycle.session_info(head, settings)
            if remaining is not None:
                remaining -= 1
                if not remaining:
                    return

    async def _heads(
        self, query: SessionQuery, *, prefix: str, after: str, deleted: bool
    ) -> AsyncIterator[Head]:
        without = lifecycle.excluded_labels(deleted=deleted)
        options: Any = {"prefix": prefix, "labels": query.labels, "without": without}
        if query.recent:
            async for head in require_recent(self._backend).recent(**options, headers=True):
                yield head
        elif query.order is not None:
            backend = require_order(self._backend)
            order = await self._run(fields.place_after(query.order, after))
            async for head in backend.ordered(order, **options, headers=True):
                yield head
        else:
            cursor: str | None = after
            size = lifecycle.FIRST_PAGE
            while cursor is not None:
                steps = lifecycle.list_page(
                    prefix=prefix, after=cursor, labels=query.labels, deleted=deleted, limit=size
                )
                page, cursor = await self._run(steps)
                size = lifecycle.PAGE
                for head in page:
                    yield head

    async def records(
        self, id: str, *, after: int = 0, on_damage: OnDamage | None = None
    ) -> AsyncIterator[Record]:
        """Yield the records of a session without opening it, which damage may prevent.

        Damage is raised; if `on_damage` is given, it is called with each error instead, and reading
        continues with the next readable record.
        """
        name = require_session_id(id)
        settings = await self._unlock()
        past = await self._run(salvage.salvage_history(name, settings, on_damage))
        chosen = history.RecordFilter(after)
        settings = AsyncPastReader(self._driver, past).settings(self._settings)
        records = history.RecordReader(past, settings, chosen, on_damage=on_damage)
        while (page := await self._run(records.page())) is not None:
            for record in page:
                yield record

    async def approvals(self, *, prefix: str = "") -> AsyncIterator[Approval]:
        """Yield the pending approvals of all sessions, or of those with a prefix."""
        async for head in self.sessions(prefix=prefix, labels=[APPROVAL_WAITING]):
            steps = lifecycle.open_session(head.id, self._settings, must_exist=False)
            replica = await self._run(steps)
            for approval in await self._run(listing.pending_approvals(replica)):
                yield approval

    async def verify(self) -> StoreVerifyResult:
        """Check the store itself and every session in it, and return everything that is wrong.

        All sessions are read in full. Damage is returned in `problems`, not raised. A session that
        is in no list, although it has entries, is found too, if the store can compare itself
        (`compared`; all built-in ones can).
        """
        return await verify_store(self, self._backend)

    async def delete(self, id: str, *, reason: str = "") -> None:
        """Delete a session: one last record stays, with the reason; everything before is dropped.

        InUseError while it has branches, LeaseHeldError while a worker holds its lease,
        NotFoundError if it does not exist.
        """
        name = require_session_id(id)
        with events.span("delete", store=self._backend.name, session=name):
            steps = lifecycle.delete_session(name, await self._unlock(), reason=reason)
            await self._run(steps, f"delete {name!r}")

    def guarantees(self) -> Guarantees:
        """Return the store's guarantees: which crashes appends survive, who may share it, and more.

        The backend determined them when it was opened; nothing is checked again.
        """
        return guarantees_of(self._backend)

    async def close(self) -> None:
        """Finish everything in flight and close the store. Closing twice is harmless."""
        self._require_live("close")
        if not self._closed:
            self._closed = self._driver.closed = True
            # A stack, so that an error of one does not stop the others. It runs in reverse.
            async with AsyncExitStack() as stack:
                stack.enter_context(events.span("close", store=self._backend.name, session=""))
                stack.push_async_callback(self._backend.close)
                if self._key_backend is not None:
                    stack.push_async_callback(self._key_backend.close)
                    stack.push_async_callback(self._key_committer.drain)
                stack.push_async_callback(self._committer.drain)
                for handle in _all_handles(self._driver.handles):
                    stack.push_async_callback(handle.drain)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


def _all_handles(handles: WeakSet[AsyncHandle]) -> list[AsyncHandle]:
    """Return all handles, even while other threads open sessions."""
    while True:
        try:
            return [*handles]
        except RuntimeError:  # One was added during the iteration.
            continue


def open_async(  # noqa: PLR0913 - every setting of a store, by name
    address: "Address | AsyncBackend",
    *,
    types: Types | None = None,
    clock: Callable[[], float] = time.time,
    verify_writes: bool = False,
    tokens: "str | Counter | None" = None,
    keys: "KeySource | None" = None,
    key_store: "Address | AsyncBackend | None" = None,
    part_size: int = PART_SIZE,
) -> AsyncStore:
    """Open a store: a path, `files:directory`, `postgresql://…`, `memory:`, or a backend.

    A path is a SQLite file, as is `sqlite:path`; `memory:` is for tests. `types` registers the
    classes that values may hold, as a list or by name: dataclasses, pydantic models, enums, named
    tuples, a TypeCodec, and those in `perdure.types`. `clock` returns the recorded times, in
    seconds since 1970; nothing else depends on it. With `verify_writes` every append is read back
    and compared before it counts as stored. `tokens`, a model's name or a custom Counter, counts
    the tokens of messages as they are stored, so that windows need not count them again. Texts and
    media from `part_size` bytes on are stored in parts of at most this size, and are not loaded
    with the messages and values that have them.

    `keys` encrypts the store: `env:NAME`, `file:PATH`, `passphrase:env:NAME`, a callable that
    returns a key, or an object with `wrap` and `unwrap` (`perdure.keys`). A new store is
    sealed when it is first used; from then on nothing is read or written without its keys. The
    store keeps them itself, encrypted, or `key_store` does, which is another store.

    A setting that would break a promise of the store raises UnsupportedError, unless the address
    accepts it by name: `sqlite:agents.db?accept=network-filesystem`. `AsyncStore.guarantees` lists
    what is guaranteed.

    The call itself blocks: it opens the file, or connects to the server, at once. Call it when the
    application starts. The methods of the store are awaited.
    """
    guard.require_live("perdure.open")
    settings = settings_of(
        types, clock, verify_writes=verify_writes, tokens=tokens, part_size=part_size
    )
    master = None if keys is None else _require_master(keys)
    if key_store is not None and master is None:
        raise UsageError("key_store= is where keys are kept: give keys= too")
    backend = _open_store(address)
    if key_store is None:
        return AsyncStore(backend, settings, master=master)
    return AsyncStore(backend, settings, master=master, key_backend=_open_store(key_store))


def _open_store(address: "Address | AsyncBackend") -> AsyncBackend:
    if isinstance(address, str | os.PathLike):
        return open_async_backend(address)
    require_backend(address)
    _emit_downgrades(address)
    return address


def _require_master(keys: "KeySource") -> "MasterKey":
    from perdure.keys import master_key

    return master_key(keys)
