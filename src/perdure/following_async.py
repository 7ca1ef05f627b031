"""Records as they come, for code in an event loop. The twin is in `following`."""

from collections.abc import AsyncIterator

from perdure import views
from perdure.errors import UsageError
from perdure.handle_async import AsyncHandle
from perdure.records import Record


async def follow(
    handle: AsyncHandle,
    at: int,
    timeout: float | None,  # noqa: ASYNC109 - as its twin
) -> AsyncIterator[Record]:
    """Yield the records after a position until nothing comes for so long, or the end."""
    handle.require_open()
    try:
        while await handle.wait(at, timeout):
            past = await handle.take_in(at)
            records = views.Records(past, handle.replica.settings, after=at, on_damage=None)
            while (page := await handle.driver.run(records.page())) is not None:
                for record in page:
                    yield record
            at = past.tip.position
            if handle.replica.gone:
                return
    except UsageError:
        if not handle.closed:
            raise
