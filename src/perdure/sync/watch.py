# Generated from aio/watch.py by scripts/generate_sync.py: do not edit.
"""Wait for the records of any writer, and yield them as they arrive. `session.watch` uses it."""

from collections.abc import Iterator

from perdure.core import history
from perdure.errors import CompactedError, UsageError
from perdure.journal.records import Record
from perdure.sync.handle import Handle


def watch_records(handle: Handle, at: int, timeout: float | None) -> Iterator[Record]:
    """Yield the records after a position, until none arrives within the timeout or it is closed.

    A deletion record is the last one. Closing the session or the store ends it without an error.
    """
    handle.require_open()
    try:
        while handle.wait(at, timeout):
            past = handle.catch_up(at)
            if past.compacted and at + 1 < past.begin:
                raise CompactedError(handle.replica.name, at + 1, past.begin)
            chosen = history.RecordFilter(at)
            records = history.RecordReader(past, handle.replica.settings, chosen)
            while (page := handle.driver.run(records.page())) is not None:
                yield from page
            at = past.tip.position
            if handle.replica.deleted:
                return
    except UsageError:
        if not handle.closed:
            raise
