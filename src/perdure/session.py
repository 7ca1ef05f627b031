"""Session: what an application holds, for blocking code.

Every method here has its twin in `session_async`, in the same order, with the same parameters and
promises. Nothing is decided here: a method makes a plan or steps, and runs them.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from perdure import events, lifecycle, views, writing
from perdure.commit import Driver
from perdure.errors import NotFoundError
from perdure.handle import Handle
from perdure.reading import OnDamage
from perdure.records import Record
from perdure.replica import Replica
from perdure.turn import Turn
from perdure.views import Verified, Version
from perdure.writing import Voice


class Session:
    """One agent's conversation and working state.

    A handle has one view of its session: what it had read when it was opened or refreshed, and
    what it wrote itself. Threads may share a handle; their appends never race. When another handle
    or process wrote first, a call that depends on the view raises ConflictError and refreshes it.
    """

    def __init__(self, driver: Driver, replica: Replica) -> None:
        self._handle = Handle(driver, replica)
        self._replica = replica
        self.values = Values(self._handle)

    @property
    def id(self) -> str:
        """The session's id, as it was given."""
        return self._replica.name

    @property
    def position(self) -> int:
        """The position of the newest record in this view, 0 in a new session."""
        return self._replica.tip.position

    @property
    def last(self) -> dict[str, Any] | None:
        """The newest message in this view, or None."""
        return views.last_message(self._replica)

    @property
    def labels(self) -> frozenset[str]:
        """The labels on the session: its own, and the states that perdure marks."""
        return self._replica.fold.head_labels

    @property
    def interrupted(self) -> tuple[Turn, ...]:
        """The turns that began and have not ended, other than those that this handle has open.

        Enter one with `with` to continue it, or call its `abandon`.
        """
        return tuple(
            Turn(self._handle, turn, begun=found.position, correlation_id=found.correlation_id)
            for turn, found in self._replica.fold.turns.items()
            if turn not in self._handle.own_turns
        )

    def __len__(self) -> int:
        """The number of messages in this view."""
        return self._replica.fold.messages

    def __bool__(self) -> bool:
        """A session is true, empty or not."""
        return True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r}: {len(self)} messages, at {self.position}>"

    def append(
        self,
        *messages: Mapping[str, Any],
        author: str = "",
        recipient: str = "",
        channel: str = "",
        origin: str = "",
        id: str | None = None,
    ) -> int:
        """Append messages, all or none; on return they are durable. Return the last position.

        With an `id` of the caller's own, calling again after a crash or a lost answer appends
        nothing twice; the same id with other messages is a DivergenceError.
        """
        voice = Voice(author, recipient, channel, origin)
        return self._handle.write(writing.say(self._replica, messages, voice=voice, record_id=id))

    def turn(
        self,
        message: str | Mapping[str, Any] | None = None,
        *,
        correlation_id: str = "",
        author: str = "",
        id: str | None = None,
    ) -> Turn:
        """Return a turn for `with`: begun, with the user's message durable, when the body runs.

        It is completed when the body ends, failed when the body raises, and interrupted when the
        process dies. With an `id`, entering it again after a crash continues the turn.
        """
        if id is not None:
            writing.require_id(id)
        correlation_id = correlation_id or events.correlation_id.get()
        if isinstance(message, str):
            message = {"role": "user", "content": message}
        return Turn(
            self._handle, id, message=message, correlation_id=correlation_id, voice=Voice(author)
        )

    def messages(self, *, last: int | None = None) -> list[dict[str, Any]]:
        """Return the messages in this view, in order, or only the last few of them."""
        return self._handle.run(views.messages(self._replica, last=last))

    def set(self, key: str, value: object) -> int:
        """Store a value as the newest version of a key; on return it is durable.

        Returns the version. Long documents are stored as deltas, so a small change costs little.
        """
        return self._handle.write(writing.put(self._replica, key, value))

    def get(self, key: str, default: Any = None, *, version: int | None = None) -> Any:
        """Return a value, or the default where the key has none.

        An earlier version that was asked for and is not there is a NotFoundError.
        """
        facts = self._replica.fold.values.get(key)
        if version is None and (facts is None or facts.deleted):
            self._handle.require_open()
            return default
        return self._handle.run(views.value(self._replica, key, version=version))

    def delete(self, key: str) -> None:
        """Delete a value; its earlier versions stay readable. An absent one is NotFoundError."""
        self._handle.write(writing.forget(self._replica, key))

    def note(self, data: object, *, author: str = "", id: str | None = None) -> int:
        """Append a remark that is not part of the conversation. It never conflicts."""
        return self._handle.write(writing.remark(self._replica, data, author=author, record_id=id))

    def label(self, *add: str, remove: Sequence[str] = ()) -> None:
        """Put labels on the session, by which `store.sessions` finds it, or take them off."""
        self._handle.write(writing.label(self._replica, add, remove))

    def records(self, *, after: int = 0, on_damage: OnDamage | None = None) -> Iterator[Record]:
        """Yield every record in this view, its chain checked.

        Damage is raised; given `on_damage`, it is called with each error instead, and reading
        goes on with the next record that can be read.
        """
        past, settings = self._replica.past, self._replica.settings
        records = views.Records(past, settings, after=after, on_damage=on_damage)
        while (page := self._handle.run(records.page())) is not None:
            yield from page

    def branch(self, id: str, *, at: int | None = None) -> "Session":
        """Create a session that shares this one's past, up to and with position `at`.

        Nothing is copied. While the branch lives, this session can not be deleted.
        """
        with self._handle.observed("branch", branch=id):
            child = self._handle.run(lifecycle.branch(self._replica, id, at=at))
        self._handle.write(writing.CATCH_UP)
        return Session(self._handle.driver, child)

    def refresh(self) -> int:
        """Take in what others wrote; return the position of the newest record."""
        return self._handle.write(writing.REFRESH)

    def verify(self) -> Verified:
        """Read the whole past and check it: chain, bodies, snapshots, labels. Raise if damaged."""
        with self._handle.observed("verify") as seen:
            found = self._handle.run(views.verify(self._replica))
            seen.fields.update(entries=found.entries, position=found.position)
        return found

    def close(self) -> None:
        """Finish what is under way and let the handle go. Closing twice is harmless."""
        self._handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Values:
    """The session's named documents beyond set, get and delete. Reached as `session.values`."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def keys(self) -> list[str]:
        """Return the keys that have a value in this view."""
        values = self._handle.replica.fold.values
        return [key for key, facts in values.items() if not facts.deleted]

    def version(self, key: str) -> int:
        """Return the number of the newest version of a key, counting deletions."""
        facts = self._handle.replica.fold.values.get(key)
        if facts is None:
            raise NotFoundError(f"value {key!r}")
        return facts.version

    def history(self, key: str) -> list[Version]:
        """Return what `get(key, version=...)` can be asked for, oldest first."""
        found: list[Version] = self._handle.run(views.history(self._handle.replica, key))
        return found
