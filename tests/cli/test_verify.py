"""`perdure verify`: what is whole, what is damaged, and what is saved."""

import base64
import json
import os
import re
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
from click.testing import Result

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.backends.postgres.address import parse_address, quote_identifier
from perdure.backends.sqlite.backend import SqliteBackend
from perdure.cli.terminal import ProgressBar
from perdure.errors import NotFoundError
from perdure.safe_text import safe
from tests.cli.support import (
    ESCAPES,
    damage,
    fill,
    flip,
    invoke,
    objects,
    said,
    write_as_newer,
)

posix = pytest.mark.skipif(os.name != "posix", reason="needs a terminal of POSIX")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return fill(tmp_path / "agents.db")


def sessions(result: Result) -> list[dict[str, Any]]:
    """The lines about sessions; the last line is about the store."""
    found = objects(result)
    assert "store" in found[-1]
    return found[:-1]


def test_whole_sessions_are_ok_one_by_one_and_in_sum(path: Path) -> None:
    done = invoke(path, "verify")
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "OK       claim-4711  18 records",
        "OK       empty-handed  1 record",
        "OK       gone  1 record, complete from 2",
        "OK       what-if  7 records",
        "4 sessions checked, none damaged.",
        "The store itself is intact.",
    ]
    assert invoke(path, "verify", "-q").stdout.splitlines() == done.stdout.splitlines()[-2:]
    assert "The store itself" not in invoke(path, "verify", "gone").stdout


def test_sessions_are_chosen_by_id_or_by_prefix(path: Path) -> None:
    chosen = [one["session"] for one in objects(invoke(path, "verify", "gone", "gone", "--json"))]
    assert chosen == ["gone"]
    chosen = [one["session"] for one in sessions(invoke(path, "verify", "--prefix", "w", "--json"))]
    assert chosen == ["what-if"]
    done = invoke(path, "verify", "--prefix", "nothing")
    assert done.exit_code == 1
    assert "No session matches" in done.stderr


def test_ids_and_a_prefix_are_not_taken_together(path: Path) -> None:
    done = invoke(path, "verify", "gone", "--prefix", "w")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "Give ids or --prefix, not both." in done.stderr


def test_an_empty_store_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    perdure.open(path).close()
    done = invoke(path, "verify")
    expected = "0 sessions checked, none damaged.\nThe store itself is intact.\n"
    assert (done.exit_code, done.stdout) == (0, expected)


def test_json_says_what_was_checked(path: Path) -> None:
    with perdure.open(path) as store:
        verified = store.session("claim-4711").verify()
    (found,) = objects(invoke(path, "verify", "claim-4711", "--json"))
    assert found == {
        "session": "claim-4711",
        "state": "ok",
        "records": 18,
        "position": 18,
        "digest": verified.digest,
        "complete_from": 1,
        "half_copied": False,
        "first_bad": None,
        "problems": [],
    }


def test_half_a_copy_is_told_of(path: Path) -> None:
    with closing(apsw.Connection(str(path))) as db:
        db.execute("update head set labels = '[\"half-copied\"]' where name = 'claim-4711'")
        db.execute("delete from label where name = 'claim-4711'")
        db.execute(
            "insert into label select 'half-copied', name, id from head where name = 'claim-4711'"
        )
    assert "an incomplete copy: copy it again" in invoke(path, "verify", "claim-4711").output


def test_a_flipped_bit_is_found_and_exits_with_1(path: Path) -> None:
    flip(path, b"checked by phone")
    done = invoke(path, "verify")
    assert done.exit_code == 1
    assert done.stdout.splitlines()[:3] == [
        "DAMAGED  claim-4711  first bad position 10",
        "         10: its body does not match the digest in its header",
        "         17 records can be read",
    ]
    assert done.stdout.splitlines()[-3:] == [
        "4 sessions checked, 1 damaged.",
        "The store itself is intact.",
        "Keep a copy of the store. --salvage FILE saves the readable records.",
    ]
    found = sessions(invoke(path, "verify", "--json"))
    assert [one["state"] for one in found] == ["damaged", "ok", "ok", "ok"]
    assert found[0]["first_bad"] == 10
    assert [problem["position"] for problem in found[0]["problems"]] == [10]


def test_damage_of_a_shared_past_is_found_in_the_branch_too(path: Path) -> None:
    flip(path, b"You are a claims assistant.")
    found = {one["session"]: one["first_bad"] for one in sessions(invoke(path, "verify", "--json"))}
    assert found == {"claim-4711": 1, "empty-handed": None, "gone": None, "what-if": 1}


def test_a_branch_whose_past_was_deleted_is_damaged(path: Path, tmp_path: Path) -> None:
    with closing(SqliteBackend(path)) as backend, closing(MemoryBackend()) as elsewhere:
        perdure.copy(backend, elsewhere, sessions=["claim-4711"])
        perdure.open(elsewhere).delete("claim-4711")
        (head,) = backend.streams(prefix="claim-4711")
        assert backend.remove("claim-4711", digest=head.digest)
        assert perdure.copy(elsewhere, backend).complete
    target = tmp_path / "saved.jsonl"
    done = invoke(path, "verify", "--salvage", str(target))
    assert done.exit_code == 1
    assert "DAMAGED  what-if" in done.stdout
    assert "the history shared with its branch was deleted" in done.stdout
    assert "4 sessions checked, 1 damaged." in done.stdout


def test_a_session_that_is_deleted_meanwhile_is_whole(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = perdure.Store.session, ["empty-handed"]

    def session(store: perdure.Store, name: str) -> perdure.Session:
        found = real(store, name)
        if name in left:
            left.remove(name)
            store.delete(name)
            raise NotFoundError(f"session {name!r}", "it was deleted while it was being read")
        return found

    monkeypatch.setattr(perdure.Store, "session", session)
    assert invoke(path, "verify").exit_code == 0
    assert not left


@pytest.fixture(params=["sqlite", "postgres"])
def headless(request: pytest.FixtureRequest, path: Path) -> str:
    """A store with a session whose head somebody deleted."""
    if request.param == "sqlite":
        damage(path, "delete from head where id = :place", "empty-handed")
        damage(path, "delete from label where stream = :place", "empty-handed")
        return str(path)
    address: str = request.getfixturevalue("postgres_store")
    perdure.copy(path, address)
    schema = parse_address(address).schema
    with psycopg.connect(address.partition("?")[0], autocommit=True) as db:
        for table in ("head", "label"):
            sql = f"delete from {quote_identifier(schema)}.{table} where name = 'empty-handed'"  # noqa: S608 - quoted
            db.execute(sql.encode())
    return address


def test_a_session_without_its_head_is_not_unknown(headless: str, tmp_path: Path) -> None:
    done = invoke(headless, "verify", "empty-handed")
    assert done.exit_code == 1
    assert "DAMAGED  empty-handed" in done.stdout
    assert re.search("it has entries and no head", done.stdout)
    shown = invoke(headless, "show", "empty-handed")
    assert shown.exit_code == 1
    assert "it has entries and no head" in shown.stderr
    copied = perdure.copy(headless, tmp_path / "copy.db", sessions=["empty-handed"])
    assert [(one.session, one.kind) for one in copied.problems] == [("empty-handed", "damaged")]
    done = invoke(headless, "verify", "empty")
    assert "There is no session" in done.stderr


def test_stretches_of_the_same_damage_are_told_of_together(path: Path) -> None:
    damage(path, "update entry set body = 'x' where stream = :place and position between 3 and 5")
    shown = invoke(path, "verify", "claim-4711").stdout
    assert "         2 to 5: its body does not match the digest in its header\n" in shown


def test_many_stretches_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "many.db"
    with perdure.open(path) as store:
        session = store.session("claim-4711")
        for number in range(60):
            session.note(number)
    damage(path, "update entry set body = 'x' where stream = :place and position % 3 = 0")
    shown = invoke(path, "verify").stdout
    assert "and 10 more ranges like these: --json lists all of them" in shown
    assert len(objects(invoke(path, "verify", "--json"))[0]["problems"]) == 20


def test_damage_that_is_not_in_one_entry_says_so(path: Path) -> None:
    damage(path, "update head set labels = '[\"other\"]' where id = :place")
    done = invoke(path, "verify", "claim-4711")
    assert done.exit_code == 1
    assert "DAMAGED  claim-4711  not in one entry\n" in done.stdout
    assert "18 records can be read" in done.stdout


def test_a_damaged_head_does_not_hide_the_others(path: Path) -> None:
    damage(path, "update head set digest = 1.5 where id = :place", "empty-handed")
    found = {one["session"]: one["state"] for one in sessions(invoke(path, "verify", "--json"))}
    whole = dict.fromkeys(("claim-4711", "gone", "what-if"), "ok")
    assert found == {**whole, "empty-handed": "damaged"}


def test_what_a_newer_perdure_wrote_is_no_damage(path: Path) -> None:
    write_as_newer(path, "empty-handed")
    done = invoke(path, "verify", "empty-handed")
    assert done.exit_code == 3
    assert done.stdout.startswith("NEWER    empty-handed  'empty-handed' entry 1 has version 2")
    assert "none damaged, 1 of a newer version." in done.stdout


def test_salvage_saves_every_record_that_can_be_read(path: Path, tmp_path: Path) -> None:
    before = objects(invoke(path, "show", "claim-4711", "--json"))
    flip(path, b"checked by phone")
    target = tmp_path / "saved.jsonl"
    done = invoke(path, "verify", "--salvage", str(target))
    assert done.exit_code == 1
    saved = [json.loads(line) for line in target.read_text("ascii").splitlines()]
    assert [one for one in saved if "content" in one] == before[:9] + before[10:]
    (lost,) = [one for one in saved if "unreadable" in one]
    assert (lost["session"], lost["position"]) == ("claim-4711", 10)
    assert f"17 records saved to {target}, 1 could not be read." in done.stdout


def test_salvage_saves_the_parts_of_large_bodies(tmp_path: Path) -> None:
    path, target = tmp_path / "media.db", tmp_path / "saved.jsonl"
    data = bytes(range(256)) * 8_000
    with perdure.open(path) as store:
        session = store.session("s")
        session.set("v", session.upload(data))
        session.append(said("lost"))
        session.append(said("last"))
    flip(path, b"lost")
    invoke(path, "verify", "--salvage", str(target))
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    parts = [row["content"]["data"] for row in rows if row.get("kind") == "part"]
    assert b"".join(map(base64.b64decode, parts)) == data
    (value,) = [row["content"] for row in rows if row.get("kind") == "value"]
    assert value["data"]["$large"]["parts"] == [[1, 2]]


def test_salvage_overwrites_nothing_and_makes_no_file_in_vain(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "saved.jsonl"
    assert invoke(path, "verify", "--salvage", str(target)).exit_code == 0
    assert not target.exists()
    target.write_text("mine")
    done = invoke(path, "verify", "--salvage", str(target))
    assert done.exit_code == 2
    assert "exists: name a new file" in done.stderr
    assert target.read_text() == "mine"


def test_a_file_of_noise_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    path = tmp_path / "noise.db"
    path.write_bytes(bytes(range(256)) * 64)
    done = invoke(path, "verify")
    assert done.exit_code == 1
    assert done.stderr.count("\n") == 1


def test_pages_that_sqlite_can_not_read_end_the_list_with_a_line(tmp_path: Path) -> None:
    path = tmp_path / "pages.db"
    with perdure.open(path) as store:
        for number in range(300):
            store.session(f"session-{number:03}").append(said("x" * 400))
    db = apsw.Connection(str(path))
    indexes = "select rootpage from sqlite_schema where name in ('head_name', 'head_live')"
    data = bytearray(path.read_bytes())
    found: list[tuple[int]] = list(db.execute(indexes))
    for (page,) in found:
        data[(page - 1) * 4096 : page * 4096] = b"\xff" * 4096
    db.close()
    path.write_bytes(data)
    for command in ("verify", "ls", "stats"):
        done = invoke(path, command)
        assert done.exit_code == 1
        assert done.output.count("\n") < 40


# The bar.


class Terminal:
    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass


def test_a_bar_is_shown_for_what_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr("perdure.cli.terminal.BAR_DELAY", 0.01)
    with ProgressBar("verifying", "session", lambda: 4) as progress:
        progress.at, progress.done = "claim\x1b[2J", 1
        deadline = time.monotonic() + 60
        while "1 of 4 sessions" not in terminal.text and time.monotonic() < deadline:
            time.sleep(0.01)
        progress.hide()
    shown = ESCAPES.sub("", terminal.text)
    assert re.search(r"verifying ━{5}╺━{14} 1 of 4 sessions, \d+ s", shown)
    assert safe("\x1b[2J") in shown
    assert "\x1b[2J" not in terminal.text
    assert terminal.text.endswith("\x1b[2K")


def test_no_bar_is_shown_for_what_is_quick_or_piped(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr("perdure.cli.terminal.BAR_DELAY", 60.0)
    with ProgressBar("verifying", "session", lambda: 4):
        pass
    monkeypatch.setattr(terminal, "isatty", lambda: False)
    monkeypatch.setattr("perdure.cli.terminal.BAR_DELAY", 0.0)
    with ProgressBar("verifying", "session", lambda: 4):
        time.sleep(0.05)
    assert terminal.text == ""


EMPTY_INDEX = b"\x0a\0\0\0\0\x10\0\0".ljust(4096, b"\0")


def empty_index(path: Path, name: str) -> None:
    """Put an empty page in the place of an index, as a disk that wrote to a wrong place would."""
    with closing(apsw.Connection(str(path))) as db:
        page = db.execute("select rootpage from sqlite_schema where name = ?", (name,)).get
    content = path.read_bytes()
    path.write_bytes(content[: (page - 1) * 4096] + EMPTY_INDEX + content[page * 4096 :])


def test_a_store_that_lists_no_session_is_not_called_whole(path: Path, tmp_path: Path) -> None:
    """Every session can be opened by its id, and the list is empty without a word."""
    empty_index(path, "head_name")
    with perdure.open(path) as store:
        assert list(store.sessions(deleted=True)) == []
        assert store.verify().problems
    done = invoke(path, "verify")
    assert done.exit_code == 1
    assert "DAMAGED  claim-4711" in done.stdout
    assert "The store itself is damaged" in done.stdout
    assert "its index lists 0 sessions, its table 4" in done.stdout
    found = objects(invoke(path, "verify", "--json"))
    assert found[-1]["state"] == "damaged"
    assert {one["session"] for one in found[-1]["problems"]} >= {None, "claim-4711", "gone"}
    copied = invoke(None, "copy", str(path), str(tmp_path / "copy.db"))
    assert copied.exit_code == 1
    assert "a store is damaged, and sessions may be missing" in copied.stdout
    result = perdure.copy(path, tmp_path / "other.db")
    assert not result.complete
    assert {problem.kind for problem in result.problems} == {"store"}
    assert invoke(path, "verify", "--prefix", "claim").exit_code == 1


def test_a_session_whose_head_is_gone_is_found_without_its_id(
    headless: str, tmp_path: Path
) -> None:
    done = invoke(headless, "verify")
    assert done.exit_code == 1
    assert "entries of a stream that has no head" in done.stdout
    for final in (False, True):
        copied = perdure.copy(headless, tmp_path / f"copy-{final}.db", final=final)
        assert [(one.session, one.kind) for one in copied.problems] == [("", "store")]
    with perdure.open(headless) as store:
        result = store.verify()
    assert (result.sessions, result.ok, result.compared) == (3, False, True)


def test_sessions_by_id_are_copied_and_verified_whatever_the_lists_say(
    headless: str, tmp_path: Path
) -> None:
    """The twin: what is named need not be listed."""
    assert invoke(headless, "verify", "claim-4711").exit_code == 0
    assert perdure.copy(headless, tmp_path / "copy.db", sessions=["claim-4711"]).complete


def records_of(path: Path) -> dict[str, list[int]]:
    with perdure.open(path) as store:
        ids = [info.id for info in store.sessions(deleted=True)]
        return {name: [one.position for one in store.records(name)] for name in ids}


def saved_in(target: Path) -> dict[str, list[int]]:
    saved: dict[str, list[int]] = {}
    for line in map(json.loads, target.read_text().splitlines()):
        if "unreadable" not in line:
            saved.setdefault(line["session"], []).append(line["position"])
    return saved


def test_a_file_that_was_cut_off_is_salvaged(path: Path, tmp_path: Path) -> None:
    with perdure.open(path) as store:
        for number in range(200):
            store.session("long").append(said(f"{number} " + "x" * 1000))
    good = records_of(path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2 + 100])
    target = tmp_path / "saved.jsonl"
    alone = invoke(path, "verify")
    assert (alone.exit_code, alone.stdout) == (1, "")
    assert "perdure verify --salvage FILE" in alone.stderr
    done = invoke(path, "verify", "--salvage", str(target))
    assert done.exit_code == 1
    assert "The store itself is damaged" in done.stdout
    saved = saved_in(target)
    assert saved["claim-4711"] == good["claim-4711"]
    assert saved["what-if"] == good["what-if"]
    assert 80 < len(saved["long"]) < 150
    assert set(saved["long"]) < set(good["long"])
    assert "SAVED    claim-4711  18 records" in done.stdout
    assert "could not be read" in done.stdout
    assert path.read_bytes() == content[: len(content) // 2 + 100]
    assert not [*tmp_path.glob(".perdure-salvage-*")]


def test_what_is_left_of_a_file_can_be_copied(path: Path, tmp_path: Path) -> None:
    good = records_of(path)
    empty_index(path, "entry_place")
    done = invoke(None, "copy", "--salvage", str(path), str(tmp_path / "new.db"))
    assert done.exit_code == 0, done.output
    assert records_of(tmp_path / "new.db") == good
    assert invoke(tmp_path / "new.db", "verify").exit_code == 0
    done = invoke(None, "copy", "--salvage", "files:x", str(tmp_path / "other.db"))
    assert done.exit_code != 0
    done = invoke(None, "copy", "--salvage", "--final", str(path), str(tmp_path / "other.db"))
    assert done.exit_code == 2


def test_a_salvaged_session_without_its_head_is_marked_as_a_part(
    path: Path, tmp_path: Path
) -> None:
    damage(path, "delete from head where id = :place", "empty-handed")
    target = tmp_path / "saved.jsonl"
    done = invoke(path, "verify", "--salvage", str(target))
    assert saved_in(target) == {"empty-handed": [1]}
    assert "its head was lost: records after the last readable one may be missing" in done.stdout
    invoke(None, "copy", "--salvage", str(path), str(tmp_path / "new.db"))
    done = invoke(tmp_path / "new.db", "verify")
    assert "empty-handed  1 record; an incomplete copy: copy it again" in done.stdout


def test_a_store_with_a_damaged_log_is_salvaged_behind_the_damage(tmp_path: Path) -> None:
    path, log = tmp_path / "agents.db", tmp_path / "agents.db-wal"
    code = f"""
import os, perdure
session = perdure.open({str(path)!r}).session("a")
for number in range(30):
    session.note(number)
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 1
    log.write_bytes(content)
    done = invoke(path, "ls")
    assert done.exit_code == 1
    assert "its write-ahead log is damaged" in done.stderr
    target = tmp_path / "saved.jsonl"
    done = invoke(path, "verify", "--salvage", str(target))
    assert done.exit_code == 1
    assert len(saved_in(target)["a"]) >= 29
    assert log.read_bytes() == content
    copied = invoke(None, "copy", "--salvage", str(path), str(tmp_path / "new.db"))
    assert copied.exit_code in (0, 1)


def test_a_store_that_cannot_compare_itself_says_so(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unable = SqliteBackend.capabilities - {"check"}
    monkeypatch.setattr(SqliteBackend, "capabilities", unable)
    done = invoke(path, "verify")
    assert done.exit_code == 0
    assert "The store cannot compare itself with its list of sessions" in done.stdout
    assert objects(invoke(path, "verify", "--json"))[-1]["state"] == "unchecked"
    with perdure.open(path) as store:
        assert store.verify().compared is False
