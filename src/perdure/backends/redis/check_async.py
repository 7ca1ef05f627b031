"""Compare a Redis store with itself: heads, entries and indexes, bucket by bucket.

A page is looked at by one script, so that writers do not look like damage.
"""

import re
from collections.abc import AsyncIterator, Sequence

from perdure.backends.redis import scripts
from perdure.backends.redis.layout import ServerCall, decode_entries, decode_head
from perdure.backends.redis.pool_async import AsyncRedisPool
from perdure.errors import DamagedError

PAGE_ROWS = 256  # heads or keys that one script looks at

REASONS = {
    "head": "its head cannot be read",
    "label": "it is not listed under a label of its head",
    "time": "it is not listed by its last append",
    "name": "it is in no list",
    "tip": "its head does not match its last entry",
}


async def find_problems_async(pool: AsyncRedisPool) -> AsyncIterator[DamagedError]:
    """Yield what is wrong with a store as a whole."""
    for bucket in range(pool.layout.buckets):
        async for problem in _head_problems_async(pool, bucket):
            yield problem
        async for problem in _index_problems_async(pool, bucket):
            yield problem
    async for problem in _entry_problems_async(pool):
        yield problem


async def _head_problems_async(pool: AsyncRedisPool, bucket: int) -> AsyncIterator[DamagedError]:
    cursor = b"0"
    while True:
        call = ServerCall(bucket, scripts.CHECK_HEADS, (cursor, PAGE_ROWS))
        cursor, problems = await pool.call(call)
        for name, word in problems:
            text = name.decode(errors="replace")
            if word != b"tip" or await _differs_async(pool, text):
                yield DamagedError(text, 0, REASONS[word.decode()])
        if cursor == b"0":
            return


async def _differs_async(pool: AsyncRedisPool, stream: str) -> bool:
    """Return whether a head does not match the last entry.

    The script that looks at many heads does not name the keys of their entries. If their slot is
    being moved, they may be on another node.
    """
    packed, *rows = await pool.call(pool.layout.stream_call(stream, scripts.LOOK, 1, "+"))
    if packed is None:
        return False
    position = decode_head(stream.encode(), packed).position
    return not rows or decode_entries(stream, rows[-1:])[0].last != position


async def _index_problems_async(pool: AsyncRedisPool, bucket: int) -> AsyncIterator[DamagedError]:
    """Yield streams that are listed and have no head."""
    for index, start, end in (("n", "-", "+"), ("x", "-", "+"), ("r", "+inf", "-inf")):
        first: str | bytes = start
        while True:
            call = ServerCall(bucket, scripts.LIST, (index, first, end, PAGE_ROWS, 0, 0, 0))
            rows = await pool.call(call)
            for _, _, name, packed, _ in rows:
                if packed is None:
                    text = name.decode(errors="replace")
                    yield DamagedError(text, 0, "it is listed and has no head")
            if len(rows) < PAGE_ROWS:
                break
            first = b"(" + (rows[-1][1] if index == "r" else rows[-1][0])


async def _entry_problems_async(pool: AsyncRedisPool) -> AsyncIterator[DamagedError]:
    """Yield streams that have entries and no head. Only the names of all keys show them."""
    prefix = pool.layout.entries_key(0, b"").partition(b"{")[0]
    pattern = re.sub(rb"([*?\[\]\\])", rb"\\\1", prefix) + b"{*}:e:*"
    bases = {pool.layout.entries_key(number, b""): number for number in range(pool.layout.buckets)}
    for node in pool.primaries:
        cursor = b"0"
        while True:
            command = ("SCAN", cursor, "MATCH", pattern, "COUNT", 1000, "TYPE", "stream")
            cursor, keys = await pool.ask(node, command)
            for bucket, names in _by_bucket(keys, bases):
                for name in await pool.call(ServerCall(bucket, scripts.CHECK_ENTRIES, (*names,))):
                    text = name.decode(errors="replace")
                    yield DamagedError(text, 0, "it has entries and is in no list")
            if cursor == b"0":
                break


def _by_bucket(keys: Sequence[bytes], bases: dict[bytes, int]) -> list[tuple[int, list[bytes]]]:
    groups: dict[int, list[bytes]] = {}
    for key in keys:
        end = key.index(b":e:") + 3
        if (bucket := bases.get(key[:end])) is not None:
            groups.setdefault(bucket, []).append(key[end:])
    return list(groups.items())
