"""Yield the records of a session as they are appended, for `session.watch`."""

from collections.abc import AsyncIterator

from perdure import views
from perdure.errors import UsageError
from perdure.handle_async import AsyncHandle
from perdure.records import Record


async def follow(
    handle: AsyncHandle,
    at: int,
    timeout: float | None,  # noqa: ASYNC109 - the same parameters as in the sync version
) -> AsyncIterator[Record]:
    """Yield the records after a position, until none arrives within the timeout or it is closed.

    A deletion record is the last one. Closing the session or the store ends it without an error.
    """
    handle.require_open()
    try:
        while await handle.wait(at, timeout):
            past = await handle.catch_up(at)
            records = views.Records(past, handle.replica.settings, after=at, on_damage=None)
            while (page := await handle.driver.run(records.page())) is not None:
                for record in page:
                    yield record
            at = past.tip.position
            if handle.replica.deleted:
                return
    except UsageError:
        if not handle.closed:
            raise
