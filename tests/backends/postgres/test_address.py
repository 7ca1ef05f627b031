"""What a Postgres server can be like when a store is opened, and what is said of it."""

import logging
import os
import random
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from click.testing import CliRunner
from psycopg import sql

import perdure
from perdure.backends.guarantees import Acceptance, Guarantees
from perdure.backends.postgres import migrations
from perdure.backends.postgres.address import parse_address
from perdure.backends.postgres.backend import PostgresBackend
from perdure.backends.postgres.backend_async import AsyncPostgresBackend
from perdure.backends.postgres.errors import translate_error
from perdure.backends.postgres.guarantees import ACCEPTABLE, store_guarantees
from perdure.cli.__main__ import main
from perdure.errors import (
    PerdureError,
    UnavailableError,
    UnsupportedError,
    UsageError,
    VersionError,
)
from perdure.testing.contract.samples import append_all, append_of, entries
from tests.backends.postgres import server as postgres
from tests.backends.postgres.server_keeper import free_port, running

SECRET = "s3cr3t-p4ssw0rd"  # noqa: S105 - it is looked for where it must not be


@pytest.fixture
def database(postgres_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def role(database: psycopg.Connection, postgres_url: str) -> Iterator[str]:
    """The address of a user who may connect and nothing else."""
    name = f"guest_{postgres.new_schema()}"
    database.execute(
        sql.SQL("create role {} login password {}").format(sql.Identifier(name), SECRET)
    )
    _, _, place = postgres_url.rpartition("@")
    yield f"postgresql://{name}:{SECRET}@{place}"
    database.execute(f"drop owned by {name}".encode())
    database.execute(f"drop role {name}".encode())


def chain(error: BaseException) -> str:
    """Everything that a traceback of an error would show."""
    texts = []
    one: BaseException | None = error
    while one is not None:
        texts.append(f"{one!r} {one} {one.args}")
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    return " ".join(texts)


@pytest.mark.parametrize("open_backend", [PostgresBackend, AsyncPostgresBackend])
@pytest.mark.parametrize(
    ("change", "hint"),
    [
        (lambda url: url.replace("://perdure_test", "://nobody"), "check the user"),
        (lambda url: with_password(url, SECRET), "check the user and the password"),
        (lambda url: url.replace("/postgres", "/missing"), "create it, or correct the address"),
        (lambda url: with_port(url, free_port()), "check that the server is running"),
        (lambda url: url.replace("127.0.0.1", "no-such-host.invalid"), "correct it in the address"),
        (lambda url: f"{url}?sslmode=require", "use ?sslmode=prefer in a trusted network"),
    ],
    ids=["no user", "wrong password", "no database", "no server", "no host", "no TLS"],
)
def test_a_server_that_can_not_be_used_is_unavailable_and_says_what_to_do(
    postgres_url: str, open_backend: type, change: object, hint: str
) -> None:
    assert callable(change)
    address = change(postgres_url)
    with pytest.raises(UnavailableError) as caught:
        open_backend(address)
    assert hint in str(caught.value)
    assert SECRET not in chain(caught.value)
    assert password_of(postgres_url) not in chain(caught.value)


def test_a_role_with_too_many_connections_is_not_told_to_check_its_password(
    role: str, database: psycopg.Connection
) -> None:
    database.execute(f"alter role {user_of(role)} connection limit 0".encode())
    with pytest.raises(UnavailableError, match=r"too many connections .* raise max_connections"):
        PostgresBackend(role)


def test_a_database_that_lets_nobody_in_is_not_called_missing(
    role: str, postgres_url: str, database: psycopg.Connection
) -> None:
    name = postgres.new_schema()
    try:
        database.execute(f"create database {name}".encode())
        database.execute(f"revoke connect on database {name} from public".encode())
        with pytest.raises(UnavailableError, match="grant it connect on the database"):
            PostgresBackend(f"{role.rpartition('/')[0]}/{name}")
        database.execute(f"alter database {name} allow_connections false".encode())
        with pytest.raises(UnavailableError, match="the database accepts no connections"):
            PostgresBackend(f"{postgres_url.rpartition('/')[0]}/{name}")
    finally:
        database.execute(f"drop database if exists {name}".encode())


@pytest.mark.parametrize("kind", ["standby", "read-only"])
def test_a_primary_is_not_called_read_only(postgres_url: str, kind: str) -> None:
    with pytest.raises(UnavailableError, match="not have the role that the address requires"):
        PostgresBackend(f"{postgres_url}?target_session_attrs={kind}&timeout=0.5")


def user_of(url: str) -> str:
    return url.partition("://")[2].partition(":")[0]


def password_of(url: str) -> str:
    return url.partition("://")[2].partition("@")[0].partition(":")[2]


def with_password(url: str, password: str) -> str:
    return url.replace(f":{password_of(url)}@", f":{password}@")


def with_port(url: str, port: int) -> str:
    head, _, rest = url.rpartition("@127.0.0.1:")
    return f"{head}@127.0.0.1:{port}/{rest.partition('/')[2]}"


@pytest.mark.parametrize(
    "address",
    [
        f"postgresql://user:{SECRET}%zz@host/db",
        f"postgresql://user:x@{SECRET}@host/db",
        f"postgresql://user:{SECRET}/x@host/db",
        f"postgresql://user:x/{SECRET}@host/db",
        f"postgresql://user:{SECRET}@host:port/db?nonsense=1",
        f"postgresql://user:{SECRET}@host/db?schema=",
        f"postgresql://user:{SECRET}@host/db?schema={'x' * 64}",
        f"postgresql://user:{SECRET}@host/db?schema=information_schema",
        f"postgresql://user:{SECRET}@host/db?schema=pg_catalog",
        f"postgresql://user:{SECRET}@host/db?migrate=perhaps",
        f"postgresql://user:{SECRET}@host/db?timeout=-1",
        f"postgresql://user:{SECRET}@host/db?connections=1.5",
        f"postgresql://user:{SECRET}@host/db?accept=everything",
        f"postgresql://user:{SECRET}@host/db?tenant=%00",
    ],
)
def test_an_address_that_makes_no_sense_is_a_usage_error_without_the_password(address: str) -> None:
    with pytest.raises(UsageError) as caught:
        perdure.open(address)
    assert SECRET not in chain(caught.value)


def test_a_word_that_nobody_knows_is_named_unless_it_may_be_a_piece_of_a_password() -> None:
    with pytest.raises(UsageError, match="no parameter 'shema': use schema, "):
        perdure.open("postgresql://host/db?shema=other")
    with pytest.raises(UsageError) as caught:
        perdure.open(f"postgresql://user:x@host/db?{SECRET}@host=1")
    assert SECRET not in chain(caught.value)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("sslmode=bogus", "disable, allow, prefer, require, verify-ca or verify-full"),
        ("target_session_attrs=primray", "any, read-write, read-only, primary, standby"),
        ("channel_binding=yes", "disable, prefer or require"),
        ("connect_timeout=soon", "a whole number of seconds"),
    ],
)
def test_a_value_that_libpq_does_not_take_is_answered_with_those_that_it_does(
    words: str, hint: str
) -> None:
    word, _, value = words.partition("=")
    with pytest.raises(UsageError, match=f"{word}='{value}' in the address must be") as caught:
        perdure.open(f"postgresql://user:{SECRET}@host/db?{words}")
    assert hint in str(caught.value)
    assert SECRET not in chain(caught.value)


def test_the_same_of_the_environment(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGSSLMODE", "bogus")
    with pytest.raises(UnavailableError, match=r"PGSSLMODE has no such value.*verify-full"):
        PostgresBackend(f"{postgres_url}?wait=30")


@pytest.mark.parametrize(
    ("open_backend", "words"),
    [
        (PostgresBackend, "timeout=0.5"),
        (PostgresBackend, "wait=0.5"),
        (PostgresBackend, "connect_timeout=-1&timeout=0.5"),
        (AsyncPostgresBackend, "connect_timeout=2"),
    ],
)
def test_opening_waits_for_a_server_that_says_nothing_as_long_as_the_address_says(
    open_backend: type, words: str
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        start = time.monotonic()
        with pytest.raises(UnavailableError, match="timeout"):
            open_backend(f"postgresql://user@127.0.0.1:{silent.getsockname()[1]}/db?{words}")
        assert time.monotonic() - start < 9, "2 s is the least that the driver waits; the usual 10"


def test_a_server_that_stops_answering_after_the_login_is_not_waited_for_for_ever(
    postgres_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "_SERVER_FACTS", "select pg_sleep(30), %s::text, %s::text")
    start = time.monotonic()
    with pytest.raises(UnavailableError, match="did not answer in time"):
        PostgresBackend(f"{postgres_store}&timeout=0.5")
    assert time.monotonic() - start < 20, "the server's answer comes after 30 s"


def test_a_name_that_is_too_long_for_the_server_is_called_that(postgres_store: str) -> None:
    backend = PostgresBackend(postgres_store)
    long = random.Random(1).randbytes(4000).hex()
    with pytest.raises(
        UsageError, match=r"a name, a label or an entry is too large for Postgres.*head_pkey"
    ):
        backend.append([append_of(long, 1, 1)])
    assert append_all(backend, append_of("short", 1, 1)) == ["stored"]
    backend.close()


@pytest.mark.parametrize(
    ("version", "number", "engine", "release"),
    [
        ("PostgreSQL 18.1 on x86_64-linux, compiled by gcc", 180_001, "PostgreSQL", "18.1"),
        ("CockroachDB CCL v25.4.1 (x86_64-linux, built 2026)", 130_000, "CockroachDB", "25.4.1"),
        (
            "PostgreSQL 15.2-YB-2025.1.1.2-b3 on x86_64",
            150_002,
            "PostgreSQL",
            "15.2-YB-2025.1.1.2-b3",
        ),
    ],
)
def test_a_server_is_called_what_it_calls_itself(
    version: str, number: int, engine: str, release: str
) -> None:
    facts = (number, version, "on", "", "", *(False,) * 3, 0, True, False, False, "")
    server = migrations.ServerInfo(*facts)
    assert (server.engine, server.release) == (engine, release)
    address = parse_address("postgresql://host/db")
    migrations.require_supported(server, address)
    with pytest.raises(UnsupportedError, match="PostgreSQL 14 or newer"):
        migrations.require_supported(
            server._replace(number=130_000, version="PostgreSQL 13.1 on x86_64"), address
        )


def test_what_is_off_is_refused_in_one_go_and_accepted_by_name() -> None:
    facts = (180_001, "PostgreSQL 18.1 on x", "on", "off", "off", *(False,) * 3, 3, True)
    server = migrations.ServerInfo(*facts)

    def judged(*accept: str) -> Guarantees:
        return store_guarantees(server, Acceptance(accept, ACCEPTABLE, store="s"), "s")

    with pytest.raises(UnsupportedError) as caught:
        judged()
    assert "s has fsync = off and full_page_writes = off: set fsync and full" in str(caught.value)
    assert str(caught.value).endswith("?accept=fsync-off,full-page-writes-off")
    with pytest.raises(UnsupportedError, match="accept=fsync-off,full-page-writes-off"):
        judged("fsync-off")
    found = judged("fsync-off", "full-page-writes-off")
    assert [one.name for one in found.accepted] == ["fsync-off", "full-page-writes-off"]
    assert found.survives == "process death"


def test_everything_that_is_weak_is_named_at_once_with_its_remedy() -> None:
    facts = (180_001, "PostgreSQL 18.1 on x", "on", "off", "on", *(False,) * 3, 3, True)
    server = migrations.ServerInfo(*facts, data_sync_retry="on", unlogged=('"s".entry', '"s".head'))

    def judged(one: migrations.ServerInfo, *accept: str) -> Guarantees:
        return store_guarantees(one, Acceptance(accept, ACCEPTABLE, store="s"), "s")

    with pytest.raises(UnsupportedError) as caught:
        judged(server)
    assert str(caught.value).startswith(
        's has fsync = off and data_sync_retry = on and unlogged tables ("s".entry, "s".head): set'
        " fsync to on and set data_sync_retry to off in the server's configuration, and run: alter"
        ' table "s".entry set logged; alter table "s".head set logged; or accept that '
    )
    words = ["fsync-off", "data-sync-retry-on", "unlogged-tables"]
    assert str(caught.value).endswith(f"?accept={','.join(words)}")
    found = judged(server, *words)
    assert [one.name for one in found.accepted] == words
    weak = {check.name for check in found.checks if check.verdict == "weak"}
    assert weak == {"fsync", "data_sync_retry", "tables"}
    assert all(check.advice for check in found.checks if check.verdict == "weak")

    neon = judged(server._replace(neon=True, unlogged=()))
    assert (neon.survives, neon.accepted) == ("power loss", ())
    with pytest.raises(UnsupportedError, match="unlogged"):
        judged(server._replace(neon=True))


def test_what_a_server_does_not_know_is_unknown_and_not_refused() -> None:
    facts = (130_000, "CockroachDB CCL v25.4.1 (x)", "", "", "", *(False,) * 3, 3, True)
    server = migrations.ServerInfo(*facts, unlogged=None)
    found = store_guarantees(server, Acceptance((), ACCEPTABLE, store="s"), "s")
    unknown = {check.name for check in found.checks if check.verdict == "unknown"}
    assert unknown >= {"fsync", "data_sync_retry", "tables"}
    assert found.survives == "power loss"


def test_the_page_lists_every_weakness_that_can_be_accepted() -> None:
    page = Path(__file__).parents[3] / "docs" / "how-to" / "deploy-with-postgres.md"
    (row,) = re.findall(r"^\| `accept` .*$", page.read_text("utf-8"), re.MULTILINE)
    assert re.findall(r"`([a-z-]+)`", row)[1:] == [*ACCEPTABLE]


def test_a_table_for_those_who_wait_need_not_be_logged(
    postgres_empty: str, database: psycopg.Connection
) -> None:
    PostgresBackend(postgres_empty).close()
    schema = postgres_empty.rpartition("schema=")[2]
    database.execute(f"alter table {schema}.watch set unlogged".encode())
    backend = PostgresBackend(postgres_empty)
    assert backend.guarantees.survives == "power loss"
    assert ("tables", "logged") in [check[:2] for check in backend.guarantees.checks]
    backend.close()


def test_the_password_is_shown_nowhere(
    postgres_store: str, caplog: pytest.LogCaptureFixture
) -> None:
    secret = password_of(postgres_store)
    with caplog.at_level(logging.DEBUG), perdure.open(postgres_store) as store:
        session = store.session("s")
        session.append({"role": "user", "content": "hello"})
        shown = [repr(store), repr(session), str(store.guarantees()), caplog.text]
        backend = store._backend
        shown += [repr(vars(backend)), backend.name, repr(vars(backend._pool)["_address"])]  # type: ignore[attr-defined]
    assert all(secret not in text for text in [*shown[:4], *shown[5:]])


@pytest.mark.parametrize("password", ["a", "e", "to", "table", ".", "(a"])
def test_a_short_password_does_not_cut_messages_to_pieces(password: str) -> None:
    address = parse_address(f"postgresql://u:{quote(password)}@h/db")
    text = 'a new row violates row-level security policy for table "head" (to here).'
    assert address.hide(text) == text
    for shown in ("postgresql://u:{}@h/db", "user=u password={}", "the words '{}' here"):
        assert address.hide(shown.format(password)) == shown.format("***")


def test_a_longer_password_is_hidden_wherever_it_stands() -> None:
    address = parse_address(f"postgresql://u:{SECRET}@h/db")
    assert address.hide(f"x{SECRET}y") == "x***y"
    assert parse_address("postgresql://h/db").hide("anything") == "anything"


def test_a_password_in_a_message_does_not_change_what_is_advised() -> None:
    address = parse_address("postgresql://u:authentication@h/db")
    error = psycopg.OperationalError("password authentication failed for user")
    raised = translate_error(error, address)
    assert "check the user and the password" in str(raised)
    assert "authentication" not in str(raised)


def test_tables_are_made_once_however_many_open_at_the_same_time(postgres_empty: str) -> None:
    failures: list[BaseException] = []
    backends: list[PostgresBackend] = []
    ready = threading.Barrier(8)

    def work() -> None:
        try:
            ready.wait()
            backends.append(PostgresBackend(postgres_empty))
        except BaseException as error:  # noqa: BLE001 - shown below
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for number, backend in enumerate(backends, 1):
        assert append_all(backend, append_of("s", number, number)) == ["stored"]
    for backend in backends:
        backend.close()


def test_opening_makes_no_tables_where_that_is_forbidden(postgres_empty: str) -> None:
    with pytest.raises(UnavailableError, match=r"no tables yet.*perdure migrate"):
        PostgresBackend(f"{postgres_empty}&migrate=no")
    PostgresBackend(postgres_empty).close()
    backend = PostgresBackend(f"{postgres_empty}&migrate=no")
    assert append_all(backend, append_of("s", 1, 1)) == ["stored"]
    backend.close()


def test_tables_of_a_newer_perdure_are_refused(
    postgres_empty: str, database: psycopg.Connection
) -> None:
    PostgresBackend(postgres_empty).close()
    schema = postgres_empty.rpartition("schema=")[2]
    database.execute(f"insert into {schema}.migration (version) values (99)".encode())  # noqa: S608 - ours
    with pytest.raises(VersionError, match="99"):
        PostgresBackend(postgres_empty)


def test_a_user_without_rights_is_told_which_ones_it_needs(
    role: str, postgres_empty: str, database: psycopg.Connection
) -> None:
    schema = postgres_empty.rpartition("schema=")[2]
    guest = f"{role}?schema={schema}"
    with pytest.raises(UnavailableError, match=r"may not create the tables.* run: perdure migrate"):
        PostgresBackend(guest)
    PostgresBackend(postgres_empty).close()
    with pytest.raises(UnavailableError, match="grant it usage on the schema"):
        PostgresBackend(guest)
    database.execute(f"grant usage on schema {schema} to {user_of(role)}".encode())
    tables = f"select, insert, update, delete on all tables in schema {schema}"
    database.execute(f"grant {tables} to {user_of(role)}".encode())
    backend = PostgresBackend(guest)
    assert append_all(backend, append_of("s", 1, 1)) == ["stored"]
    database.execute(f"revoke insert on {schema}.entry from {user_of(role)}".encode())
    with pytest.raises(UnavailableError, match="this user lacks a privilege"):
        backend.append([append_of("s", 2, 2)])
    database.execute(f"grant insert on {schema}.entry to {user_of(role)}".encode())
    assert append_all(backend, append_of("s", 2, 2)) == ["stored"], "and it goes on when it may"
    assert list(backend.read("s")) == entries(1, 2)
    backend.close()


def test_a_server_that_only_reads_can_be_read(postgres_store: str) -> None:
    backend = PostgresBackend(postgres_store)
    append_all(backend, append_of("s", 1, 2))
    backend.close()
    options = quote("-c default_transaction_read_only=on")
    reader = PostgresBackend(f"{postgres_store}&options={options}")
    assert list(reader.read("s")) == entries(1, 2)
    assert "read-only: " in str(reader.guarantees.checks)
    with pytest.raises(UnavailableError, match="connect to the primary"):
        reader.append([append_of("s", 3, 3)])
    assert list(reader.read("s")) == entries(1, 2)
    reader.close()


def test_opening_waits_for_a_server_that_is_not_there_yet_if_it_is_told_to() -> None:
    with running() as server:
        server.stop(signal.SIGKILL)
        with pytest.raises(UnavailableError, match="check that the server is running"):
            PostgresBackend(server.url)
        thread = threading.Timer(0.3, server.start)
        thread.start()
        backend = PostgresBackend(f"{server.url}?wait=60&timeout=60")
        thread.join()
        assert append_all(backend, append_of("s", 1, 1)) == ["stored"]
        server.stop(signal.SIGKILL)
        thread = threading.Timer(0.3, server.start)
        thread.start()
        assert append_all(backend, append_of("s", 2, 2)) == ["stored"], "a call waits by itself"
        thread.join()
        backend.close()


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A directory with room for 4 MB that the server can reach."""
    place = Path(tempfile.mkdtemp(prefix="perdure-small-"))
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m,mode=777", "tmpfs", str(place)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        place.rmdir()
        pytest.skip("this user may not mount a small disk")
    yield place
    leave = ["umount", "-l", str(place)]
    subprocess.run(leave, check=True)
    place.rmdir()


def test_a_full_disk_is_said_and_the_session_goes_on_when_there_is_room(small_disk: Path) -> None:
    with running() as server, perdure.open(server.url) as store:
        with psycopg.connect(server.url, autocommit=True) as admin:
            space = sql.SQL("create tablespace small location {}")
            if server.user is not None:
                (small_disk / "data").mkdir()
                os.chown(small_disk / "data", server.user, server.user)
            admin.execute(space.format(str(small_disk / "data")))
            admin.execute("alter table perdure.entry set tablespace small")
        session = store.session("s")
        texts = [
            f"{number} {random.Random(number).randbytes(200_000).hex()}" for number in range(40)
        ]
        stored = 0

        def go_on() -> None:
            nonlocal stored
            for text in texts[stored:]:
                session.append({"role": "user", "content": text}, id=text[:3])
                stored += 1

        with pytest.raises(UnavailableError, match="disk is full"):
            go_on()
        assert 2 < stored < 40
        room = ["mount", "-o", "remount,size=64m", str(small_disk)]
        subprocess.run(room, check=True)
        go_on()
        assert [message["content"] for message in session.messages()] == texts
        session.verify()


@pytest.mark.parametrize("name", ['it\'s "quoted"; drop schema public --', "Gross", "ü %s {x} 🦉"])
def test_any_schema_name_is_only_a_name(
    postgres_url: str, database: psycopg.Connection, name: str
) -> None:
    backend = PostgresBackend(f"{postgres_url}?schema={quote(name)}")
    try:
        assert append_all(backend, append_of("s", 1, 2, "l")) == ["stored"]
        assert list(backend.read("s")) == entries(1, 2)
        assert backend.watch("s", after=1, timeout=30)
        found = database.execute("select 1 from pg_namespace where nspname = %s", (name,))
        assert found.fetchone()
    finally:
        backend.close()
        database.execute(sql.SQL("drop schema {} cascade").format(sql.Identifier(name)))


def test_without_the_driver_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(module: str) -> None:
        raise ModuleNotFoundError(f"No module named {module!r}", name="psycopg")

    monkeypatch.setattr("perdure.backends.addresses.import_module", missing)
    reason = "postgresql: stores need the package 'psycopg', which is not installed"
    hint = f"{reason}: pip install 'perdure[postgres]'"
    with pytest.raises(UnsupportedError, match=re.escape(hint)):
        perdure.open("postgresql://host/db")
    for command in (["doctor"], ["migrate"], ["migrate", "--print-rls"], ["ls", "--store"]):
        result = CliRunner().invoke(main, [*command, "postgres://host/db"])
        assert (result.exit_code, result.stderr) == (3, f"Error: {hint}\n"), command


def test_a_session_goes_on_when_the_server_is_back() -> None:
    """A login that is taken away in the middle: the turn fails, and later ones do not."""
    with (
        running() as server,
        psycopg.connect(server.url, autocommit=True) as admin,
        perdure.open(f"{server.url}?timeout=20") as store,
    ):
        session = store.session("s")
        session.append({"role": "user", "content": "one"})
        change = sql.SQL("alter role {} password {}")
        user = sql.Identifier(admin.info.user)
        admin.execute(change.format(user, SECRET))
        admin.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where application_name = 'perdure'"
        )
        with pytest.raises(PerdureError) as caught:
            session.append({"role": "user", "content": "two"})
        assert isinstance(caught.value, UnavailableError)
        admin.execute(change.format(user, server.password))
        session.append({"role": "user", "content": "three"})
        texts = [message["content"] for message in session.messages()]
        assert texts in (["one", "three"], ["one", "two", "three"])
