"""Values: named documents, in a session or on their own. Its twin is in `values_async`."""

from types import TracebackType
from typing import Any, Self

from perdure.core import plans
from perdure.core.values import Version, delete_value, read_value, read_versions, set_value
from perdure.errors import NotFoundError
from perdure.sync.handle import Handle


class Values:
    """Named documents, each in versions that stay readable.

    Those of a session are `session.values`; `store.values(id)` are those that belong to no
    conversation. A view is as old as its opening, `refresh` or own writing. Two that set the same
    key are told of each other by ConflictError; different keys do not meet.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.id!r}: {len(self.keys())} keys>"

    @property
    def id(self) -> str:
        """The id that they are stored under: that of their session, if they have one."""
        return self._handle.replica.name

    def set(self, key: str, value: object) -> int:
        """Store a value as the newest version of a key; on return it is durable.

        Returns the version. Long documents are stored as deltas, so a small change costs little.
        """
        return self._handle.write(set_value(self._handle.replica, key, value))

    def get(self, key: str, default: Any = None, *, version: int | None = None) -> Any:
        """Return a value, or the default where the key has none.

        An earlier version that was asked for and is not there is a NotFoundError.
        """
        facts = self._handle.replica.state.values.get(key)
        if version is None and (facts is None or facts.deleted):
            self._handle.require_open()
            return default
        return self._handle.run(read_value(self._handle.replica, key, version=version))

    def delete(self, key: str) -> None:
        """Delete a value; its earlier versions stay readable. An absent one is NotFoundError."""
        self._handle.write(delete_value(self._handle.replica, key))

    def keys(self) -> list[str]:
        """Return the keys that have a value in this view."""
        values = self._handle.replica.state.values
        return [key for key, facts in values.items() if not facts.deleted]

    def version(self, key: str) -> int:
        """Return the number of the newest version of a key, counting deletions."""
        facts = self._handle.replica.state.values.get(key)
        if facts is None:
            raise NotFoundError(f"value {key!r}")
        return facts.version

    def history(self, key: str) -> list[Version]:
        """Return what `get(key, version=...)` can be asked for, oldest first."""
        found: list[Version] = self._handle.run(read_versions(self._handle.replica, key))
        return found

    def refresh(self) -> int:
        """Take in what others wrote; return the position of the newest record."""
        return self._handle.write(plans.REFRESH)

    def close(self) -> None:
        """Finish what is under way and let the handle go, that of the session if there is one."""
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
