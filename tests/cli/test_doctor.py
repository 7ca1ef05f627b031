"""`perdure doctor`: what it finds, what it calls weak or unusable, and that it leaves nothing."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import Result

import perdure
from perdure.backends import filesystem
from perdure.backends.memory import MemoryBackend
from perdure.backends.protocol import STORED, WATCH, Append, Backend, Outcome
from perdure.backends.sqlite.backend import SqliteBackend
from perdure.cli.doctor import command, environment, scratch, trials
from perdure.errors import UnavailableError
from perdure.testing import Slow
from perdure.testing.faults import BackendWrapper
from tests.cli.support import damage, fill, invoke, objects, start
from tests.journal.copying.stores import shown


@pytest.fixture(autouse=True)
def on_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let the machine believe that everything lies on a disk, wherever the tests run."""

    def mount(kind: str) -> None:
        table = tmp_path / f"mountinfo-{kind}"  # What a table says is remembered.
        table.write_text(f"22 1 254:0 / / rw - {kind} there rw\n")
        monkeypatch.setattr(filesystem, "MOUNTINFO", table)

    mount("ext4")
    return mount


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return fill(tmp_path / "data" / "agents.db")


def examined(address: object, *more: str) -> tuple[int, dict[str, Any]]:
    result = invoke(None, "doctor", "--json", "--appends", "5", *more, str(address))
    (found,) = objects(result)
    return result.exit_code, found


def named(found: dict[str, Any], name: str) -> dict[str, Any]:
    findings = [*found["opening"], *found["machine"], *found["trials"]]
    (one,) = [finding for finding in findings if finding["name"] == name]
    return dict(one)


def with_backend(monkeypatch: pytest.MonkeyPatch, backend: Backend) -> Result:
    """Examine a backend that behaves badly, in the place of a SQLite file's."""
    monkeypatch.setattr(command, "open_backend", lambda _: backend)
    monkeypatch.setattr(type(backend), "close", lambda _: None)
    monkeypatch.setattr(command, "path_of", lambda _: None)
    return invoke(None, "doctor", "--appends", "5", "agents.db")


@pytest.mark.parametrize("scheme", ["sqlite", "files"])
def test_a_good_store_is_sound_and_holds_what_it_held(path: Path, scheme: str) -> None:
    address = str(path)
    if scheme == "files":
        address = f"files:{path.parent / 'state'}"
        perdure.copy(path, address)
    with perdure.open(address) as store:
        before = shown(store._backend)
    files = {one for one in path.parent.rglob("*") if one.suffix != ""}
    code, found = examined(address)
    assert (code, found["verdict"], found["exists"]) == (0, "sound", True)
    assert {one["name"] for one in found["trials"]} == {*trials.TRIALS}
    assert {one["verdict"] for one in found["trials"]} <= {"sound", "note"}
    assert found["guarantees"]["survives"] == "power loss"
    figures = named(found, "durable append")["data"]
    assert figures["appends"] == 5
    assert 0 < figures["median"] <= figures["p99"] <= figures["longest"]
    with perdure.open(address) as store:
        assert shown(store._backend) == before
    assert {one for one in path.parent.rglob("*") if one.suffix != ""} - files == set()


@pytest.mark.parametrize("address", ["{}/new.db", "files:{}/new"])
def test_a_store_that_is_not_there_is_not_made(tmp_path: Path, address: str) -> None:
    (tmp_path / "data").mkdir()
    code, found = examined(address.format(tmp_path / "data"))
    assert (code, found["exists"]) == (0, False)
    assert len(found["trials"]) == len(trials.TRIALS)
    assert [*(tmp_path / "data").iterdir()] == []


def test_people_are_told_that_nothing_was_made(tmp_path: Path) -> None:
    result = invoke(None, "doctor", "--appends", "1", str(tmp_path / "new.db"))
    assert "does not exist yet" in result.stdout


def test_people_get_a_verdict_what_it_means_and_what_to_change(path: Path) -> None:
    path.chmod(0o644)
    result = invoke(None, "doctor", str(path))
    assert result.exit_code == 0
    first = result.stdout.splitlines()[0]
    assert first == f"sqlite:{path} is sound: it keeps what perdure promises."
    for text in ("death and power loss", "one winner for each position", "median", "SQLite 3."):
        assert text in result.stdout
    assert all(len(line) <= 80 for line in result.stdout.splitlines()[1:])


def test_a_store_that_does_not_list_a_session_is_unusable(path: Path) -> None:
    assert named(examined(path)[1], "lists")["verdict"] == "sound"
    damage(path, "delete from head where id = :place", "empty-handed")
    code, found = examined(path)
    assert (code, found["verdict"]) == (2, "unusable")
    assert "entries of a stream that has no head" in named(found, "lists")["text"]
    assert "perdure verify" in named(found, "lists")["advice"]


def test_a_memory_store_is_weak() -> None:
    code, found = examined("memory:")
    assert (code, found["verdict"]) == (1, "weak")
    assert named(found, "durability")["advice"]
    assert named(found, "two writers")["verdict"] == "sound"


def test_a_file_system_in_memory_is_weak(path: Path, on_a_disk: Callable[[str], None]) -> None:
    on_a_disk("tmpfs")
    code, found = examined(path)
    assert (code, named(found, "file system")["verdict"]) == (1, "weak")
    assert "disk" in named(found, "file system")["advice"]


def test_a_network_file_system_is_unusable_unless_it_was_accepted(
    path: Path, on_a_disk: Callable[[str], None]
) -> None:
    on_a_disk("nfs4")
    code, found = examined(path)
    assert (code, found["verdict"]) == (2, "unusable")
    assert "?accept=network-filesystem" in named(found, "opening")["advice"]
    code, found = examined(f"{path}?accept=network-filesystem")
    assert (code, named(found, "accepted")["verdict"]) == (1, "weak")


def test_what_can_not_be_opened_is_unusable(tmp_path: Path) -> None:
    (tmp_path / "other.db").write_text("not a database, but long enough to be taken for one" * 20)
    for address in (tmp_path / "other.db", tmp_path / "nowhere" / "x.db", f"files:{__file__}"):
        result = invoke(None, "doctor", str(address))
        assert result.exit_code == 2, address
        assert "unusable" in result.stdout + result.stderr or "not a directory" in result.stderr


@pytest.mark.parametrize("form", ["u:secret@127.0.0.1:1/db", "127.0.0.1:1/db?password=secret"])
def test_a_password_is_not_shown_wherever_it_stands(form: str) -> None:
    result = invoke(None, "doctor", f"postgresql://{form}")
    assert result.exit_code == 2
    assert "127.0.0.1:1/db is unusable" in result.stdout
    assert "secret" not in result.output


def test_an_accepted_weakness_is_told_once(
    path: Path, on_a_disk: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    on_a_disk("nfs4")
    result = invoke(None, "doctor", "--appends", "1", f"{path}?accept=network-filesystem")
    assert result.stdout.count("network-filesystem: ") == 1
    assert "downgrade" not in caplog.text
    with caplog.at_level("WARNING"):
        perdure.open(f"{path}?accept=network-filesystem").close()
    assert "downgrade" in caplog.text, "and told again where nothing else says it"


def test_a_user_who_may_not_do_everything_is_told_what_to_grant(
    postgres_store: str, postgres_url: str
) -> None:
    with perdure.open(postgres_store) as store:
        store.session("s").append({"role": "user", "content": "hello"})
    reader, schema = "perdure_reader", postgres_store.partition("schema=")[2].partition("&")[0]
    address = f"postgresql://{reader}:x@{postgres_store.rpartition('@')[2]}"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f"create role {reader} login password 'x'".encode())
        try:
            admin.execute(f"grant usage on schema {schema} to {reader}".encode())
            admin.execute(f"grant select on {schema}.migration to {reader}".encode())
            nothing = examined(address)
            admin.execute(f"grant select on all tables in schema {schema} to {reader}".encode())
            reads = examined(address)
            with perdure.open(address) as store:
                assert len(store.session("s")) == 1
            most = f"insert, update on all tables in schema {schema}"
            admin.execute(f"grant {most} to {reader}".encode())
            writes = examined(address)
        finally:
            admin.execute(f"drop owned by {reader}".encode())
            admin.execute(f"drop role {reader}".encode())
    assert [nothing[0], reads[0], writes[0]] == [2, 1, 1]
    assert "select on entry, head, label, watch" in named(nothing[1], "opening")["text"]
    assert named(nothing[1], "opening")["advice"] == "grant them in the schema"
    assert "insert on entry, head, label, watch; update on" in named(reads[1], "writing")["text"]
    assert (
        named(writes[1], "writing")["text"] == "this user lacks delete on entry, head, label, watch"
    )
    assert writes[1]["trials"] == [], "what it leaves could not be removed"


def test_wrong_calls_are_told(tmp_path: Path) -> None:
    for arguments in (["nonsense:x"], ["--appends", "0", "x.db"], ["a.db", "b.db"]):
        assert invoke(None, "doctor", *arguments).exit_code == 2
    assert not (tmp_path / "a.db").exists()


def test_too_little_space_is_weak(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "SPACE_MIN", 2**70)
    code, found = examined(path)
    assert (code, named(found, "free space")["verdict"]) == (1, "weak")


def test_a_slow_store_is_weak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "SLOW_APPEND", 0.001)
    result = with_backend(monkeypatch, Slow(MemoryBackend(), 0.002))
    assert result.exit_code == 1
    assert "faster disk" in result.stdout


def test_a_disk_that_is_too_fast_is_remarked_upon(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "SUSPICIOUS_APPEND", 1e9)
    code, found = examined(path)
    assert (code, named(found, "durable append")["verdict"]) == (0, "note")


class Overwriting(BackendWrapper):
    """Answers that everything was stored."""

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        super().append(appends)
        return [STORED] * len(appends)


class Doubling(BackendWrapper):
    """Does not know an append again that it has seen, and takes it for the next one."""

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        outcomes = super().append(appends)
        if outcomes[0].status != "stored" or len(appends) > 1:
            return outcomes
        self.seen: set[bytes] = getattr(self, "seen", set())
        known = appends[0].entries[0].header in self.seen
        self.seen.add(appends[0].entries[0].header)
        return [Outcome("conflict")] if known else outcomes


class Failing(BackendWrapper):
    """Does not answer after a while."""

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        self.left = getattr(self, "left", 3) - 1
        if self.left < 0:
            raise UnavailableError(self.name, "gone")
        return super().append(appends)


class Leaving(BackendWrapper):
    """Is gone when the trials are over, and does not wait either."""

    def remove(self, stream: str, *, digest: str) -> bool:
        raise UnavailableError(self.name, "gone")


class Restless(BackendWrapper):
    """Does not let anybody wait."""

    def watch(self, stream: str, *, after: int, timeout: float | None = None) -> bool:
        raise UnavailableError(self.name, "no room to wait")


@pytest.mark.parametrize(
    ("kind", "text"), [(Leaving, "completion          gone"), (Restless, "no room to wait")]
)
def test_a_store_that_fails_later_is_told_of_in_the_report(
    monkeypatch: pytest.MonkeyPatch, kind: type[BackendWrapper], text: str
) -> None:
    result = with_backend(monkeypatch, kind(MemoryBackend()))
    assert result.exit_code == 2
    assert text in result.stdout
    assert "Traceback" not in result.output
    assert "try again later" in result.stdout.partition("Advice")[2]


class Deaf(BackendWrapper):
    """Declares no watch."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.capabilities = backend.capabilities - {WATCH}


@pytest.mark.parametrize("kind", [Overwriting, Doubling, Failing])
def test_a_store_that_answers_wrongly_is_unusable(
    monkeypatch: pytest.MonkeyPatch, kind: type[BackendWrapper]
) -> None:
    result = with_backend(monkeypatch, kind(MemoryBackend()))
    assert result.exit_code == 2
    assert "BAD" in result.stdout


def test_a_store_without_watch_is_no_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    result = with_backend(monkeypatch, Deaf(MemoryBackend()))
    assert "sessions poll" in result.stdout
    assert result.exit_code == 1, "only because it is in memory"


def test_a_clock_that_was_set_is_remarked_upon(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = environment.ClockCheck()
    clock._wall -= 3600
    (found,) = clock.findings(MemoryBackend())
    assert found.verdict == "note"
    assert 3_500 < found.data["drift"] < 3_700  # It takes its time to look at two clocks.


def test_a_server_with_another_time_is_weak() -> None:
    class Server(MemoryBackend):
        capabilities = frozenset({"clock"})
        ahead = 0.0

        def server_time(self) -> float:
            return time.time() + self.ahead

    server = Server()
    assert [one.verdict for one in environment.ClockCheck().findings(server)] == ["sound", "sound"]
    server.ahead = 60
    assert [one.verdict for one in environment.ClockCheck().findings(server)] == ["sound", "weak"]


def test_a_doctor_that_was_killed_leaves_a_hidden_session_that_the_next_one_removes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start("doctor", "--appends", "1000000", str(path), folder=path.parent)
    deadline = time.monotonic() + 60
    backend = SqliteBackend(path)
    try:
        while time.monotonic() < deadline and not [*backend.streams(prefix=scratch.PREFIX)]:
            time.sleep(0.02)
    finally:
        os.kill(running.pid, signal.SIGKILL)
        running.communicate()
    (left,) = backend.streams(prefix=scratch.PREFIX)
    assert left.stream not in invoke(path, "ls").stdout
    assert invoke(path, "verify").exit_code == 0
    _, found = examined(path)
    assert "left behind" not in {one["name"] for one in found["opening"]}, "it may be at work"
    monkeypatch.setattr(scratch, "LEFTOVER_AGE", -1.0)
    code, found = examined(path)
    assert (code, named(found, "left behind")["verdict"]) == (0, "note")
    assert [*backend.streams(prefix=scratch.PREFIX)] == []
    backend.close()
