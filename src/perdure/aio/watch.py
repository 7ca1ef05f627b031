"""Wait for the records of any writer, and yield them as they arrive. `session.watch` uses it."""

from collections.abc import AsyncIterator

from perdure.aio.handle import AsyncHandle
from perdure.core import history
from perdure.errors import CompactedError, UsageError
from perdure.journal.records import Record


async def watch_records(
    handle: AsyncHandle,
    at: int,
    timeout: float | None,  # noqa: ASYNC109 - the same parameters as for threads
) -> AsyncIterator[Record]:
    """Yield the records after a position, until none arrives within the timeout or it is closed.

    A deletion record is the last one. Closing the session or the store ends it without an error.
    """
    handle.require_open()
    try:
        while await handle.wait(at, timeout):
            past = await handle.catch_up(at)
            if past.compacted and at + 1 < past.begin:
                raise CompactedError(handle.replica.name, at + 1, past.begin)
            chosen = history.RecordFilter(at)
            records = history.RecordReader(past, handle.replica.settings, chosen)
            while (page := await handle.driver.run(records.page())) is not None:
                for record in page:
                    yield record
            at = past.tip.position
            if handle.replica.deleted:
                return
    except UsageError:
        if not handle.closed:
            raise
