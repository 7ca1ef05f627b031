"""Check a whole store, for code in an event loop: the store itself, and each session it lists.

A session's own check cannot show that another session is missing from the list. So the store is
asked to compare itself with its lists (the capability `check`) before they are trusted.
"""

from collections.abc import AsyncIterator, Collection
from typing import TYPE_CHECKING

from perdure.backends.protocol import CHECK, DELETED, AsyncBackend, Head, require_check
from perdure.core.verify import StoreVerifyResult, VerifyResult
from perdure.errors import DamagedError, NotFoundError, PerdureError, VersionError
from perdure.journal.key_store import is_own

if TYPE_CHECKING:
    from perdure.aio.store import AsyncStore


async def find_problems(backend: AsyncBackend, *, deep: bool) -> list[DamagedError] | None:
    """Return what is wrong with a store as a whole; None if it cannot compare itself."""
    if CHECK not in backend.capabilities:
        return None
    return [problem async for problem in require_check(backend).check(deep=deep)]


async def find_head(backend: AsyncBackend, session: str) -> Head | None:
    """Return the head of a session, deleted or not, or None."""
    if session:
        async for head in backend.streams(prefix=session, limit=1):
            return head if head.stream == session else None
    return None


async def list_heads(
    backend: AsyncBackend,
    *,
    prefix: str = "",
    after: str = "",
    labels: Collection[str] = (),
    without: Collection[str] = (),
) -> AsyncIterator[Head | DamagedError]:
    """Yield the heads of all sessions, deleted ones too; a damaged head yields its error instead.

    Listing continues after a damaged head. If the store cannot read its list at all, it ends there.
    """
    while True:
        try:
            async for head in backend.streams(
                prefix=prefix, after=after, labels=labels, without=without
            ):
                after = head.stream
                if not is_own(after):
                    yield head
        except DamagedError as error:
            yield error
            if error.stream == backend.name or error.stream <= after:
                return
            after = error.stream
        else:
            return


async def verify_head(
    store: "AsyncStore", backend: AsyncBackend, head: Head
) -> VerifyResult | DamagedError | VersionError | None:
    """Verify a listed session; return its result or its error, None if it was deleted meanwhile."""
    name = head.stream
    try:
        async with await store.session(name) as session:
            return await session.verify()
    except NotFoundError as error:
        now = await find_head(backend, name)
        if now is None or DELETED in now.labels:
            return None
        if now != head:  # Deleted and created again.
            return await verify_head(store, backend, now)
        return DamagedError(name, 0, f"the parent of this branch is gone: {error}")
    except (DamagedError, VersionError) as error:
        return error


async def verify_store(store: "AsyncStore", backend: AsyncBackend) -> StoreVerifyResult:
    """Check a store and all of its sessions."""
    found = await find_problems(backend, deep=True)
    problems: list[PerdureError] = [*(found or ())]
    sessions = records = 0
    async for head in list_heads(backend):
        sessions += 1
        result = head if isinstance(head, DamagedError) else await verify_head(store, backend, head)
        if isinstance(result, VerifyResult):
            records += result.records
        elif result is not None:
            problems.append(result)
    return StoreVerifyResult(backend.name, sessions, records, tuple(problems), found is not None)
