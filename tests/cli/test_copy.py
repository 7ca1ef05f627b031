"""`perdure copy`: what it says, what it refuses, how it ends."""

import signal
import sys
import time
from pathlib import Path

import pytest

import perdure
from perdure.backends.files.backend import FilesBackend
from perdure.backends.sqlite.backend import SqliteBackend
from perdure.cli.copy import _CopyBar
from perdure.journal.copying.requests import CopyProgress
from tests.cli.support import ESCAPES, SNEAKY, damage, fill, invoke, objects, said, start
from tests.cli.test_verify import Terminal
from tests.journal.copying.stores import shown


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return fill(tmp_path / "agents.db")


def same(path: Path, folder: Path) -> bool:
    one, two = SqliteBackend(path), FilesBackend(folder)
    try:
        return shown(one) == shown(two)
    finally:
        one.close()
        two.close()


def test_a_store_is_copied_and_it_says_how_to_finish(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    result = invoke(None, "copy", str(path), f"files:{folder}")
    assert result.exit_code == 0
    assert result.stdout.startswith("copied 4 sessions, ")
    assert "Caught up" in result.stdout
    assert f"perdure copy --final {path} files:{folder}" in result.stdout
    assert same(path, folder)
    result = invoke(None, "copy", "--final", str(path), f"files:{folder}")
    assert result.exit_code == 0
    assert result.stdout.startswith("copied nothing")
    assert "all equal" in result.stdout


def test_json_is_one_object(path: Path, tmp_path: Path) -> None:
    (found,) = objects(invoke(None, "copy", "--json", str(path), str(tmp_path / "b.db")))
    assert found["complete"] is True
    assert (found["sessions"], found["problems"], found["left"]) == (4, [], 0)
    assert found["source"] == f"sqlite:{path}"


def test_a_dry_run_makes_nothing(path: Path, tmp_path: Path) -> None:
    result = invoke(None, "copy", "--dry-run", str(path), str(tmp_path / "b.db"))
    assert result.exit_code == 0
    assert result.stdout.startswith("would copy 4 sessions, ")
    assert not (tmp_path / "b.db").exists()


def test_what_can_not_be_copied_is_named_and_ends_with_one(path: Path, tmp_path: Path) -> None:
    with perdure.open(tmp_path / "b.db") as store:
        store.session("empty-handed").append(said("somebody else's"))
    damage(path, "update entry set body = '[]' where stream = :place and position = 3")
    result = invoke(None, "copy", str(path), str(tmp_path / "b.db"))
    assert result.exit_code == 1
    assert "not copied: 3 sessions" in result.stdout
    assert "claim-4711: damaged (entry 2)" in result.stdout
    assert "empty-handed: conflict" in result.stdout
    assert "what-if: past" in result.stdout
    with perdure.open(tmp_path / "b.db") as store:
        assert [head.id for head in store.sessions()] == ["empty-handed"]


def test_sessions_can_be_chosen(path: Path, tmp_path: Path) -> None:
    result = invoke(None, "copy", "--session", "what-if", str(path), str(tmp_path / "b.db"))
    assert result.exit_code == 0
    assert "parents of branches: claim-4711" in result.stdout
    result = invoke(None, "copy", "--label", "vip", str(path), str(tmp_path / "c.db"))
    assert result.stdout.startswith("copied 1 session, ")
    result = invoke(None, "copy", "--prefix", "empty", str(path), str(tmp_path / "d.db"))
    assert result.stdout.startswith("copied 1 session, ")


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("nope.db", "b.db"), 3, "There is no store"),
        (("agents.db", "agents.db"), 2, "same store"),
        (("agents.db", "memory:"), 2, "memory store"),
        (("memory:", "b.db"), 2, "memory store"),
        (("agents.db",), 2, "TO"),
        (("agents.db", "nonsense:x"), 2, "unknown scheme"),
        (("--watch", "--final", "agents.db", "b.db"), 2, "--watch"),
        (("--session", "no-such", "agents.db", "b.db"), 1, "'no-such' not found"),
        (("--session", "a", "--prefix", "a", "agents.db", "b.db"), 2, "not both"),
        (("agents.db", "nowhere/b.db"), 3, "no directory"),
    ],
)
def test_wrong_calls_end_with_one_line(
    path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: int, text: str
) -> None:
    monkeypatch.chdir(path.parent)
    result = invoke(None, "copy", *arguments)
    assert result.exit_code == code
    assert text in result.stderr
    assert not (path.parent / "nope.db").exists()


def test_nothing_stored_can_rewrite_the_screen(tmp_path: Path) -> None:
    name = "a \u202e b"
    for file, text in (("a.db", "one"), ("b.db", "two")):
        with perdure.open(tmp_path / file) as store:
            store.session(name).append(said(text))
    result = invoke(None, "copy", str(tmp_path / "a.db"), str(tmp_path / "b.db"))
    assert result.exit_code == 1
    assert not set(SNEAKY) & set(result.stdout)


def test_passwords_are_not_repeated() -> None:
    from perdure.cli.copy import _final_command

    command = _final_command("postgresql://me:secret@host/db", "files:a b")
    assert command == "perdure copy --final postgresql://me@host/db 'files:a b'"
    assert _final_command("-a.db", "b.db") == "perdure copy --final -- -a.db b.db"


def test_watching_copies_what_is_written_until_it_is_stopped(path: Path, tmp_path: Path) -> None:
    running = start(
        *("copy", "--watch", "--json", str(path), "files:copy"),
        folder=tmp_path,
    )
    try:
        assert running.stdout is not None
        assert '"sessions": 4' in running.stdout.readline()
        with perdure.open(path) as store:
            store.session("new").append(said("hello"))
        assert '"sessions": 1' in running.stdout.readline()
        time.sleep(0.1)
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 0
    finally:
        running.kill()
        running.communicate()
    assert same(path, tmp_path / "copy")


def test_a_bar_shows_how_far_each_phase_is(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr("perdure.cli.terminal.BAR_DELAY", 0.01)

    def shows(text: str, reached: CopyProgress) -> bool:
        bar.show(reached)
        deadline = time.monotonic() + 60
        while text not in ESCAPES.sub("", terminal.text) and time.monotonic() < deadline:
            time.sleep(0.01)
        return text in ESCAPES.sub("", terminal.text)

    begun = CopyProgress("counting", 0, 0, 0, 0, 0, round=0)
    with _CopyBar() as bar:
        assert shows("counting 0 sessions, ", begun)
        assert shows("counting 128 sessions, ", begun._replace(sessions=128))
        copying = CopyProgress("copying", 0, 200, 5, 10, 2048, round=1)
        assert shows(f"copying {'━' * 10}╺{'━' * 9} 5 of 10 records", copying)
        assert shows(" s  2.0 kB", copying)
        assert shows("10 of 10 records", copying._replace(records=10))
        verifying = CopyProgress("verifying", 50, 200, 7, 10, 4096, round=2)
        assert shows(f"verifying {'━' * 5}╺{'━' * 14} 50 of 200 sessions", verifying)
        assert shows(" s  7 records", verifying)
    with _CopyBar() as bar:  # Nothing is new: what takes long is to look at all of them.
        nothing = CopyProgress("copying", 64, 128, 0, 0, 0, round=1)
        assert shows(f"copying {'━' * 10}╺{'━' * 9} 64 of 128 sessions", nothing)


def streams_in(folder: Path) -> int:
    """Return how many files the copy has; none if a folder went while it was looked at."""
    try:
        return sum(1 for _ in folder.glob("copy/*/*.jsonl"))
    except FileNotFoundError:
        return 0


def test_a_copy_that_was_killed_goes_on(tmp_path: Path) -> None:
    with perdure.open(tmp_path / "agents.db") as store:
        for number in range(60):
            store.session(f"{number:03}").append(said("x" * 2000))
    for _ in range(2):
        running = start("copy", "agents.db", "files:copy", folder=tmp_path)
        deadline = time.monotonic() + 60
        before = streams_in(tmp_path)
        while time.monotonic() < deadline and running.poll() is None:
            if streams_in(tmp_path) > before:
                break
        running.kill()
        running.communicate()
    result = invoke(None, "copy", "--final", f"{tmp_path}/agents.db", f"files:{tmp_path}/copy")
    assert result.exit_code == 0
    assert same(tmp_path / "agents.db", tmp_path / "copy")
