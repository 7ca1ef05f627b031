"""Store: opens sessions, lists and deletes them, and says what it guarantees. For blocking code.

Every method here has its twin in `store_async`, in the same order, with the same parameters.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self
from weakref import WeakSet

from perdure import events, lifecycle, salvage, views
from perdure.approvals import views as approval_views
from perdure.approvals.views import Approval
from perdure.backend import Backend, Head, knowing_recency
from perdure.commit import Committer, Driver
from perdure.errors import UsageError
from perdure.fold import APPROVAL_WAITING
from perdure.guarantees import Guarantees, guarantees_of
from perdure.handle import Handle
from perdure.reading import OnDamage
from perdure.records import Record
from perdure.replica import Replica
from perdure.session import Session
from perdure.settings import Settings
from perdure.values import Values
from perdure.writing import require_session_id


class Store:
    """Many sessions in one place. Made by `perdure.open`. Threads may share it."""

    def __init__(self, backend: Backend, settings: Settings) -> None:
        self._backend = backend
        self._settings = settings
        self._committer = Committer(backend)
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
        steps = lifecycle.opened(name, self._settings, must_exist=must_exist)
        with events.observed("open", store=self._backend.name, session=name) as seen:
            replica = self._driver.run(steps)
            if replica.exists:
                count, position = replica.state.messages, replica.tip.position
                seen.event = "resume"
                seen.fields.update(count=count, role=views.last_role(replica), position=position)
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
            lifecycle.require_choice(prefix, after, labels)
            without = lifecycle.left_out(deleted=deleted)
            known = knowing_recency(self._backend)
            yield from known.recent(prefix=prefix, labels=labels, without=without)
            return
        going_on: str | None = after
        limit = lifecycle.FIRST_PAGE
        while going_on is not None:
            chosen = lifecycle.listed(
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
        past = self._driver.run(salvage.past_of(name, self._settings, on_damage))
        records = views.Records(past, self._settings, after=after, on_damage=on_damage)
        while (page := self._driver.run(records.page())) is not None:
            yield from page

    def approvals(self, *, prefix: str = "") -> Iterator[Approval]:
        """Yield the approvals that wait for a decision, in all sessions or those of a prefix."""
        for head in self.sessions(prefix=prefix, labels=[APPROVAL_WAITING]):
            replica = self._driver.run(lifecycle.opened(head.id, self._settings, must_exist=False))
            yield from self._driver.run(approval_views.pending(replica))

    def delete(self, id: str, *, reason: str = "") -> None:
        """Delete a session: a last record stays, and says why; everything before it is dropped.

        InUseError while branches of it live, LeaseHeldError while a worker holds it, NotFoundError
        if there is none.
        """
        name = require_session_id(id)
        with events.observed("delete", store=self._backend.name, session=name):
            self._driver.run(lifecycle.delete(name, self._settings, reason=reason))

    def guarantees(self) -> Guarantees:
        """Say what survives when an append has returned, who may share the store, and what else.

        It is what the backend found when it was opened; nothing is asked anew.
        """
        return guarantees_of(self._backend)

    def close(self) -> None:
        """Finish what is under way and let the store go. Closing twice is harmless."""
        if not self._closed:
            self._closed = self._driver.closed = True
            told = events.observed("close", store=self._backend.name, session="")
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
