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
from perdure.backends.redis.pool_async import AsyncRedisPool
from perdure.errors import VersionError

BATCH_BYTES = 2**21  # bytes of one script's entries; a server does nothing else meanwhile

REWRITE_MAX = 1000  # entries; so many that remain after a drop are stored anew, without the dropped


class AsyncRedisOperations:
    """What a store does with single streams."""

    def __init__(self, pool: AsyncRedisPool, address: RedisAddress) -> None:
        self._pool = pool
        self._address = address
        self._is_prepared = False

    async def append(self, appends: Sequence[Append]) -> list[Outcome]:
        """Append to streams that do not affect each other."""
        await self._prepare()
        outcomes: dict[str, Outcome] = {}
        waiting = list(appends)
        while waiting:
            chunks = self._chunks(waiting)
            calls = [self._append_call(bucket, chunk) for bucket, chunk in chunks]
            stream = appends[0].stream if len(appends) == 1 else ""
            replies = await self._pool.run(calls, stream=stream)
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
            waiting = await self._look(unclear, outcomes) if unclear else []
        return [outcomes[append.stream] for append in appends]

    async def append_together(self, appends: Sequence[Append]) -> Outcome:
        """Append to streams of one bucket, all or none."""
        await self._prepare()
        waiting = list(appends)
        while waiting:
            call = self._append_call(0, waiting, together=True)
            if all(await self._pool.call(call)):
                break
            outcomes: dict[str, Outcome] = {}
            waiting = await self._look(waiting, outcomes)
            for append in appends:
                if outcomes.get(append.stream, STORED) is not STORED:
                    return outcomes[append.stream]
        return STORED

    async def load_page(self, page: ReadPage) -> None:
        """Read a page of entries."""
        layout = self._pool.layout
        page.take(await self._pool.call(page.call(layout), stream=page.stream))

    async def head(self, stream: str, timeout: float | None = None) -> Head | None:  # noqa: ASYNC109 - of the call
        """Return the head of a stream."""
        layout = self._pool.layout
        bucket = layout.bucket(stream)
        command = ServerCall(bucket, None, ("HGET", layout.heads[bucket], stream))
        packed = await self._pool.call(command, timeout, stream=stream)
        return None if packed is None else decode_head(stream.encode(), packed)

    async def drop(self, stream: str, before: int) -> None:
        """Remove entries that end before a position."""
        await self._prepare()
        layout = self._pool.layout
        call = layout.stream_call(stream, scripts.DROP, before, before - 1, REWRITE_MAX)
        await self._pool.call(call, stream=stream)

    async def remove(self, stream: str, digest: str) -> bool:
        """Remove a stream if its head has a digest."""
        await self._prepare()
        layout = self._pool.layout
        call = layout.stream_call(stream, scripts.REMOVE, digest)
        return bool(await self._pool.call(call, stream=stream))

    async def register_watch(self, stream: str, seconds: float, timeout: float) -> None:  # noqa: ASYNC109 - of the call
        """Register a waiter, so that writers notify it."""
        layout = self._pool.layout
        bucket = layout.bucket(stream)
        call = ServerCall(bucket, scripts.REGISTER, (stream, int(seconds * 1000)))
        await self._pool.call(call, timeout)

    async def _prepare(self) -> None:
        """Create the store before the first write, and find out whether this user may write."""
        if self._is_prepared:
            return
        layout = self._pool.layout
        call = ServerCall(0, scripts.PREPARE, (LAYOUT, layout.buckets))
        stored_layout, buckets = map(int, await self._pool.call(call))
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

    async def _look(self, appends: Sequence[Append], outcomes: dict[str, Outcome]) -> list[Append]:
        """Decide about appends that did not fit; return what is still to be written.

        What was stored before is confirmed by replicas again: only then it is acknowledged.
        """
        layout = self._pool.layout
        calls = []
        for append in appends:
            before, last = max(append.entries[0].position - 1, 1), append.entries[-1].last
            calls.append(layout.stream_call(append.stream, scripts.LOOK, before, last))
        replies = await self._pool.run(calls)
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
            await self._pool.run(barriers)
        return missing


def _between(entries: Sequence[Entry], first: int, last: int) -> list[Entry]:
    return [entry for entry in entries if entry.last >= first and entry.position <= last]
