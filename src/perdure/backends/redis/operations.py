# Generated from redis/operations_async.py by scripts/generate_sync.py: do not edit.
"""Operations of a Redis store on single streams: append, read, drop, remove."""

from collections.abc import Iterable, Sequence
from functools import partial

from redis.exceptions import ResponseError

from perdure.backends.append_rules import decide
from perdure.backends.protocol import STORED, Append, Entry, Head, Outcome
from perdure.backends.redis import scripts
from perdure.backends.redis.address import RedisAddress
from perdure.backends.redis.errors import translate_error
from perdure.backends.redis.layout import (
    LAYOUT,
    ReadPage,
    ServerCall,
    StoreLayout,
    append_arguments,
    decode_entries,
    decode_head,
    size_of,
)
from perdure.backends.redis.pool import RedisPool
from perdure.errors import VersionError

BATCH_BYTES = 2**21  # bytes of one script's entries; a server does nothing else meanwhile

REWRITE_MAX = 1000  # entries; so many that remain after a drop are stored anew, without the dropped


class RedisOperations:
    """What a store does with single streams."""

    def __init__(self, pool: RedisPool, address: RedisAddress) -> None:
        self._pool = pool
        self._address = address
        self._is_prepared = False

    def append(self, appends: Sequence[Append]) -> list[Outcome]:
        """Append to streams that do not affect each other."""
        self._prepare()
        outcomes: dict[str, Outcome] = {}
        waiting = list(appends)
        while waiting:
            chunks = self._chunks(waiting)
            calls = [self._append_call(bucket, chunk) for bucket, chunk in chunks]
            stream = appends[0].stream if len(appends) == 1 else ""
            replies = self._pool.run(calls, stream=stream)
            unclear = []
            for (_, chunk), results in zip(chunks, replies, strict=True):
                for append, result in zip(chunk, results, strict=True):
                    if result == 1:
                        outcomes[append.stream] = STORED
                    elif result == 0:
                        unclear.append(append)
                    else:
                        error = ResponseError(result.decode())
                        raise translate_error(error, self._address, append.stream)
            # Not as expected: perhaps stored before a lost reply, perhaps by another writer.
            waiting = self._look(unclear, outcomes) if unclear else []
        return [outcomes[append.stream] for append in appends]

    def append_together(self, appends: Sequence[Append]) -> Outcome:
        """Append to streams of one bucket, all or none."""
        self._prepare()
        waiting = list(appends)
        while waiting:
            call = self._append_call(0, waiting, together=True)
            if all(self._pool.call(call)):
                break
            outcomes: dict[str, Outcome] = {}
            waiting = self._look(waiting, outcomes)
            for append in appends:
                if outcomes.get(append.stream, STORED) is not STORED:
                    return outcomes[append.stream]
        return STORED

    def load_page(self, page: ReadPage) -> None:
        """Read a page of entries."""
        layout = self._pool.layout
        page.take(self._pool.call(page.call(layout), stream=page.stream))

    def head(self, stream: str, timeout: float | None = None) -> Head | None:
        """Return the head of a stream."""
        layout = self._pool.layout
        bucket = layout.bucket(stream)
        command = ServerCall(bucket, None, ("HGET", layout.heads[bucket], stream))
        packed = self._pool.call(command, timeout, stream=stream)
        return None if packed is None else decode_head(stream.encode(), packed)

    def drop(self, stream: str, before: int) -> None:
        """Remove entries that end before a position."""
        self._prepare()
        layout = self._pool.layout
        call = layout.stream_call(stream, scripts.DROP, before, before - 1, REWRITE_MAX)
        self._pool.call(call, stream=stream)

    def remove(self, stream: str, digest: str) -> bool:
        """Remove a stream if its head has a digest."""
        self._prepare()
        layout = self._pool.layout
        call = layout.stream_call(stream, scripts.REMOVE, digest)
        return bool(self._pool.call(call, stream=stream))

    def register_watch(self, stream: str, seconds: float, timeout: float) -> None:
        """Register a waiter, so that writers notify it."""
        layout = self._pool.layout
        bucket = layout.bucket(stream)
        call = ServerCall(bucket, scripts.REGISTER, (stream, int(seconds * 1000)))
        self._pool.call(call, timeout)

    def _prepare(self) -> None:
        """Create the store before the first write, and find out whether this user may write."""
        if self._is_prepared:
            return
        layout = self._pool.layout
        call = ServerCall(0, scripts.PREPARE, (LAYOUT, layout.buckets))
        stored_layout, buckets = map(int, self._pool.call(call))
        if stored_layout > LAYOUT:
            raise VersionError(self._address.name, str(stored_layout), str(LAYOUT))
        if buckets != layout.buckets:  # Another process created it since this one opened it.
            self._pool.layout = StoreLayout(self._address, buckets)
        self._is_prepared = True

    def _chunks(self, appends: Iterable[Append]) -> list[tuple[int, list[Append]]]:
        """Divide appends by bucket, and by size."""
        chunks: list[tuple[int, list[Append]]] = []
        open_chunks: dict[int, tuple[list[Append], int]] = {}
        for append in appends:
            bucket = self._pool.layout.bucket(append.stream)
            size = size_of(append)
            chunk, total = open_chunks.get(bucket, ([], 0))
            if not chunk or total + size > BATCH_BYTES:
                chunk, total = [], 0
                chunks.append((bucket, chunk))
            chunk.append(append)
            open_chunks[bucket] = (chunk, total + size)
        return chunks

    def _append_call(
        self, bucket: int, appends: Sequence[Append], *, together: bool = False
    ) -> ServerCall:
        arguments: list[object] = [int(together), self._pool.layout.channel]
        for append in appends:
            arguments += append_arguments(append)
        streams = tuple(append.stream for append in appends)
        return ServerCall(bucket, scripts.APPEND, tuple(arguments), streams)

    def _look(self, appends: Sequence[Append], outcomes: dict[str, Outcome]) -> list[Append]:
        """Decide about appends that did not fit; return what is still to be written.

        What was stored before is confirmed by replicas again: only then it is acknowledged.
        """
        layout = self._pool.layout
        calls = []
        for append in appends:
            before, last = max(append.entries[0].position - 1, 1), append.entries[-1].last
            calls.append(layout.stream_call(append.stream, scripts.LOOK, before, last))
        replies = self._pool.run(calls)
        missing, stored_buckets = [], set()
        for append, (packed, *rows) in zip(appends, replies, strict=True):
            name = append.stream.encode()
            head = None if packed is None else decode_head(name, packed)
            stored = decode_entries(append.stream, rows)
            outcome, rest = decide(append, head, partial(_between, stored))
            if outcome is STORED and rest:
                previous = head.digest if head is not None else ""
                missing.append(append._replace(entries=rest, previous=previous))
                continue
            outcomes[append.stream] = outcome
            if outcome is STORED:
                stored_buckets.add(layout.bucket(append.stream))
        if stored_buckets and self._pool.confirmation is not None:
            barriers = [ServerCall(one, scripts.BARRIER, ()) for one in sorted(stored_buckets)]
            self._pool.run(barriers)
        return missing


def _between(entries: Sequence[Entry], first: int, last: int) -> list[Entry]:
    return [entry for entry in entries if entry.last >= first and entry.position <= last]
