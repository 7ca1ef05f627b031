"""`perdure import --openai-agents`: sessions of the SDK's database come over whole, and once.

tests/adapters/openai_agents/test_import.py does it with a database that the SDK wrote.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import apsw
import pytest

import perdure
from perdure.cli.import_ import plan
from tests.cli.support import invoke, objects, said

ITEMS: list[Any] = [
    said("Where is my order?"),
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sealed"},
    {"type": "function_call", "call_id": "c1", "name": "look_up", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "on its way"},
    {"__enc__": 1, "payload": "gAAAA"},
    said("It is on its way.", "assistant"),
]
SCHEMA = """
CREATE TABLE agent_sessions (session_id TEXT PRIMARY KEY, created_at, updated_at);
CREATE TABLE agent_messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL, message_data TEXT NOT NULL,
    created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP
);
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def database(sessions: dict[str, list[Any]], name: str = "conversations.db") -> Path:
    """Write a database as the SDK does: in write-ahead mode, a row for each item."""
    connection = apsw.Connection(name)
    connection.execute("PRAGMA journal_mode=WAL")
    for statement in filter(str.strip, SCHEMA.split(";")):
        connection.execute(statement)
    longest = max(map(len, sessions.values()), default=0)
    for number in range(longest):
        for id, items in sessions.items():
            if number < len(items):
                item = items[number]
                row = item if isinstance(item, str) else json.dumps(item)
                insert = "INSERT INTO agent_messages (session_id, message_data) VALUES (?, ?)"
                connection.execute(insert, (id, row))
    connection.close()
    return Path(name)


def messages_of(session: str) -> list[dict[str, Any]]:
    with perdure.open("agents.db") as store:
        opened = store.resume(session)
        opened.verify()
        return list(opened.messages())


def test_each_session_comes_over_whole_and_once() -> None:
    many = [said(f"{number}") for number in range(1_200)]
    path = database({"claim-4711": ITEMS, "claim-4712": many})
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    done = invoke(None, "import", "--openai-agents", str(path))
    assert done.exit_code == 0, done.output
    assert "6 messages in session claim-4711" in done.stdout
    assert "1,200 messages in session claim-4712" in done.stdout
    assert messages_of("claim-4711") == ITEMS
    assert messages_of("claim-4712") == many
    again = invoke(None, "import", "--openai-agents", str(path))
    assert again.stdout.count("nothing was added") == 2
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before


def test_one_session_can_be_chosen_and_tried_first() -> None:
    path = database({"a": ITEMS, "b": ITEMS[:1]})
    tried = invoke(None, "import", "--openai-agents", "--session", "b", "--dry-run", str(path))
    assert "1 message would go into session b" in tried.stdout
    assert not Path("agents.db").exists()
    [told] = objects(
        invoke(None, "import", "--openai-agents", "--session", "b", "--json", str(path))
    )
    assert (told["session"], told["state"], told["added"]) == ("b", "imported", 1)
    assert messages_of("b") == ITEMS[:1]
    with perdure.open("agents.db") as store:
        assert [head.id for head in store.sessions()] == ["b"]
    missing = invoke(None, "import", "--openai-agents", "--session", "c", str(path))
    assert missing.exit_code == 2
    assert "no session 'c'" in missing.stderr


def test_rows_that_are_no_items_are_kept_and_told() -> None:
    path = database({"a": [ITEMS[0], "{broken", "[1, 2]", '{"role": "user", "content": NaN}']})
    done = invoke(None, "import", "--openai-agents", str(path))
    assert done.exit_code == 1
    assert "Content that is not a message, 3 in all, is kept in a note." in done.stdout
    assert messages_of("a") == ITEMS[:1]
    with perdure.open("agents.db") as store:
        notes = [record for record in store.records("a") if record.kind == "note"]
    assert "{broken" in str(notes[0].content)


def test_what_is_no_such_database_is_refused(tmp_path: Path) -> None:
    Path("text.db").write_text("no database")
    connection = apsw.Connection("other.db")
    connection.execute("CREATE TABLE t (x)")
    connection.close()
    for name in ("text.db", "other.db"):
        done = invoke(None, "import", "--openai-agents", name)
        assert done.exit_code == 2
        assert "nothing was imported" in done.stderr
    empty = invoke(None, "import", "--openai-agents", str(database({})))
    assert "it has no sessions" in empty.stderr
    both = invoke(None, "import", "--openai-agents", "--autogen", "text.db")
    assert both.exit_code == 2
    assert not Path("agents.db").exists()


def test_an_import_that_differs_from_the_file_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    path = database({"a": ITEMS})
    split = plan._split_batches

    def changed(messages: list[dict[str, Any]]) -> Any:
        for batch in split(messages):
            yield batch._replace(messages=[{**each, "x": 1} for each in batch.messages])

    monkeypatch.setattr(plan, "_split_batches", changed)
    done = invoke(None, "import", "--openai-agents", str(path))
    assert done.exit_code not in (0, 2)
    assert "not what the file holds" in " ".join(done.stderr.split())
