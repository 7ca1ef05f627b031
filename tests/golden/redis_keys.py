"""A store in Redis as lines of JSON: one for each key, with its type. Bytes are in base64."""

import base64
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

from perdure.backends.protocol import Backend
from perdure.backends.redis.backend import RedisBackend
from tests.backends.redis import server

TENANT = "golden-tenant"
FIRST_TIME = 1_780_000_000_000_000  # microseconds since the epoch; other scores are smaller


def dump(fill: Callable[[Backend], None]) -> bytes:
    """Start a server, fill a store in it, and return its keys."""
    with tempfile.TemporaryDirectory() as name:
        running = server.Server(Path(name))
        try:
            backend = RedisBackend(server.address(running.url, tenant=TENANT))
            fill(backend)
            backend.close()
            with running.client() as client:
                lines = [_line(client, key) for key in sorted(client.scan_iter(count=1000))]
        finally:
            running.stop()
    _replace_times([row for line in lines if line["type"] == "zset" for row in line["rows"]])
    return ("\n".join(map(json.dumps, lines)) + "\n").encode()


def _replace_times(rows: list[list[Any]]) -> None:
    """Replace times of the server, whose order is all that counts, by such that repeat."""
    times = sorted({score for _, score in rows if score > FIRST_TIME})
    for row in rows:
        if row[1] > FIRST_TIME:
            row[1] = FIRST_TIME + times.index(row[1]) + 1


def _line(client: Any, key: bytes) -> dict[str, Any]:
    kind, values = client.type(key).decode(), dict[str, Any]()
    if kind == "stream":
        rows = client.xrange(key)
        values["rows"] = [[id.decode(), _pack_all(fields)] for id, fields in rows]
    elif kind == "zset":
        rows = client.zrange(key, 0, -1, withscores=True)
        values["rows"] = [[_pack(member), score] for member, score in rows]
    elif kind == "hash":
        values["rows"] = sorted(_pack_all(client.hgetall(key)))
    else:
        raise AssertionError(f"a key of another type: {kind}")
    return {"key": _pack(key), "type": kind, **values}


def load(url: str, tenant: str, data: bytes) -> None:
    """Put the keys into a server, for a tenant of another name."""
    client: Any
    with redis.Redis.from_url(url) as client:
        for line in map(json.loads, data.decode().splitlines()):
            key, rows = _unpack(line["key"]).replace(TENANT.encode(), tenant.encode()), line["rows"]
            if line["type"] == "stream":
                for id, fields in rows:
                    client.xadd(key, _unpack_all(fields), id)
            elif line["type"] == "zset":
                client.zadd(key, {_unpack(member): score for member, score in rows})
            else:
                client.hset(key, mapping=_unpack_all(rows))


def _pack(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _unpack(text: str) -> bytes:
    return base64.b64decode(text)


def _pack_all(fields: dict[bytes, bytes]) -> list[list[str]]:
    return [[_pack(name), _pack(value)] for name, value in fields.items()]


def _unpack_all(fields: list[list[str]]) -> dict[Any, Any]:
    return {_unpack(name): _unpack(value) for name, value in fields}
