"""P18: what an attacker without keys does to entries, heads, labels and whole streams is detected.

The attacker can write to the store and recomputes nothing. Streams and entries are exchanged,
altered, moved and lost below the API that a session uses: the store itself holds what is left, and
a backend never looks inside. Every attack is detected when the session is opened, or by the first
read of what was attacked, and the error names its position.
"""

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import perdure
from perdure.backends.files.backend import FilesBackend
from perdure.backends.memory import MemoryBackend
from perdure.backends.protocol import Append, Backend, Entry, Head
from perdure.backends.sqlite.backend import SqliteBackend
from perdure.errors import DamagedError, PerdureError
from tests.promises import places
from tests.promises.promise import Promise, Trial, in_time

LENGTH_MAX = 2000  # messages of a session
SESSIONS = 24  # sessions of which pairs are drawn; 552 ordered pairs a pool
POOL_TRIALS = 100  # trials of each sort until other sessions are made
TARGET = 2000  # trials of each kind of store: half of them exchange two streams

Opener = Callable[[], contextlib.AbstractContextManager[Backend]]


class Stream(NamedTuple):
    """A stream as a store holds it."""

    head: Head
    entries: list[Entry]


def build(lengths: Sequence[int], draw: random.Random) -> dict[str, Stream]:
    """Return sessions of some lengths, written by perdure."""
    backend = MemoryBackend()
    with perdure.open(backend) as store:
        for number, length in enumerate(lengths):
            session = store.session(f"session {number}")
            left = length
            while left:
                size = min(left, draw.choice((1, 1, 2, 3, 5, 40)))
                texts = (f"{number}, {left - at} left" for at in range(size))
                session.append(*({"role": "user", "content": text} for text in texts))
                left -= size
        return {
            head.stream: Stream(head, [*backend.read(head.stream)]) for head in backend.streams()
        }


def lay_out(backend: Backend, streams: dict[str, Stream]) -> None:
    """Put streams into a store as they are, each under a name that may be another's."""
    for name, (head, entries) in streams.items():
        append = Append(name, entries, head.labels, snapshot=head.snapshot)
        (outcome,) = backend.append([append])
        if outcome.status != "stored":
            raise AssertionError(f"{name}: {outcome}")


def read_all(backend: Backend, name: str) -> list[object]:
    """Open a session and read everything of it."""
    session = perdure.open(backend).resume(name)
    return [session.messages(), list(session.records())]


def exchange(open_store: Opener, pool: dict[str, Stream], draw: random.Random) -> Trial:
    """Exchange two whole streams. Opening either must fail: nothing of the other is shown."""
    one, two = draw.sample(sorted(pool), 2)
    what = f"exchange streams of {pool[one].head.position} and {pool[two].head.position} records"
    with open_store() as backend:
        lay_out(backend, {one: pool[two], two: pool[one]})
        for name in (one, two):
            try:
                perdure.open(backend).session(name)
            except DamagedError as error:
                if "belongs to another session" not in str(error):
                    return Trial(what, f"refused for another reason: {error}")
            else:
                return Trial(what, f"{name!r} was opened")
    return Trial(what)


class Attack(NamedTuple):
    """A stream after an attack, and the range of positions that the error must name."""

    what: str
    entries: list[Entry]
    first: int
    last: int


def attack(pool: dict[str, Stream], name: str, draw: random.Random) -> Attack:
    """Return a random attack on entries of a stream: the head, and the others, stay as they are.

    The last header stays too: the head has its digest, and an attacker who recomputes that is
    another one.
    """
    entries = list(pool[name].entries)
    kind = draw.choice(("edit a body", "empty the bodies", "edit a header", "exchange", "foreign"))
    at = draw.randrange(len(entries) - (kind not in ("edit a body", "empty the bodies")))
    entry, last = entries[at], entries[at].last
    if kind == "edit a body":
        entries[at] = entry._replace(body=_flipped(entry.body or b"", draw))
    elif kind == "empty the bodies":
        entries[at] = entry._replace(body=b" " * len(entry.body or b""))
    elif kind == "edit a header":
        entries[at] = entry._replace(header=_flipped(entry.header, draw))
    elif kind == "exchange":
        other = draw.choice(entries[:-1])
        last = max(last, other.last)
        entries[at], entries[entries.index(other)] = _as(entry, other), _as(other, entry)
        if other is entry:
            return attack(pool, name, draw)
        entry = min(entry, other)
    else:
        others = [
            one for key, stream in sorted(pool.items()) if key != name for one in stream.entries
        ]
        entries[at] = _as(entry, draw.choice(others))
    what = f"{kind} at {entry.position} of {entries[-1].last}"
    return Attack(what, entries, entry.position, last)


def _as(entry: Entry, other: Entry) -> Entry:
    """Return an entry that has the header and body of another."""
    return entry._replace(header=other.header, body=other.body)


def _flipped(data: bytes, draw: random.Random) -> bytes:
    changed = bytearray(data)
    changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def tamper(open_store: Opener, pool: dict[str, Stream], draw: random.Random) -> Trial:
    """Attack one stream. Reading all of it must fail, at the right position."""
    name = draw.choice([key for key in sorted(pool) if len(pool[key].entries) > 1])
    done = attack(pool, name, draw)
    stream = pool[name]._replace(entries=done.entries)
    # The head names the last header as it was written: a store computes it, an attacker does not.
    if (
        done.last == stream.head.position
        and done.entries[-1].header != pool[name].entries[-1].header
    ):
        return Trial(f"{done.what}: the head would be another's")
    with open_store() as backend:
        lay_out(backend, {name: stream})
        try:
            read_all(backend, name)
        except DamagedError as error:
            if not done.first <= error.position <= done.last:
                return Trial(done.what, f"position {error.position} is named: {error}")
        except PerdureError as error:
            return Trial(done.what, f"it is not called damage: {error!r}")
        else:
            return Trial(done.what, "nothing was raised")
    return Trial(done.what)


def trials(open_store: Opener, seed: int, deadline: float) -> Iterator[Trial]:
    """Yield an exchange and an attack in turn, on new pools from time to time."""
    draw = random.Random(seed)
    while in_time(deadline):
        pool = build([1, 2, LENGTH_MAX, *(_length(draw) for _ in range(SESSIONS - 3))], draw)
        for _ in range(POOL_TRIALS):
            if in_time(deadline):
                yield exchange(open_store, pool, draw)
                yield tamper(open_store, pool, draw)


def _length(draw: random.Random) -> int:
    return min(LENGTH_MAX, int(draw.lognormvariate(4.5, 1.6)) + 1)


@contextlib.contextmanager
def in_memory() -> Iterator[Backend]:
    yield MemoryBackend()


def on_disk(kind: str, directory: Path) -> Opener:
    """Return what lends a new store in a directory, and takes it away."""
    numbers = itertools.count()

    @contextlib.contextmanager
    def opener() -> Iterator[Backend]:
        path = directory / f"{kind}-{next(numbers)}"
        backend: Backend = SqliteBackend(path) if kind == "sqlite" else FilesBackend(path)
        try:
            yield backend
        finally:
            backend.close()
            places.remove(path)

    return opener


def on_postgres(url: str) -> Opener:
    """Return what lends an empty store of a server: a tenant of its own."""
    from perdure.backends.postgres.backend import PostgresBackend  # The driver is an extra.
    from tests.backends.postgres import server

    schema = server.new_schema()

    @contextlib.contextmanager
    def opener() -> Iterator[Backend]:
        backend = PostgresBackend(server.address(url, schema=schema, tenant=server.new_schema()))
        try:
            yield backend
        finally:
            backend.close()

    return opener


def on_redis(url: str) -> Opener:
    """Return what lends an empty store of a server: a tenant of its own."""
    from perdure.backends.redis.backend import RedisBackend  # The driver is an extra.
    from tests.backends.redis import server

    @contextlib.contextmanager
    def opener() -> Iterator[Backend]:
        backend = RedisBackend(server.address(url))
        try:
            yield backend
        finally:
            backend.close()

    return opener


def _trials(kind: str, seed: int, deadline: float) -> Iterator[Trial]:
    if kind == "memory":
        yield from trials(in_memory, seed, deadline)
    elif kind == "postgres":
        from tests.backends.postgres.server_keeper import running

        with running() as server:
            yield from trials(on_postgres(server.url), seed, deadline)
    elif kind == "redis":
        from tests.backends.redis.server import Server

        with places.fast_directory() as directory:
            valkey = Server(directory)
            try:
                yield from trials(on_redis(valkey.url), seed, deadline)
            finally:
                valkey.stop()
    else:
        with places.fast_directory() as directory:
            yield from trials(on_disk(kind, directory), seed, deadline)


def _promise(kind: str) -> Promise:
    says = "exchanged streams and altered entries are refused, at the right position"
    return Promise("P18", says, TARGET, lambda seed, end: _trials(kind, seed, end), kind)


KINDS = ("memory", "sqlite", "files", "postgres", "redis")
PROMISES = [_promise(kind) for kind in KINDS]
