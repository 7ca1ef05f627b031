"""`perdure tail`: the last records, and new ones of other processes."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import perdure
from perdure.backends.sqlite.backend import SqliteBackend
from perdure.cli import tail
from perdure.cli.stores import OpenStore
from perdure.errors import UnavailableError
from tests.cli.support import damage, fill, invoke, objects, said, start

posix = pytest.mark.skipif(os.name != "posix", reason="needs signals of POSIX")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return fill(tmp_path / "agents.db")


def test_the_last_records_are_shown_a_line_each(path: Path) -> None:
    done = invoke(path, "tail", "claim-4711", "-n", "4")
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "    15  2026-01-01 00:13:00  branch what-if begins",
        "    16  2026-01-01 00:15:00  branch what-if is complete, and keeps this session",
        "    17  2026-01-01 00:17:00  turn (req-11) begins",
        "    18  2026-01-01 00:17:00  user: And then?",
    ]
    assert len(invoke(path, "tail", "claim-4711").stdout.splitlines()) == 10
    assert len(invoke(path, "tail", "claim-4711", "-n", "99").stdout.splitlines()) == 18
    assert invoke(path, "tail", "claim-4711", "-n", "0").stdout == ""


def test_every_kind_of_record_has_words(path: Path) -> None:
    with perdure.open(path) as store:
        store.delete("what-if")
        (turn,) = store.session("claim-4711").interrupted
        with turn:
            pass
    shown = invoke(path, "tail", "claim-4711", "-n", "99").stdout
    for words in ("is released", "is resumed", "is complete", "FAILED", "labels +"):
        assert words in shown


def test_json_lines_are_those_of_show(path: Path) -> None:
    shown = objects(invoke(path, "show", "claim-4711", "--json"))
    assert objects(invoke(path, "tail", "claim-4711", "--json", "-n", "3")) == shown[-3:]


def test_what_can_not_be_read_is_said_in_its_place(path: Path) -> None:
    damage(
        path,
        "update entry set body = 'x' || substr(body, 2) where stream = :place and position = 18",
    )
    done = invoke(path, "tail", "claim-4711", "-n", "2")
    assert done.exit_code == 1
    bad, good = done.stdout.splitlines()
    assert bad == "    17  UNREADABLE: its body does not match the digest in its header"
    assert good.endswith("user: And then?")
    found = objects(invoke(path, "tail", "claim-4711", "-n", "2", "--json"))
    assert list(found[0]) == ["session", "position", "unreadable"]


class Streaming:
    """The lines of a process as they come."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.out: list[str] = []
        self.err: list[str] = []
        for stream, lines in ((process.stdout, self.out), (process.stderr, self.err)):
            assert stream is not None
            threading.Thread(target=_gather, args=(stream, lines), daemon=True).start()

    def wait_for(self, text: str, *, err: bool = False) -> None:
        lines = self.err if err else self.out
        deadline = time.monotonic() + 60
        while not any(text in line for line in lines):
            assert time.monotonic() < deadline, (text, self.out, self.err)
            time.sleep(0.02)


def _gather(stream: Iterator[str], lines: list[str]) -> None:
    for line in stream:
        lines.append(line)  # noqa: PERF402 - one by one, as they come.


@contextmanager
def following(path: Path, session: str, *options: str) -> Iterator[Streaming]:
    with start(
        "tail", session, "-f", "--store", str(path), *options, folder=path.parent
    ) as process:
        try:
            yield Streaming(process)
        finally:
            process.kill()


@posix
def test_new_records_of_other_processes_are_followed_until_ctrl_c(path: Path) -> None:
    with following(path, "claim-4711", "-n", "1") as lines:
        lines.wait_for("user: And then?")
        with perdure.open(path) as store:
            store.session("claim-4711").note("while you look")
            lines.wait_for("note: while you look")
        lines.process.send_signal(signal.SIGINT)
        assert lines.process.wait(60) == 0
    assert lines.err == []
    assert len(lines.out) == 2


@posix
def test_a_session_may_be_created_later_deleted_and_created_again(path: Path) -> None:
    with following(path, "later") as lines, perdure.open(path) as store:
        lines.wait_for("There is no session 'later' yet: waiting for it.", err=True)
        store.session("later").append(said("first"))
        lines.wait_for("user: first")
        store.delete("later", reason="done")
        lines.wait_for("DELETED: all earlier records are dropped: done")
        lines.wait_for("Session 'later' was deleted. It may be created again.", err=True)
        store.session("later").append(said("again"))
        lines.wait_for("user: again")
        lines.process.send_signal(signal.SIGINT)
        assert lines.process.wait(60) == 0


class _EnoughError(Exception):
    pass


@pytest.fixture
def source(path: Path) -> Iterator[OpenStore]:
    backend = SqliteBackend(path)
    with perdure.open(backend) as store:
        yield OpenStore(store, backend)


def follow(lines: "tail._RecordPrinter", steps: list[Callable[[], object]]) -> list[float]:
    """Follow with things that happen during the pauses; return the pauses."""
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if not steps:
            raise _EnoughError
        steps.pop(0)()

    with pytest.raises(_EnoughError):
        lines.follow(sleep)
    return pauses


def nothing() -> None:
    pass


def test_pauses_grow_while_nothing_comes_and_are_short_again_after(source: OpenStore) -> None:
    lines = tail._RecordPrinter(source, "claim-4711", as_json=True)
    lines.last(0)
    session = source.store.session("claim-4711")
    pauses = follow(lines, [*[nothing] * 12, lambda: session.note("x"), nothing])
    assert pauses[:12] == sorted(pauses[:12])
    assert pauses[11] == tail.LONGEST_PAUSE
    assert pauses[13] == tail.FIRST_PAUSE


def test_a_store_that_does_not_answer_is_told_of_once(
    source: OpenStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = tail._RecordPrinter(source, "claim-4711", as_json=False)
    lines.last(0)
    streams = SqliteBackend.streams

    def down() -> None:
        def fail(*_: object, **__: object) -> None:
            raise UnavailableError("sqlite:x", "locked")

        monkeypatch.setattr(SqliteBackend, "streams", fail)

    def up() -> None:
        monkeypatch.setattr(SqliteBackend, "streams", streams)
        source.store.session("claim-4711").note("after")

    follow(lines, [down, nothing, nothing, up, nothing])
    shown = capsys.readouterr()
    assert shown.err.count("locked") == 1
    assert "note: after" in shown.out


def test_records_that_were_dropped_unseen_are_counted(
    source: OpenStore, capsys: pytest.CaptureFixture[str]
) -> None:
    session = source.store.session("short")
    session.note("one")
    lines = tail._RecordPrinter(source, "short", as_json=False)
    lines.last(1)

    def write_and_delete() -> None:
        session.note("two")
        session.note("three")
        source.store.delete("short")

    follow(lines, [write_and_delete, nothing])
    shown = capsys.readouterr()
    assert "2 records before it: dropped before they were shown." in shown.err
    assert "DELETED" in shown.out
