"""Files with conversations in them are for their owner only, and never made through a link."""

import contextlib
import json
import logging
import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import perdure
import perdure.logging
from perdure.backends.filesystem import open_private
from perdure.errors import UsageError
from tests.cli.support import fill, flip, invoke
from tests.support import said

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has other permissions")


@contextlib.contextmanager
def umask(mask: int) -> Iterator[None]:
    old = os.umask(mask)
    try:
        yield
    finally:
        os.umask(old)


def modes(directory: Path) -> dict[str, str]:
    """The permissions of everything in a directory, by name."""
    return {
        path.name: oct(stat.S_IMODE(path.lstat().st_mode)) for path in sorted(directory.rglob("*"))
    }


STORES: dict[str, str] = {"sqlite": "{}/agents.db", "files": "files:{}/state"}


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
@pytest.mark.parametrize("kind", STORES)
def test_a_new_store_is_for_its_owner_only(kind: str, mask: int, tmp_path: Path) -> None:
    address = STORES[kind].format(tmp_path)
    with umask(mask), perdure.open(address) as store:
        store.session("claim-4711").append(said("my card number"))
        perdure.copy(store._backend, f"{tmp_path}/copy.db")
        found = modes(tmp_path)
    assert {*found.values()} <= {"0o600", "0o700"}
    expected = {"sqlite": {"agents.db", "agents.db-wal", "agents.db-shm"}, "files": {"state"}}
    assert {"copy.db", *expected[kind]} <= found.keys()


def test_a_store_that_is_shared_stays_shared(tmp_path: Path) -> None:
    """The twin: what the owner allows is kept, and the log gets the same mode."""
    path = tmp_path / "agents.db"
    perdure.open(path).close()
    path.chmod(0o660)
    with perdure.open(path) as store:
        store.session("a").append(said("b"))
        assert {*modes(tmp_path).values()} == {"0o660"}


@pytest.mark.parametrize("kind", STORES)
def test_no_store_is_made_through_a_link_to_nothing(kind: str, tmp_path: Path) -> None:
    address = STORES[kind].format(tmp_path)
    link, target = Path(address.removeprefix("files:")), tmp_path / "elsewhere"
    link.symlink_to(target)
    with pytest.raises(UsageError, match="link to nothing"):
        perdure.open(address)
    assert not target.exists()
    perdure.open(address.replace(link.name, target.name)).close()
    perdure.open(address).close()  # The twin: a link to a store is followed.


def test_threads_that_create_a_store_at_once_keep_their_locks(tmp_path: Path) -> None:
    for number in range(20):
        path = tmp_path / f"{number}.db"
        with ThreadPoolExecutor(8) as pool:
            stores = [*pool.map(lambda _: perdure.open(path), range(8))]  # noqa: B023 - used at once
        for at, store in enumerate(stores):
            store.session(f"{at}").append(said("a"))
            store.close()
        with perdure.open(path) as store:
            assert len(list(store.sessions())) == 8


def test_what_is_salvaged_and_logged_is_for_its_owner_only(tmp_path: Path) -> None:
    path = fill(tmp_path / "agents.db")
    flip(path, b"checklist")
    saved, log = tmp_path / "saved.jsonl", tmp_path / "log.jsonl"
    with umask(0):
        assert invoke(path, "verify", "--salvage", str(saved)).exit_code == 1
        logger = logging.getLogger("perdure")
        level, handler = logger.level, perdure.logging.json(log)
        try:
            perdure.open(tmp_path / "other.db").close()
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)
            handler.close()
    assert json.loads(saved.read_text().splitlines()[0])
    found = modes(tmp_path)
    assert found["saved.jsonl"] == found["log.jsonl"] == "0o600"


def test_no_log_is_made_through_a_link_to_nothing(tmp_path: Path) -> None:
    link = tmp_path / "log.jsonl"
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="link to nothing"):
        perdure.logging.json(link)
    assert not (tmp_path / "elsewhere").exists()


def test_an_existing_file_is_opened_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old ")
    path.chmod(0o644)
    (tmp_path / "link").symlink_to(path)
    with open(tmp_path / "link", "a", opener=open_private) as file:
        file.write("new")
    assert path.read_text() == "old new"
    assert modes(tmp_path)["a"] == "0o644"
    with pytest.raises(FileExistsError):
        open(path, "x", opener=open_private)  # noqa: SIM115
