"""Copies to a server and back, and what a doctor says of one."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.backends.postgres.address import parse_address
from perdure.backends.postgres.backend import PostgresBackend
from perdure.backends.protocol import CLOCK, require_clock
from perdure.backends.sqlite.backend import SqliteBackend
from perdure.errors import UnavailableError, UnsupportedError, UsageError
from tests.cli.support import invoke, objects
from tests.journal.copying.stores import act, settled, shown
from tests.journal.copying.test_properties import EVERYTHING, LATER, died
from tests.support import said


@pytest.fixture
def server(postgres_store: str) -> Iterator[PostgresBackend]:
    with closing(PostgresBackend(postgres_store)) as backend:
        yield backend


def test_a_store_moves_to_a_server_and_back(server: PostgresBackend, tmp_path: Path) -> None:
    with (
        closing(SqliteBackend(tmp_path / "one.db")) as one,
        closing(SqliteBackend(tmp_path / "two.db")) as two,
    ):
        act(perdure.open(one), EVERYTHING)
        assert perdure.copy(one, server).complete
        assert shown(server) == shown(one)
        act(perdure.open(one), LATER)
        settled(one, server)
        assert shown(server) == shown(one)
        act(perdure.open(server), LATER)
        assert perdure.copy(server, two, final=True).complete
        assert shown(server) == shown(two)


def test_a_copy_to_a_server_that_dies_goes_on(server: PostgresBackend) -> None:
    source = MemoryBackend()
    act(perdure.open(source), EVERYTHING)
    deaths = sum(
        died(source, server, nth, side="target", after=nth % 2 == 0) for nth in range(1, 14)
    )
    assert deaths > 3
    assert perdure.copy(source, server, final=True).complete
    assert shown(server) == shown(source)


def test_an_event_loop_copies_to_a_server(postgres_store: str, tmp_path: Path) -> None:
    with perdure.open(tmp_path / "one.db") as store:
        act(store, EVERYTHING)
    final = perdure.copy_async(tmp_path / "one.db", postgres_store, final=True)
    copied = asyncio.run(final)
    assert copied.complete
    assert copied.verified == copied.records
    assert perdure.copy(tmp_path / "one.db", postgres_store).records == 0


def test_neither_a_dry_run_nor_a_source_makes_tables(postgres_empty: str, tmp_path: Path) -> None:
    one, elsewhere = tmp_path / "one.db", tmp_path / "two.db"
    with perdure.open(one) as store:
        store.session("s").append(said("a"))
    dry = perdure.copy(one, postgres_empty, dry_run=True)
    assert (dry.sessions, dry.records, dry.problems) == (1, 1, ())
    assert asyncio.run(perdure.copy_async(one, postgres_empty, dry_run=True)) == dry
    assert invoke(None, "copy", "--dry-run", str(one), postgres_empty).exit_code == 0
    with pytest.raises(UnavailableError, match="no tables yet"):
        perdure.copy(postgres_empty, elsewhere)
    with pytest.raises(UnavailableError, match="no tables yet"):
        perdure.open(f"{postgres_empty}&migrate=no")
    assert not elsewhere.exists()
    assert perdure.copy(one, postgres_empty).complete
    assert perdure.copy(one, postgres_empty, dry_run=True).records == 0
    assert perdure.copy(postgres_empty, elsewhere).complete


def test_the_command_does_not_repeat_a_password(postgres_store: str, tmp_path: Path) -> None:
    with perdure.open(tmp_path / "one.db") as store:
        store.session("s").append(said("a"))
    user, _, place = postgres_store.partition("://")[2].partition("@")
    name, _, password = user.partition(":")
    assert password
    apart = f"postgresql://{name}@{place}&password={password}&migrate=no"
    for address in (f"{postgres_store}&migrate=no", apart):
        perdure.open(postgres_store).close()
        result = invoke(None, "copy", str(tmp_path / "one.db"), address)
        assert result.exit_code == 0
        assert password not in result.stdout + result.stderr
        assert f"postgresql://{name}@{place}&migrate=no" in result.stdout, "to be called again"


def test_a_server_is_not_copied_to_itself(postgres_store: str) -> None:
    other = f"{postgres_store.replace('postgresql:', 'postgres:')}&timeout=20"
    perdure.open(postgres_store).close()
    with pytest.raises(UsageError, match="same store"):
        perdure.copy(postgres_store, other)
    with pytest.raises(UsageError, match="same store"):
        asyncio.run(perdure.copy_async(postgres_store, other))
    result = invoke(None, "copy", "--final", postgres_store, other)
    assert result.exit_code == 2
    assert "same store" in result.stderr
    with pytest.raises(UnsupportedError, match="name their tenant"):
        perdure.copy(postgres_store, f"{other}&tenant=another")


def test_a_name_tells_stores_apart() -> None:
    places = ["host=h&hostaddr=10.0.0.1", "host=h&hostaddr=10.0.0.2", "service=a", "service=b"]
    addresses = [f"postgresql:///db?{place}&password=secret" for place in places]
    names = {parse_address(address).name for address in addresses}
    assert len(names) == len(places)
    assert "secret" not in " ".join(names)


def test_a_server_is_examined_and_nothing_is_left(
    server: PostgresBackend, postgres_store: str
) -> None:
    perdure.open(server).session("s").append(said("a"))
    before = shown(server)
    result = invoke(None, "doctor", "--json", "--appends", "20", postgres_store)
    (found,) = objects(result)
    names = {one["name"]: one for one in [*found["machine"], *found["trials"]]}
    assert abs(names["server's clock"]["data"]["skew"]) < 5
    assert {one["verdict"] for one in found["trials"]} <= {"sound", "note", "weak"}
    assert names["two writers"]["verdict"] == names["many writers"]["verdict"] == "sound"
    assert found["guarantees"]["engine"] == "PostgreSQL"
    assert shown(server) == before
    assert CLOCK in server.capabilities
    assert require_clock(server).server_time() > 1.7e9


def test_a_server_that_is_away_is_unusable() -> None:
    result = invoke(None, "doctor", "postgresql://me:secret@127.0.0.1:1/nothing?timeout=1")
    assert result.exit_code == 2
    assert "unusable" in result.stdout
    assert "secret" not in result.stdout + result.stderr
