"""AsyncValues: named, versioned documents, in a session or on their own."""

from typing import Any, Self

from perdure.aio.handle import AsyncHandle
from perdure.core.values import Version, delete_value, read_value, read_versions, set_value
from perdure.errors import NotFoundError


class AsyncValues:
    """Named documents with versions that stay readable.

    `session.values` are those of a session; `store.values(id)` are those of no conversation. A view
    shows the state of its opening, its last `refresh` or its own last write. If two writers set the
    same key, the second gets ConflictError; different keys do not conflict.
    """

    def __init__(self, handle: AsyncHandle) -> None:
        self._handle = handle

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.id!r}: {len(self.keys())} keys>"

    @property
    def id(self) -> str:
        """The id that they are stored under: that of their session, if they have one."""
        return self._handle.replica.name

    async def set(self, key: str, value: object) -> int:
        """Store a value as the newest version of a key; on return it is durable.

        Returns the version. Long documents are stored as deltas, so a small change costs little.
        """
        return await self._handle.write(set_value(self._handle.replica, key, value))

    async def get(self, key: str, default: Any = None, *, version: int | None = None) -> Any:
        """Return a value, or the default if the key has none.

        NotFoundError if a version is given and does not exist.
        """
        facts = self._handle.replica.state.values.get(key)
        if version is None and (facts is None or facts.deleted):
            self._handle.require_open()
            return default
        return await self._handle.run(read_value(self._handle.replica, key, version=version))

    async def delete(self, key: str) -> None:
        """Delete a value; earlier versions stay readable. NotFoundError if it does not exist."""
        await self._handle.write(delete_value(self._handle.replica, key))

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

    async def history(self, key: str) -> list[Version]:
        """Return the versions of a key, oldest first, for use with `get(key, version=...)`."""
        versions: list[Version] = await self._handle.run(read_versions(self._handle.replica, key))
        return versions

    async def refresh(self, *, accept_rollback: bool = False) -> int:
        """Apply the records of other writers, as `session.refresh` does."""
        return await self._handle.refresh(accept_rollback=accept_rollback)

    async def close(self) -> None:
        """Finish everything in flight and close the handle, which may be that of a session."""
        await self._handle.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
