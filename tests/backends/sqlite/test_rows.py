"""A compressed store takes less space, and gives every byte back."""

import json
import sys
from pathlib import Path
from typing import Any

import apsw
import pytest

import perdure
from perdure.backends import compression
from perdure.backends.protocol import Append, Entry
from perdure.backends.sqlite.backend import SqliteBackend
from perdure.backends.sqlite.salvage import Journal, rebuild_store
from perdure.errors import ChainError, DamagedError, UnsupportedError, UsageError, VersionError
from perdure.journal import chain, headers

TEXT = "The quick brown fox jumps over the lazy dog, and then it does the same again. "


def address(path: Path) -> str:
    return f"sqlite:{path}?compress=zstd"


def talk(session: perdure.Session, count: int = 10) -> None:
    for number in range(count):
        with session.turn(f"{number}: {TEXT}") as turn:
            turn.append({"role": "assistant", "content": TEXT * 3})


def forms(path: Path) -> list[tuple[str, str]]:
    db = apsw.Connection(str(path))
    rows: Any = db.execute(
        "select typeof(header), typeof(body) from entry order by rowid"
    ).fetchall()
    db.close()
    return [*rows]


def test_headers_and_bodies_are_packed_and_come_back(tmp_path: Path) -> None:
    plain, small = tmp_path / "plain.db", tmp_path / "small.db"
    for place in (str(plain), address(small)):
        with perdure.open(place) as store:
            talk(store.session("s"), 100)
    assert {*forms(plain)} == {("text", "text")}
    first, *others = forms(small)
    assert first == ("text", "blob")
    assert [header for header, _ in others].count("blob") > 280
    assert [body for _, body in others].count("blob") > 180
    assert small.stat().st_size < 0.65 * plain.stat().st_size
    with perdure.open(small) as store, perdure.open(plain) as other:
        assert [*store.session("s").messages()] == [*other.session("s").messages()]
        store.session("s").verify()
        assert len(store.session("s").messages(last=3)) == 3


def test_a_store_stays_compressed(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with perdure.open(address(path)) as store:
        talk(store.session("s"), 2)
    with perdure.open(path) as store:
        talk(store.session("s"), 2)
    assert forms(path)[-1] == ("blob", "blob")


def test_a_plain_store_becomes_compressed_and_both_forms_are_read(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with perdure.open(path) as store:
        talk(store.session("s"), 2)
    with perdure.open(address(path)) as store:
        assert len(store.session("s").messages()) == 4
    assert {*forms(path)} == {("text", "text")}, "only an append changes it"
    with perdure.open(address(path)) as store:
        talk(store.session("s"), 2)
        assert len(store.session("s").messages()) == 8
        store.session("s").verify()
    assert {*forms(path)} >= {("text", "text"), ("blob", "blob")}


def test_many_sessions_at_once_are_packed_too(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with perdure.open(address(path)) as store:
        for name in "abcdef":
            talk(store.session(name), 1)
    backend = SqliteBackend(path)
    appends, sizes = [], {}
    for name in "abcdef":
        entries = [*backend.read(name)]
        last, parsed = entries[-1], json.loads(entries[-1].header)
        parsed[3:5] = [last.last + 1, chain.entry_digest(last)]
        header = json.dumps(parsed, separators=(",", ":")).encode()
        records = len(parsed[8])
        entry = Entry(last.last + 1, header, last.body, records)
        head = next(iter(backend.streams(prefix=name)))
        appends.append(Append(name, [entry], head.labels, head.digest))
        sizes[name] = len(entries)
    backend._labels.remember((key, "[]") for key in _keys("abcdef"))
    assert {outcome.status for outcome in backend.append(appends)} == {"stored"}
    for append in appends:
        assert [*backend.read(append.stream)][-1] == append.entries[0]
    backend.close()
    assert forms(path)[-6:] == [("blob", "blob")] * 6


def _keys(names: str) -> list[int]:
    from perdure.backends.sqlite.reading import stream_key

    return [stream_key(name) for name in names]


def test_what_a_drop_leaves_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with perdure.open(address(path)) as store:
        talk(store.session("s"))
    backend = SqliteBackend(path)
    before = [*backend.read("s")]
    backend.drop("s", before=before[4].position)
    assert [*backend.read("s")] == before[4:]
    backend.close()
    assert forms(path)[0][0] == "text"


def test_a_changed_byte_is_damage_or_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with perdure.open(address(path)) as store:
        talk(store.session("s"), 3)
        good = [record.content for record in store.session("s").records()]
    db, found = apsw.Connection(str(path)), 0
    for column, update in UPDATES.items():
        rows: Any = db.execute("select position, header, body from entry").fetchall()
        for position, *values in rows:
            data = values[column]
            for at in range(0, len(data) * isinstance(data, bytes), 3):
                changed = bytearray(data)
                changed[at] ^= 1 << at % 8
                db.execute(update, (bytes(changed), position))
                with perdure.open(path) as store:
                    try:
                        store.session("s").verify()
                        assert [one.content for one in store.session("s").records()] == good
                    except (ChainError, DamagedError):
                        found += 1
                db.execute(update, (data, position))
    db.close()
    assert found > 200
    with perdure.open(path) as store:
        store.session("s").verify()


UPDATES = {
    0: "update entry set header = ? where position = ?",
    1: "update entry set body = ? where position = ?",
}


def test_a_damaged_file_is_salvaged_page_by_page(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with perdure.open(address(path)) as store:
        talk(store.session("s"))
        talk(store.session("lost"))
    db = apsw.Connection(str(path))
    db.execute(
        "delete from entry where position = 2 and stream = (select id from head where"
        " name = 'lost')"
    )
    db.execute("delete from head")
    db.close()
    journal = Journal(headers.session_of, lambda *_: True)
    recovered = rebuild_store(str(path), str(tmp_path / "new.db"), journal)
    assert recovered.entries == len(forms(path))
    with perdure.open(tmp_path / "new.db") as store:
        assert len(store.session("s").messages()) == 20
    backend = SqliteBackend(tmp_path / "new.db")
    (other,) = [head for head in backend.streams() if head.stream != "s"]
    assert len([*backend.read(other.stream)]) == len([*backend.read("s")]) - 1
    backend.close()


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="the standard library has a driver")
def test_without_its_driver_it_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.db"
    with perdure.open(address(path)) as store:
        talk(store.session("s"), 1)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setattr(compression, "_drivers", {})
    with pytest.raises(UnsupportedError, match=r"pip install 'perdure\[zstd\]'"):
        perdure.open(path)
    with pytest.raises(UnsupportedError, match=r"perdure\[zstd\]"):
        perdure.open(address(tmp_path / "new.db"))


def test_a_newer_dictionary_is_a_newer_version(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with perdure.open(address(path)) as store:
        talk(store.session("s"), 1)
    db = apsw.Connection(str(path))
    db.execute("insert into dictionary values (9)")
    db.close()
    with pytest.raises(VersionError, match="dictionary 9"):
        perdure.open(path)


def test_an_unknown_compression_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="use compress='zstd'"):
        perdure.open(f"sqlite:{tmp_path}/s.db?compress=gzip")
    assert not (tmp_path / "s.db").exists()


def test_the_view_says_that_it_does_not_show_a_packed_entry(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with perdure.open(address(path)) as store:
        talk(store.session("s"), 1)
    db = apsw.Connection(str(path))
    rows = db.execute("select position, kind, payload from record order by position").fetchall()
    assert rows == [(1, "turn.begun", None), (2, "message", None), (3, None, None), (4, None, None)]
    db.close()
