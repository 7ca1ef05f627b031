"""What a store promises is found out when it is opened; what is weak is refused or accepted."""

import asyncio
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

import perdure
from perdure.backends import addresses as addresses_module
from perdure.backends import filesystem
from perdure.backends.guarantees import Check, Guarantees, guarantees_of
from perdure.backends.memory import MemoryBackend
from perdure.backends.sqlite import schema
from perdure.backends.sqlite.backend import SqliteBackend
from perdure.errors import UnsupportedError, UsageError
from tests.support import contents, said

Mounted = Callable[[str], None]


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mounted:
    """Make the machine believe that everything lies on a file system of some type."""

    def mount(kind: str) -> None:
        table = tmp_path / f"mountinfo-{kind}"  # What a table says is remembered.
        table.write_text(f"22 1 254:0 / / rw - {kind} there rw\n")
        monkeypatch.setattr(filesystem, "MOUNTINFO", table)

    return mount


ON_DISK = pytest.mark.parametrize("scheme", ["sqlite", "files"])


@ON_DISK
def test_a_store_on_a_local_disk_survives_the_loss_of_power(
    tmp_path: Path, mounted: Mounted, scheme: str
) -> None:
    mounted("ext4")
    with perdure.open(f"{scheme}:{tmp_path / 'store'}") as store:
        found = store.guarantees()
    assert (found.survives, found.shared_by) == ("power loss", "one machine")
    assert {check.verdict for check in found.checks} == {"sound"}
    assert Check("file system", "ext4") in found.checks
    assert found.accepted == ()


def test_sqlite_names_its_version_and_the_settings_that_were_found(tmp_path: Path) -> None:
    with perdure.open(tmp_path / "agents.db") as store:
        found = store.guarantees()
    assert (found.engine, found.version) == ("SQLite", apsw.sqlite_lib_version())
    assert found.atomic == "one call"
    assert found.capabilities == tuple(sorted(SqliteBackend.capabilities))
    assert {"SQLite", "journal_mode", "synchronous"} <= {check.name for check in found.checks}


def test_a_sqlite_that_does_not_sync_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weak = schema.SETTINGS.replace("synchronous = full", "synchronous = normal")
    monkeypatch.setattr(schema, "SETTINGS", weak)
    with pytest.raises(UnsupportedError, match="synchronous=1"):
        SqliteBackend(tmp_path / "agents.db")


@ON_DISK
def test_a_network_file_system_is_refused_with_the_word_that_accepts_it(
    tmp_path: Path, mounted: Mounted, scheme: str
) -> None:
    mounted("nfs4")
    with pytest.raises(UnsupportedError, match=r"nfs4.*\?accept=network-filesystem"):
        perdure.open(f"{scheme}:{tmp_path / 'store'}")
    assert not (tmp_path / "store").exists()


@ON_DISK
def test_what_was_accepted_lowers_the_promise_and_is_shown_and_logged(
    tmp_path: Path, mounted: Mounted, scheme: str, caplog: pytest.LogCaptureFixture
) -> None:
    mounted("nfs4")
    with (
        caplog.at_level(logging.WARNING, "perdure"),
        perdure.open(f"{scheme}:{tmp_path / 'store'}?accept=network-filesystem") as store,
    ):
        found = store.guarantees()
        store.session("s").append(said("a"))
        assert contents(store.session("s")) == ["a"]
    assert (tmp_path / "store").exists(), "the option is no part of the path"
    assert (found.survives, found.shared_by) == ("process death", "one process")
    assert [one.name for one in found.accepted] == ["network-filesystem"]
    assert next(check for check in found.checks if check.name == "file system").verdict == "weak"
    (told,) = [record for record in caplog.records if getattr(record, "event", "") == "downgrade"]
    assert vars(told)["accepted"] == "network-filesystem"


@ON_DISK
def test_what_was_accepted_and_not_needed_lowers_nothing(
    tmp_path: Path, mounted: Mounted, scheme: str, caplog: pytest.LogCaptureFixture
) -> None:
    mounted("xfs")
    with perdure.open(f"{scheme}:{tmp_path / 'store'}?accept=network-filesystem") as store:
        found = store.guarantees()
    assert found.survives == "power loss"
    assert found.accepted == ()
    assert not caplog.records


@ON_DISK
def test_files_in_memory_do_not_survive_the_machine(
    tmp_path: Path, mounted: Mounted, scheme: str
) -> None:
    mounted("tmpfs")
    with perdure.open(f"{scheme}:{tmp_path / 'store'}") as store:
        found = store.guarantees()
    assert found.survives == "process death"
    (weak,) = [check for check in found.checks if check.verdict == "weak"]
    assert (weak.name, weak.found) == ("file system", "tmpfs")
    assert weak.advice


@pytest.mark.parametrize("kind", ["overlay", ""])
def test_where_nobody_can_tell_nothing_is_guessed(
    tmp_path: Path, mounted: Mounted, kind: str
) -> None:
    mounted(kind)
    found = SqliteBackend(tmp_path / "agents.db").guarantees
    place = next(check for check in found.checks if check.name == "file system")
    assert place.verdict == "unknown"
    assert place.advice


@pytest.mark.parametrize("word", ["anything", "synchronous", "network-filesystem,anything"])
def test_an_unknown_weakness_can_not_be_accepted(tmp_path: Path, word: str) -> None:
    for scheme in ("sqlite", "files"):
        with pytest.raises(UsageError, match=r"cannot accept.*'network-filesystem'"):
            perdure.open(f"{scheme}:{tmp_path / 'store'}?accept={word}")
    assert not (tmp_path / "store").exists()
    with pytest.raises(UsageError, match="memory:"):
        perdure.open(f"memory:?accept={word}")
    with pytest.raises(UsageError, match="not the str"):
        SqliteBackend(tmp_path / "store", accept=word)


def test_a_path_may_be_called_anything(tmp_path: Path) -> None:
    path = tmp_path / "a?accept=network-filesystem"
    with perdure.open(path) as store:
        store.session("s").append(said("a"))
    assert path.exists()


def test_a_store_that_can_only_be_read_says_so(tmp_path: Path) -> None:
    checks = (Check("synchronous", "full"),)
    accepted: Any = type("None", (), {"used": ()})
    found = schema.store_guarantees(checks, Check("file system", "ext4"), accepted, "it is so")
    assert ("writing", "read-only: it is so") in [check[:2] for check in found.checks]


class Silent(MemoryBackend):
    """A third party's backend that does not speak of guarantees."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("guarantees", "capabilities"):
            raise AttributeError(name)
        return super().__getattribute__(name)


def test_what_a_backend_does_not_declare_is_undeclared_and_not_guessed() -> None:
    found = perdure.open(Silent()).guarantees()
    assert {found.survives, found.shared_by, found.atomic, found.engine} == {"undeclared"}
    assert found.version == "undeclared"
    assert [*found.capabilities, *found.checks, *found.accepted] == []


def test_guarantees_that_are_none_are_refused() -> None:
    backend = MemoryBackend()
    backend.guarantees = "all of them"  # type: ignore[assignment]
    with pytest.raises(UsageError, match="Guarantees"):
        guarantees_of(backend)


def test_both_colours_promise_the_same(tmp_path: Path) -> None:
    async def promised() -> Guarantees:
        store = perdure.open_async(tmp_path / "agents.db")
        try:
            return store.guarantees()
        finally:
            await store.close()

    with perdure.open(tmp_path / "agents.db") as store:
        assert asyncio.run(promised()) == store.guarantees()


def test_the_table_in_the_docs_is_what_stores_say(
    tmp_path: Path, mounted: Mounted, postgres_store: str, redis_store: str
) -> None:
    mounted("ext4")
    page = Path(__file__).parents[2] / "docs" / "how-to" / "choose-a-backend.md"
    rows = re.findall(
        r"^\| `(\w+):[^|]*((?: \|[^|\n]+){4}) \|$", page.read_text("utf-8"), re.MULTILINE
    )
    addresses = {
        "sqlite": f"sqlite:{tmp_path / 'a.db'}",
        "files": f"files:{tmp_path / 'files'}",
        "memory": "memory:",
        "postgresql": postgres_store,
        "redis": redis_store,
    }
    schemes = {*addresses_module.SCHEMES} - {"rediss"}  # The same with TLS.
    assert {scheme for scheme, _ in rows} == {*addresses} == schemes
    for scheme, cells in rows:
        with perdure.open(addresses[scheme]) as store:
            found = store.guarantees()
        said = [cell.strip() for cell in cells.split("|")[1:]]
        capabilities = ", ".join(found.capabilities)
        assert said == [found.survives, found.shared_by, found.atomic, capabilities], scheme
