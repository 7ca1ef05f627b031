"""P31 on Postgres: a server that could lose what it acknowledges is refused, or named as weak.

`synchronous_commit = off` is no weakness here, because each write raises it: that is tried with
kills of the server, beside plain inserts that do lose what they were told.
"""

import random
import time
from collections.abc import Iterator
from signal import SIGKILL

import psycopg

import perdure
from perdure.backends.postgres.backend import PostgresBackend
from perdure.backends.postgres.statements import FORCE_SYNC_COMMIT
from perdure.errors import UnsupportedError
from perdure.testing.contract.samples import append_of, positions
from tests.backends.postgres.server_keeper import Server, running
from tests.promises.promise import Promise, Trial, in_time

WEAK = {
    "fsync=off": "fsync-off",
    "full_page_writes=off": "full-page-writes-off",
    "data_sync_retry=on": "data-sync-retry-on",
}
LOGGED = ("entry", "head", "label", "migration")

# The log is written to disk as seldom as can be, so that what is not synced is lost for sure.
LAZY = ("synchronous_commit=off", "wal_writer_delay=10s", "wal_writer_flush_after=1GB")


def weak(setting: str) -> Trial:
    """Open a store of a server with one setting that is weak."""
    with running(setting) as server:
        word = WEAK[setting]
        try:
            perdure.open(server.url).close()
        except UnsupportedError as error:
            if f"?accept={word}" not in str(error) or setting.partition("=")[0] not in str(error):
                return Trial(setting, f"the refusal does not say what to do: {error}")
        else:
            return Trial(setting, "it was opened as if nothing were wrong")
        with psycopg.connect(server.url) as connection:
            made = connection.execute("select to_regnamespace('perdure')").fetchone()
        if made != (None,):
            return Trial(setting, "tables were made on a server that was refused")
        with perdure.open(f"{server.url}?accept={word}") as store:
            found = store.guarantees()
        if "synced" in found.detail:
            return Trial(setting, f"it was accepted, and is said to be {found.detail}")
        if found.survives == "power loss" or [one.name for one in found.accepted] != [word]:
            return Trial(setting, f"it was accepted, and still promises {found.survives}")
    return Trial(setting)


def unlogged(table: str, count: int = 5) -> Trial:
    """Open a store with a table that a crash of the server empties; accept it, and crash."""
    what = f"unlogged {table}, then kill -9 of the server"
    with running() as server:
        perdure.open(server.url).close()
        with psycopg.connect(server.url, autocommit=True) as admin:
            admin.execute(f"alter table perdure.{table} set unlogged".encode())
        try:
            perdure.open(server.url).close()
        except UnsupportedError as error:
            remedy = f'alter table "perdure".{table} set logged'
            if remedy not in str(error) or "?accept=unlogged-tables" not in str(error):
                return Trial(what, f"the refusal does not say what to do: {error}")
        else:
            return Trial(what, "it was opened as if nothing were wrong")
        with perdure.open(f"{server.url}?accept=unlogged-tables") as store:
            if (found := store.guarantees()).survives == "power loss":
                return Trial(what, f"it was accepted, and still promises {found.survives}")
        with psycopg.connect(server.url, autocommit=True) as admin:
            admin.execute(f"alter table perdure.{table} set logged".encode())
        backend = PostgresBackend(server.url)
        for position in range(1, count + 1):
            backend.append([append_of("s", position, position)])
        server.stop(SIGKILL)
        server.start()
        kept = positions(backend.read("s"))
        backend.close()
    return Trial(what, "" if kept == [*range(1, count + 1)] else f"{len(kept)} are there")


def lost_rows(server: Server, draw: random.Random) -> int:
    """Insert without perdure, kill the server; return how many acknowledged rows are gone."""
    count = draw.randint(5, 40)
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("create table if not exists plain (number int)")
        connection.execute("checkpoint")
        connection.execute("truncate plain")
        for number in range(count):
            connection.execute("insert into plain values (%s)", (number,))
        server.stop(SIGKILL)
    server.start()
    with psycopg.connect(server.url) as connection:
        row = connection.execute("select count(*) from plain").fetchone()
    assert row is not None
    return count - int(row[0])


def lost_appends(server: Server, draw: random.Random) -> Trial:
    """Append with perdure, kill the server; what was acknowledged must be there."""
    count = draw.randint(5, 40)
    address = f"{server.url}?tenant=t{draw.randrange(10**9)}"
    backend = PostgresBackend(address)
    for position in range(1, count + 1):
        (outcome,) = backend.append([append_of("s", position, position)])
        assert outcome.status == "stored"
    server.stop(SIGKILL)
    server.start()
    found = positions(backend.read("s"))  # With the handle of before: its connections are dead.
    backend.close()
    what = f"{count} appends, then kill -9 of the server"
    return Trial(what, "" if found == [*range(1, count + 1)] else f"{len(found)} are there")


def lost_deletions(server: Server, draw: random.Random) -> Trial:
    """Drop and remove with perdure, kill the server; what is said to be gone must be gone."""
    count = draw.randint(5, 40)
    before = draw.randint(2, count)
    backend = PostgresBackend(f"{server.url}?tenant=t{draw.randrange(10**9)}")
    backend.append([append_of("s", 1, count), append_of("gone", 1, 2)])
    ends = {head.stream: head.digest for head in backend.streams()}
    # Each is the last thing that the server was told, or the next one would make it durable too.
    backend.drop("s", before=before)
    server.stop(SIGKILL)
    server.start()
    left = positions(backend.read("s"))
    assert backend.remove("gone", digest=ends["gone"])
    server.stop(SIGKILL)
    server.start()
    names = [head.stream for head in backend.streams()]
    backend.close()
    what = f"{count} entries, dropped before {before}, a stream removed, kill -9 after each"
    if left != [*range(before, count + 1)]:
        return Trial(what, f"{left[:1]} to {left[-1:]} are there")
    return Trial(what, "" if names == ["s"] else f"the streams are {names}")


def lost_answers(server: Server, draw: random.Random) -> Trial:
    """Store without waiting for the disk, send it again with perdure, kill the server.

    So it is when an answer was lost: what is answered *stored* must be there, whoever stored it.
    """
    count = draw.randint(1, 20)
    address = f"{server.url}?tenant=t{draw.randrange(10**9)}"
    hasty, backend = PostgresBackend(address), PostgresBackend(address)
    sql = hasty._queries.sql
    hasty._queries.sql = sql._replace(append=sql.append.replace(FORCE_SYNC_COMMIT, "null"))
    for one in (hasty, backend):
        (outcome,) = one.append([append_of("s", 1, count)])
        assert outcome.status == "stored"
    server.stop(SIGKILL)
    server.start()
    found = positions(backend.read("s"))
    hasty.close()
    backend.close()
    what = f"{count} entries sent again, then kill -9 of the server"
    return Trial(what, "" if found == [*range(1, count + 1)] else f"{len(found)} are there")


LAZILY = (lost_appends, lost_deletions, lost_answers)


def trials(seed: int, deadline: float) -> Iterator[Trial]:
    draw = random.Random(seed)
    for setting in WEAK:
        yield weak(setting)
    for table in LOGGED:
        yield unlogged(table)
    with running(*LAZY) as server:
        while in_time(deadline):
            yield draw.choice(LAZILY)(server, draw)
            time.sleep(0)


SAYS = "weak servers are refused or named; synchronous_commit=off loses nothing"
PROMISE = Promise("P31", SAYS, 100, trials, "postgres")
