"""Records as they come, for blocking code. The twin is in `following_async`."""

from collections.abc import Iterator

from perdure import views
from perdure.errors import UsageError
from perdure.handle import Handle
from perdure.records import Record


def follow(handle: Handle, at: int, timeout: float | None) -> Iterator[Record]:
    """Yield the records after a position until nothing comes for so long, or the end."""
    handle.require_open()
    try:
        while handle.wait(at, timeout):
            past = handle.catch_up(at)
            records = views.Records(past, handle.replica.settings, after=at, on_damage=None)
            while (page := handle.driver.run(records.page())) is not None:
                yield from page
            at = past.tip.position
            if handle.replica.deleted:
                return
    except UsageError:
        if not handle.closed:
            raise
