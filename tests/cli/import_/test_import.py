"""`perdure import`: files go into sessions once, and everything that was repaired is told."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.cli.import_ import command as import_command
from perdure.cli.import_ import plan as import__plan
from perdure.cli.import_.plan import find_existing, plan_import, run_import
from perdure.cli.stores import without_password
from perdure.journal.records import Message, Note
from tests.cli.support import EVIL, SNEAKY, invoke, objects, said

MESSAGES = [said("Hello, how are you?"), said("I'm doing well, thank you!", "assistant")]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def keep(name: str, messages: object = MESSAGES, *, cut: int = 0) -> str:
    """Write a file as the tutorials do, and cut it."""
    text = json.dumps(messages, indent=2)
    Path(name).write_text(text[: len(text) - cut], encoding="utf-8")
    return name


def messages_of(session: str, store: str = "agents.db") -> list[dict[str, Any]]:
    with perdure.open(store) as opened:
        return opened.resume(session).messages()


def notes_of(session: str) -> list[Any]:
    with perdure.open("agents.db") as store:
        contents = [record.content for record in store.records(session)]
    return [content.data for content in contents if isinstance(content, Note)]


def test_a_file_becomes_a_session_of_its_name() -> None:
    done = invoke(None, "import", keep("agent_memory.json"))
    assert (done.exit_code, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()
    assert first == "agent_memory.json: 2 messages in session agent_memory, up to position 3"
    assert second == "  Inspect it: perdure show agent_memory"
    assert messages_of("agent_memory") == MESSAGES
    with perdure.open("agents.db") as store:
        contents = [record.content for record in store.records("agent_memory")]
        said = [content for content in contents if isinstance(content, Message)]
        assert {content.origin for content in said} == {"import:agent_memory.json"}
        assert not store.resume("agent_memory").interrupted
        store.resume("agent_memory").verify()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_or_a_device_is_refused_and_not_waited_for() -> None:
    os.mkfifo("pipe.json")
    for name in ("pipe.json", "/dev/zero"):
        done = invoke(None, "import", name, "--session", "a")
        assert (done.exit_code, done.stdout) == (2, "")
        assert "is a pipe or a device" in done.stderr
    Path("link.json").symlink_to(keep("agent_memory.json"))
    assert invoke(None, "import", "link.json").exit_code == 0


def test_a_file_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("endless.json").open("wb") as file:
        file.truncate(2**40)  # It takes no room, but its bytes would fill the memory.
    done = invoke(None, "import", "endless.json")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "longer than 512 MiB" in done.stderr
    size = Path(keep("agent_memory.json")).stat().st_size
    monkeypatch.setattr(import_command, "FILE_MAX", size)
    assert invoke(None, "import", "agent_memory.json").exit_code == 0
    monkeypatch.setattr(import_command, "FILE_MAX", size - 1)
    assert invoke(None, "import", "agent_memory.json").exit_code == 2


def test_importing_a_file_again_adds_nothing_and_says_so() -> None:
    keep("agent_memory.json")
    invoke(None, "import", "agent_memory.json")
    with perdure.open("agents.db") as store:
        before = store.resume("agent_memory").position
    done = invoke(None, "import", "agent_memory.json")
    assert done.exit_code == 0
    assert "are already in session agent_memory: nothing was added" in done.stdout
    with perdure.open("agents.db") as store:
        assert store.resume("agent_memory").position == before


def test_it_is_recognised_after_many_other_records(monkeypatch: pytest.MonkeyPatch) -> None:
    keep("agent_memory.json")
    invoke(None, "import", "agent_memory.json")
    monkeypatch.setattr("perdure.core.state.session_state.SNAPSHOT_EVERY", 10)
    with perdure.open("agents.db") as store:
        session = store.resume("agent_memory")
        for number in range(20):  # So that its ids are in the index, not in the state.
            session.note(number, id=f"n-{number}")
    done = invoke(None, "import", "agent_memory.json", "--append")
    assert "nothing was added" in done.stdout
    assert messages_of("agent_memory") == MESSAGES


def test_a_file_that_changed_is_not_mixed_in_unasked() -> None:
    invoke(None, "import", keep("chat.json"))
    keep("chat.json", [*MESSAGES, said("And then?")])
    done = invoke(None, "import", "chat.json")
    assert done.exit_code == 2
    assert "'chat' has 2 other messages, so chat.json was not imported" in done.stderr
    assert "--session" in done.stderr
    assert "--append" in done.stderr
    assert messages_of("chat") == MESSAGES
    assert invoke(None, "import", "chat.json", "--session", "chat-2").exit_code == 0
    assert len(messages_of("chat-2")) == 3
    assert invoke(None, "import", "chat.json", "--append").exit_code == 0
    assert messages_of("chat") == [*MESSAGES, *MESSAGES, said("And then?")]


def test_a_session_that_holds_no_messages_may_take_them() -> None:
    with perdure.open("agents.db") as store:
        store.session("chat").set("plan", {"step": 1})
    assert invoke(None, "import", keep("chat.json")).exit_code == 0
    assert messages_of("chat") == MESSAGES


def test_repairs_are_told_and_noted_and_what_is_no_message_is_kept() -> None:
    keep("chat.json", [said("one"), said("two", "bot"), 3, said("four")], cut=20)
    done = invoke(None, "import", "chat.json")
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert lines[0] == "chat.json: 2 messages in session chat, up to position 5"
    assert lines[1] == "  element 2    the role 'bot': read as 'assistant'"
    assert lines[2].startswith("  element 3    not a message: a number instead of an object:")
    assert lines[3].startswith("  element 4    truncated, or damaged from here on: ")
    assert lines[4] == "  Content that is not a message, 2 in all, is kept in a note."
    assert messages_of("chat") == [said("one"), said("two", "assistant")]
    leftovers, repairs, end = notes_of("chat")
    assert leftovers["leftovers"][0]["raw"] == "3"
    assert '"role": "user"' in leftovers["leftovers"][1]["raw"]
    assert [repair["element"] for repair in repairs["repairs"]] == [2, 3, 4]
    assert (end["messages"], end["repairs"], end["leftovers"]) == (2, 3, 2)
    assert invoke(None, "import", "chat.json").exit_code == 0


def test_what_stands_beside_the_messages_is_noted() -> None:
    keep("chat.json", {"model": "gpt-4o", "messages": MESSAGES})
    assert invoke(None, "import", "chat.json").exit_code == 0
    assert notes_of("chat")[-1]["about"] == {"model": "gpt-4o"}


def test_a_dry_run_writes_nothing_and_makes_no_store() -> None:
    keep("chat.json", [*MESSAGES, 3])
    for _ in range(2):
        done = invoke(None, "import", "chat.json", "--dry-run")
        assert done.exit_code == 1
        assert "would go into session chat; nothing was written" in done.stdout
        assert "would be kept in a note" in done.stdout
    assert [path.name for path in Path().iterdir()] == ["chat.json"]
    invoke(None, "import", "chat.json")
    assert "nothing was added" in invoke(None, "import", "chat.json", "--dry-run").stdout
    done = invoke(None, "import", keep("more.json"), "--session", "chat", "--dry-run")
    assert done.exit_code == 2
    assert messages_of("chat") == MESSAGES


def test_json_has_stable_keys() -> None:
    keep("chat.json", [said("one"), said("two", "bot"), None])
    (found,) = objects(invoke(None, "import", "chat.json", "--json"))
    digest = found.pop("sha256")
    assert len(digest) == 64
    assert found == {
        "file": "chat.json",
        "session": "chat",
        "state": "imported",
        "messages": 2,
        "added": 2,
        "position": 5,
        "repairs": [
            {
                "found": "the role 'bot'",
                "done": "read as 'assistant'",
                "byte": None,
                "element": 2,
            },
            {
                "found": "not a message: null instead of an object",
                "done": "its text is kept in a note",
                "byte": None,
                "element": 3,
            },
        ],
        "leftovers": [
            {"element": 3, "byte": 103, "reason": "null instead of an object"},
        ],
    }
    (again,) = objects(invoke(None, "import", "chat.json", "--json"))
    assert (again["state"], again["added"], again["position"]) == ("already", 0, 5)
    (planned,) = objects(
        invoke(None, "import", "chat.json", "--session", "x", "--dry-run", "--json")
    )
    assert (planned["state"], planned["position"]) == ("planned", None)


@pytest.mark.parametrize("text", ["", "[]", "{}", "hello", '{"messages": []}', "\x89PNG\r\n\x1a"])
def test_a_file_without_messages_is_bad_news_and_makes_no_session(text: str) -> None:
    Path("x.json").write_text(text, "utf-8")
    done = invoke(None, "import", "x.json")
    assert done.exit_code == 1
    assert "EMPTY  x.json: no messages found" in done.stdout
    assert done.stdout.splitlines()[-1] == "  Nothing was written; keep the file."
    assert done.stdout.lower().count("nothing was written") == 1
    assert "note" not in done.stdout
    (found,) = objects(invoke(None, "import", "x.json", "--json"))
    assert found["state"] == "empty"
    assert found["repairs"]
    assert "kept" not in json.dumps(found)
    assert not Path("agents.db").exists()


def test_a_file_whose_messages_lie_deeper_says_where_it_looked() -> None:
    done = invoke(None, "import", keep("x.json", {"state": {"messages": MESSAGES}}))
    assert done.exit_code == 1
    assert "no message under 'messages', 'history', 'chat_history'" in done.stdout
    assert "other keys: 'state'" in done.stdout


def test_the_file_that_can_not_be_imported_is_named() -> None:
    Path("p2.json").write_bytes(b"(lp0\n.")
    keep("large.json", [said("x" * (16 * 2**20))])
    keep("a\nb.json")
    for name, reason in [
        ("p2.json", "p2.json: a pickle is not read"),
        ("large.json", "large.json: message 1 is 16,777,"),
        (
            "a\nb.json",
            r"a\nb.json: a session id must not contain control characters: give --session",
        ),
    ]:
        done = invoke(None, "import", keep("good.json"), name)
        assert done.exit_code == 2
        assert reason in done.stderr
        assert not Path("agents.db").exists()
    assert invoke(None, "import", "a\nb.json", "--session", "ab").exit_code == 0
    assert messages_of("ab") == MESSAGES


def test_the_command_to_look_has_no_password(postgres_store: str, tmp_path: Path) -> None:
    (tmp_path / "chat.json").write_text('[{"role": "user", "content": "hello"}]')
    result = invoke(postgres_store, "import", str(tmp_path / "chat.json"))
    assert result.exit_code == 0
    password = postgres_store.partition("://")[2].partition("@")[0].partition(":")[2]
    assert password
    assert "--store 'postgresql://" in result.stdout
    assert password not in result.output


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("agents.db", "agents.db"),
        ("files:a@b//c:d@e", "files:a@b//c:d@e"),
        ("postgres://u:secret@h:1/db", "postgresql://u@h:1/db"),
        ("postgresql://h/db?user=u&password=se%40cret", "postgresql://u@h/db"),
        ("postgresql://u:p@h/db?sslpassword=secret", "postgresql://u@h/db"),
        (
            "postgresql://u:secret@h/db?sslmode=require&schema=s&accept=fsync-off",
            "postgresql://u@h/db?schema=s&sslmode=require&accept=fsync-off",
        ),
    ],
)
def test_an_address_is_shown_without_its_password(address: str, shown: str) -> None:
    assert without_password(address).startswith(shown)
    assert "secret" not in without_password(address)


@pytest.mark.parametrize("store", [None, "other.db"])
def test_the_command_to_look_works_for_a_session_that_begins_with_a_dash(store: str | None) -> None:
    keep("-dash.json")
    done = invoke(None, "import", *(["--store", store] if store else []), "--", "-dash.json")
    command = done.stdout.splitlines()[-1].removeprefix("  Inspect it: perdure ")
    assert command == ("show --store other.db -- -dash" if store else "show -- -dash")
    assert "how are you" in invoke(None, *command.split()).stdout


def test_a_pickle_is_refused_with_its_reason() -> None:
    Path("memory.pkl").write_bytes(b"\x80\x04]\x94.")
    done = invoke(None, "import", "memory.pkl")
    assert done.exit_code == 2
    assert "a pickle is not read, because loading one executes code from it" in done.stderr
    assert not Path("agents.db").exists()


def test_several_files_go_into_sessions_of_their_own() -> None:
    names = [keep("a.json"), keep("b.json", [said("b")])]
    done = invoke(None, "import", *names, "--json")
    assert [found["session"] for found in objects(done)] == ["a", "b"]
    assert messages_of("b") == [said("b")]


def test_several_files_go_into_one_session_only_if_that_is_asked_for() -> None:
    names = [keep("a.json"), keep("b.json", [said("b")])]
    done = invoke(None, "import", *names, "--session", "both")
    assert done.exit_code == 2
    assert "only with --append" in done.stderr
    assert not Path("agents.db").exists()
    done = invoke(None, "import", *names, names[0], "--session", "both", "--append", "--json")
    assert [found["state"] for found in objects(done)] == ["imported", "imported", "already"]
    assert messages_of("both") == [*MESSAGES, said("b")]
    Path("other").mkdir()
    done = invoke(None, "import", "b.json", keep("other/b.json"))
    assert done.exit_code == 2


def test_one_refusal_leaves_the_other_files_alone() -> None:
    with perdure.open("agents.db") as store:
        store.session("b").append(said("mine"))
    assert invoke(None, "import", keep("a.json"), keep("b.json")).exit_code == 2
    with perdure.open("agents.db") as store:
        assert [head.id for head in store.sessions()] == ["b"]


@pytest.mark.parametrize("address", ["state.db", "sqlite:state.db", "files:state"])
def test_the_store_is_made_where_it_is_named(address: str) -> None:
    done = invoke(address, "import", keep("chat.json"))
    assert done.exit_code == 0
    assert f"Inspect it: perdure show chat --store {address}" in done.stdout
    assert messages_of("chat", address) == MESSAGES
    assert not Path("agents.db").exists()
    assert invoke(None, "import", "chat.json", PERDURE_URL=address).exit_code == 0
    assert not Path("agents.db").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["missing.json"], 2, "File 'missing.json' does not exist"),
        (["."], 2, "is a directory"),
        ([], 2, "Missing argument"),
        (["chat.json", "--session", ""], 0, ""),
        (["chat.json", "--session", "a\nb"], 2, "must not contain control characters"),
        (["chat.json", "--store", "memory:"], 2, "A memory store is gone"),
        (["chat.json", "--store", "nosuch:x"], 2, "unknown scheme"),
        (["chat.json", "--store", "no/such/folder/x.db"], 3, "no/such/folder"),
        (["chat.json", "--store", "chat.json"], 1, "chat.json"),
    ],
)
def test_what_can_not_be_done_is_one_line(arguments: list[str], code: int, message: str) -> None:
    keep("chat.json")
    done = invoke(None, "import", *arguments)
    assert done.exit_code == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert "did you mean" not in done.stderr


def test_an_import_that_was_killed_goes_on_where_it_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(import__plan, "BATCH_MESSAGES", 10)
    messages = [said(f"message {number}") for number in range(35)]
    keep("chat.json", [*messages, 3])
    made = plan_import("chat.json", Path("chat.json").read_bytes(), "chat")
    assert [len(batch.messages) for batch in made.batches] == [10, 10, 10, 5]
    for stop in range(1, 5):
        address = f"{stop}.db"
        with perdure.open(address) as store:
            steps = run_import(store, made, find_existing(store, made))
            for _ in range(stop):
                next(steps)
            steps.close()
        done = invoke(address, "import", "chat.json")
        assert done.exit_code == 1
        left = 35 - min(stop * 10, 35)
        rest = f", {left} of them now"
        assert f"35 messages in session chat{rest}, up to position 40" in done.stdout
        assert messages_of("chat", address) == messages
        assert "nothing was added" in invoke(address, "import", "chat.json").stdout


def test_an_import_that_was_killed_between_its_notes_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keep("chat.json", [*MESSAGES, 3])
    note = perdure.Session.note
    for allowed in range(3):
        left = iter(range(allowed))

        def failing(
            session: perdure.Session, data: object, *, left: Any = left, **rest: Any
        ) -> int:
            if next(left, None) is None:
                raise perdure.UnavailableError("the store", "it is gone")
            return note(session, data, **rest)

        monkeypatch.setattr(perdure.Session, "note", failing)
        store = f"{allowed}.db"
        assert invoke(store, "import", "chat.json").exit_code == 3
        monkeypatch.setattr(perdure.Session, "note", note)
        assert invoke(store, "import", "chat.json").exit_code == 1
        with perdure.open(store) as opened:
            kinds = [record.kind for record in opened.records("chat")]
        assert kinds == ["message", "message", "note", "note", "note"]


def test_messages_are_stored_in_batches_that_fit_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import__plan, "BATCH_BYTES", 1_000)
    keep("chat.json", [said("x" * size) for size in (10, 10, 2_000, 100, 900, 900)])
    made = plan_import("chat.json", Path("chat.json").read_bytes(), "chat")
    assert [len(batch.messages) for batch in made.batches] == [2, 1, 1, 1, 1]
    assert invoke(None, "import", "chat.json").exit_code == 0
    assert len(messages_of("chat")) == 6


def test_long_leftovers_are_kept_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import__plan, "NOTE_BYTES", 100)
    monkeypatch.setattr(import__plan, "REPAIRS_PER_NOTE", 2)
    keep("chat.json", [*MESSAGES, "x" * 350, "y" * 30, "z" * 30])
    assert invoke(None, "import", "chat.json").exit_code == 1
    notes = notes_of("chat")
    *notes, end = notes
    kept = [[piece["raw"] for piece in note["leftovers"]] for note in notes[:-2]]
    assert [sum(map(len, pieces)) for pieces in kept] == [100, 100, 100, 84, 32]
    raw = "".join(piece for pieces in kept for piece in pieces)
    assert raw == f'"{"x" * 350}""{"y" * 30}""{"z" * 30}"'
    assert [len(note["repairs"]) for note in notes[-2:]] == [2, 1]
    assert (end["leftovers"], end["repairs"]) == (3, 3)


def test_a_message_that_is_too_large_is_refused_before_anything_is_written() -> None:
    keep("chat.json", [said("small"), said("x" * (16 * 2**20))])
    done = invoke(None, "import", "chat.json")
    assert done.exit_code == 2
    assert "message 2 is 16,777," in done.stderr
    assert not Path("agents.db").exists()


def test_many_repairs_are_told_in_short() -> None:
    keep("chat.json", [said("x", "bot")] * 30)
    lines = invoke(None, "import", "chat.json").stdout.splitlines()
    assert lines[21] == "  and 10 more repairs like these: --json lists all of them"
    (found,) = objects(invoke(None, "import", "chat.json", "--session", "y", "--json"))
    assert len(found["repairs"]) == 30


def test_nothing_of_a_file_reaches_the_terminal_unescaped() -> None:
    keep("chat.json", [said("x", EVIL.replace("\0", "")), {EVIL: 1, "role": EVIL}, said("y")])
    for options in ([], ["--json", "--session", "y"]):
        done = invoke(None, "import", "chat.json", *options)
        assert not [letter for letter in SNEAKY if letter in done.output]
    assert len(messages_of("chat")) == 3
