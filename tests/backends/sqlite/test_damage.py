"""What SQLite does not notice, SqliteBackend does, by comparing what is stored twice."""

from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from perdure.backends.sqlite.backend import SqliteBackend
from perdure.errors import DamagedError
from perdure.testing.contract.samples import append_all, append_of, entries

NAME = "a stream with a name"
Use = Callable[[SqliteBackend], object]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def backend(path: Path) -> Iterator[SqliteBackend]:
    backend = SqliteBackend(path)
    append_all(backend, append_of(NAME, 1, 5, "tag"), append_of("other", 1, 1))
    yield backend
    backend.close()


def change(path: Path, sql: str) -> None:
    other = apsw.Connection(str(path))
    other.execute(sql)
    other.close()


def read(backend: SqliteBackend) -> object:
    return list(backend.read(NAME))


def read_backwards(backend: SqliteBackend) -> object:
    return list(backend.read(NAME, reverse=True, limit=1))


def append(backend: SqliteBackend) -> object:
    return append_all(backend, append_of(NAME, 6, 6))


def append_other(backend: SqliteBackend) -> object:
    """Continue what the head says, which may not be what the entries say."""
    (head,) = backend.streams(prefix=NAME, limit=1)
    other = append_of(NAME, 5, 5, mark="other")._replace(previous=head.digest)
    return append_all(backend, other)


def listed(backend: SqliteBackend) -> object:
    return list(backend.streams())


def listed_by_label(backend: SqliteBackend) -> object:
    return list(backend.streams(labels=["tag"]))


def drop(backend: SqliteBackend) -> object:
    backend.drop(NAME, before=2)
    return True


@pytest.mark.parametrize(
    ("sql", "uses"),
    [
        ("update head set name = 'x' || name", [append, listed, listed_by_label, drop]),
        ("update head set position = 'x'", [append, listed, listed_by_label, drop]),
        ("update head set labels = '{'", [append, listed, listed_by_label, drop]),
        ("update head set labels = x'ff'", [append, listed, listed_by_label, drop]),
        ("update head set labels = '[]'", [listed_by_label]),
        ("update head set digest = x'00'", [append, listed]),
        ("update head set position = 4", [append_other, read, read_backwards]),
        ("update head set position = 6", [read, read_backwards]),
        ("delete from head", [append, listed_by_label, drop]),
        ("delete from entry where position = 5", [read, read_backwards]),
        ("delete from entry", [read, read_backwards]),
        ("update label set stream = 7", [listed_by_label]),
        ("drop table label", [listed_by_label]),
        ("drop table head", [read, append, listed, drop]),
        ("alter table entry rename column body to bod", [read, append]),
    ],
)
def test_what_contradicts_itself_is_damage(
    backend: SqliteBackend, path: Path, sql: str, uses: list[Use]
) -> None:
    good: list[Use] = [read, read_backwards, listed, listed_by_label]
    for use in good:
        assert use(backend), "before, it works"
    change(path, sql)
    for use in uses:
        with pytest.raises(DamagedError):
            use(backend)


@pytest.mark.parametrize(
    "sql",
    [
        "update head set name = 'x' || name",
        "update head set labels = '{'",
        "update head set position = 'x'",
        "delete from head",
    ],
)
def test_entries_can_be_read_whatever_became_of_their_head(
    backend: SqliteBackend, path: Path, sql: str
) -> None:
    whole = [read(backend), read_backwards(backend)]
    change(path, sql)
    assert [read(backend), read_backwards(backend)] == whole


def test_the_message_names_the_stream_and_no_body(backend: SqliteBackend, path: Path) -> None:
    change(path, "update head set name = 'secret'")
    with pytest.raises(DamagedError) as caught:
        append(backend)
    assert caught.value.stream == NAME
    assert NAME in str(caught.value)
    assert "secret" not in str(caught.value)


def test_what_stands_before_the_damage_is_yielded_before_it_is_said(
    backend: SqliteBackend, path: Path
) -> None:
    change(path, "delete from entry where position = 5")
    found = []
    with pytest.raises(DamagedError) as caught:  # noqa: PT012 - a loop is one statement.
        for one in backend.read(NAME):
            found.append(one)  # noqa: PERF402 - list() would lose them.
    assert found == entries(1, 4)
    assert caught.value.position == 5


@pytest.mark.parametrize("occurrence", range(5))
def test_a_changed_name_is_found_wherever_it_stands(path: Path, occurrence: int) -> None:
    """The name stands in the head, in its indexes and with its label: one flip in each."""
    backend = SqliteBackend(path)
    append_all(backend, append_of(NAME, 1, 1, "tag"))
    backend.close()
    content = path.read_bytes()
    places = [at for at in range(len(content)) if content.startswith(NAME.encode(), at)]
    if occurrence >= len(places):
        assert len(places) == 4
        return
    at = places[occurrence] + 3
    path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    backend = SqliteBackend(path)
    with pytest.raises(DamagedError):
        [read(backend), listed(backend), listed_by_label(backend)]
    backend.close()
    path.write_bytes(content)
    backend = SqliteBackend(path)
    assert all([read(backend), listed(backend), listed_by_label(backend)])
    backend.close()


def test_a_file_cut_short_is_damage(path: Path) -> None:
    backend = SqliteBackend(path)
    append_all(backend, append_of(NAME, 1, 200))
    backend.close()
    content = path.read_bytes()
    for size in range(100, len(content), 4001):
        path.write_bytes(content[:size])
        with pytest.raises(DamagedError):
            use_all(path)
    path.write_bytes(content)
    use_all(path)


def use_all(path: Path) -> None:
    backend = SqliteBackend(path)
    try:
        assert len(list(backend.read(NAME))) == 200
        assert len(list(backend.streams())) == 1
    finally:
        backend.close()


def test_every_flipped_bit_is_an_error_of_ours_or_harmless(path: Path) -> None:
    """No driver error escapes, and no crash; what the bytes of an entry say is not judged here."""
    backend = SqliteBackend(path)
    append_all(backend, append_of(NAME, 1, 3, "tag"))
    backend.close()
    content = path.read_bytes()
    damaged = 0
    for at in [*range(100, 400), *range(400, len(content), 97)]:
        path.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        damaged += is_damaged(path)
    assert damaged > 10


def is_damaged(path: Path) -> bool:
    try:
        backend = SqliteBackend(path)
    except DamagedError:
        return True
    try:
        for use in [read, read_backwards, listed, listed_by_label]:
            use(backend)
    except DamagedError:
        return True
    finally:
        backend.close()
    return False
