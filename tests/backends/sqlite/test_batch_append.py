"""The usual appends are stored in one statement; everything else, exactly as if there were none."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import apsw
import pytest

from perdure.backends.protocol import Append
from perdure.backends.sqlite import batch_append
from perdure.backends.sqlite.backend import SqliteBackend
from perdure.testing.contract.samples import append_all, append_of, entry


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def backend(path: Path) -> Iterator[SqliteBackend]:
    backend = SqliteBackend(path)
    append_all(backend, append_of("a", 1, 2, "tag"), append_of("b", 1, 2))
    yield backend
    backend.close()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return whether each load was stored, in order."""
    answers: list[bool] = []
    store = batch_append.store_batch

    def noted(load: batch_append.BatchRows, db: apsw.Connection) -> bool:
        answers.append(store(load, db))
        return answers[-1]

    monkeypatch.setattr(batch_append, "store_batch", noted)
    monkeypatch.setattr(batch_append, "BATCH_MIN", 1)
    monkeypatch.setattr(SqliteBackend, "_append_one", lambda self, one: self._append_all([one]))
    return answers


def test_known_streams_are_stored_at_once(backend: SqliteBackend, at_once: list[bool]) -> None:
    assert append_all(backend, append_of("a", 3, 5, "tag"), append_of("b", 3, 3)) == ["stored"] * 2
    assert at_once == [True]
    assert [*backend.read("a")] == [*append_of("a", 1, 5).entries]
    assert [(head.stream, head.position) for head in backend.streams()] == [("a", 5), ("b", 3)]


def test_new_streams_are_stored_at_once_together_with_known_ones(
    backend: SqliteBackend, at_once: list[bool]
) -> None:
    news = [append_of("c", 1, 3, "tag", "more"), append_of("d", 1, 1)]
    assert append_all(backend, append_of("a", 3, 3, "tag"), *news) == ["stored"] * 3
    assert append_all(backend, append_of("c", 4, 4, "more")) == ["stored"]
    assert at_once == [True] * 2
    assert [*backend.read("c")] == [*append_of("c", 1, 4).entries]
    heads = [(head.stream, head.position) for head in backend.streams()]
    assert heads == [("a", 3), ("b", 2), ("c", 4), ("d", 1)]
    assert [head.stream for head in backend.streams(labels=["tag"])] == ["a"]
    assert [head.stream for head in backend.streams(labels=["more"])] == ["c"]


def test_a_new_stream_that_somebody_else_began_is_a_conflict_and_the_others_are_stored(
    backend: SqliteBackend, path: Path, at_once: list[bool]
) -> None:
    other = SqliteBackend(path)
    append_all(other, append_of("c", 1, 1, mark="other"))
    assert append_all(backend, append_of("c", 1, 1), append_of("d", 1, 1)) == ["conflict", "stored"]
    assert append_all(backend, append_of("d", 1, 1)) == ["stored"]
    assert at_once[:3] == [True, False, False]
    assert [*backend.read("c")] == [*append_of("c", 1, 1, mark="other").entries]
    other.close()


def test_labels_move_with_their_heads(backend: SqliteBackend, at_once: list[bool]) -> None:
    for labels in (("tag", "more"), ("more",), (), ("it's", '"x"\\')):
        first = next(iter(backend.streams())).position + 1
        append_all(
            backend, append_of("a", first, first, *labels), append_of("b", first, first, "b")
        )
        for label in ("tag", "more", "it's", '"x"\\'):
            found = [head.stream for head in backend.streams(labels=[label])]
            assert found == (["a"] if label in labels else [])
    assert at_once == [True] * 4


def test_a_stream_that_somebody_else_moved_is_a_conflict_and_the_others_are_stored(
    backend: SqliteBackend, path: Path, at_once: list[bool]
) -> None:
    other = SqliteBackend(path)
    append_all(other, append_of("a", 3, 3, mark="other"))
    assert append_all(backend, append_of("a", 3, 3), append_of("b", 3, 3)) == ["conflict", "stored"]
    assert at_once == [False]
    assert [one.position for one in backend.read("b")] == [1, 2, 3]
    other.close()


def test_labels_that_somebody_else_changed_are_replaced(
    backend: SqliteBackend, path: Path, at_once: list[bool]
) -> None:
    other = SqliteBackend(path)
    append_all(other, append_of("a", 3, 3, "theirs"))
    other.close()
    assert append_all(backend, append_of("a", 4, 4, "ours")) == ["stored"]
    assert [*backend.streams(labels=["theirs"])] == [*backend.streams(labels=["tag"])] == []
    assert [head.position for head in backend.streams(labels=["ours"])] == [4]
    assert at_once == [False]


@pytest.mark.parametrize("body", [b"a\0b", b"\xff", b"\xc3", "€".encode()[:2]])
def test_a_body_that_is_no_text_comes_back_as_it_was(
    backend: SqliteBackend, at_once: list[bool], body: bytes
) -> None:
    bodies = [entry(3, body=body), entry(4, body="€".encode())]
    given = append_of("a", 3, 4, "tag")._replace(entries=bodies)
    assert append_all(backend, given) == ["stored"]
    assert [*backend.read("a", after=2)] == [*given.entries]
    assert at_once == [True]


def test_text_of_every_length_and_script_comes_back(
    backend: SqliteBackend, at_once: list[bool]
) -> None:
    bodies = ["", "x", "é", "東京" * 700, "🦉" * 3, '"\\\n', "[1,2]", "x" * 70_000]
    texts = [entry(3 + n, body=text.encode()) for n, text in enumerate(bodies)]
    given = append_of("a", 3, 3)._replace(entries=texts)
    assert append_all(backend, given) == ["stored"]
    assert [*backend.read("a", after=2)] == [*given.entries]
    assert at_once == [True]


def test_the_same_append_again_is_stored_and_changes_nothing(
    backend: SqliteBackend, at_once: list[bool]
) -> None:
    given = append_of("a", 3, 4, "tag")
    assert append_all(backend, given) == append_all(backend, given) == ["stored"]
    assert at_once == [True, False]
    assert [one.position for one in backend.read("a")] == [1, 2, 3, 4]


def test_a_gap_is_refused(backend: SqliteBackend, at_once: list[bool]) -> None:
    assert append_all(backend, append_of("a", 9, 9)) == ["refused"]
    assert at_once == [False]


def test_nothing_of_it_is_in_the_file(backend: SqliteBackend, path: Path) -> None:
    append_all(backend, append_of("a", 3, 3))
    db = apsw.Connection(str(path))
    kinds = {row[0] for row in db.execute("select type from sqlite_schema")}
    assert kinds == {"table", "index", "view"}
    db.close()


def test_a_few_go_one_by_one_and_many_at_once(
    backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"s{number}" for number in range(batch_append.BATCH_MIN)]
    append_all(backend, *(append_of(name, 1, 1) for name in names))
    loads: list[int] = []
    load = batch_append.LabelCache.load

    def noted(
        labels: batch_append.LabelCache,
        rows: Sequence[tuple[int, str, Append]],
        *,
        compresses: bool,
    ) -> batch_append.BatchRows | None:
        loads.append(len(rows))
        return load(labels, rows, compresses=compresses)

    monkeypatch.setattr(batch_append.LabelCache, "load", noted)
    assert append_all(backend, *(append_of(name, 2, 2) for name in names[1:])) == ["stored"] * 3
    assert append_all(
        backend, *(append_of(name, 3, 3) for name in names[1:]), append_of("s0", 2, 2)
    )
    assert loads == [4]
