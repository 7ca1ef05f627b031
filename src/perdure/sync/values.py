# Generated from aio/values.py by scripts/generate_sync.py: do not edit.
"""Values: named, versioned documents, in a session or on their own."""

from typing import Any, Self

from perdure.core.values import Version, delete_value, read_value, read_versions, set_value
from perdure.errors import NotFoundError
from perdure.sync.handle import Handle


class Values:
    """Named documents with versions that stay readable.

    `session.values` are those of a session; `store.values(id)` are those of no conversation. A view
    shows the state of its opening, its last `refresh` or its own last write. If two writers set the
    same key, the second gets ConflictError; different keys do not conflict.
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
        """Return a value, or the default if the key has none.

        NotFoundError if a version is given and does not exist.
        """
        facts = self._handle.replica.state.values.get(key)
        if version is None and (facts is None or facts.deleted):
            self._handle.require_open()
            return default
        return self._handle.run(read_value(self._handle.replica, key, version=version))

    def delete(self, key: str) -> None:
        """Delete a value; earlier versions stay readable. NotFoundError if it does not exist."""
        self._handle.write(delete_value(self._handle.replica, key))

    def keys(self) -> list[str]:
        """Return the keys that have a value in this view."""
        values = self._handle.replica.state.values
        return [key for key, facts in values.items() if not facts.deleted]

    def version(self, key: str) -> int:
        """Return the number of the newest version of a key; a deletion counts as a version."""
        facts = self._handle.replica.state.values.get(key)
        if facts is None:
            raise NotFoundError(f"value {key!r}")
        return facts.version

    def history(self, key: str) -> list[Version]:
        """Return the versions of a key, oldest first, for use with `get(key, version=...)`."""
        versions: list[Version] = self._handle.run(read_versions(self._handle.replica, key))
        return versions

    def refresh(self, *, accept_rollback: bool = False) -> int:
        """Apply the records of other writers, as `session.refresh` does."""
        return self._handle.refresh(accept_rollback=accept_rollback)

    def close(self) -> None:
        """Finish everything in flight and close the handle, which may be that of a session."""
        self._handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
