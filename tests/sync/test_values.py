# Generated from aio/test_values.py by scripts/generate_sync.py: do not edit.
"""Values outside sessions: what is known of a customer, by whoever asks, in versions."""

import subprocess
import sys
from pathlib import Path

import pytest

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.errors import ConflictError, NotFoundError, UsageError
from tests.support import said


def test_values_need_no_conversation() -> None:
    backend = MemoryBackend()
    store = perdure.open(backend)
    known = store.values("customer-17")
    assert known.set("name", "Ada") == 1
    assert known.set("name", "Ada L.") == 2
    assert known.get("name") == "Ada L."
    assert known.get("name", version=1) == "Ada"
    assert known.get("age") is None
    assert known.get("age", 36) == 36
    known.set("plan", {"steps": [1, 2]})
    known.delete("plan")
    assert known.keys() == ["name"]
    assert (known.version("name"), known.version("plan")) == (2, 2)
    history = known.history("plan")
    assert [(item.version, item.deleted) for item in history] == [(1, False), (2, True)]
    with pytest.raises(NotFoundError):
        known.delete("plan")
    again = perdure.open(backend).values("customer-17")
    assert (again.id, again.get("name")) == ("customer-17", "Ada L.")
    assert repr(again) == "<Values of 'customer-17': 1 keys>"


def test_the_same_key_conflicts_and_other_keys_do_not() -> None:
    with perdure.open("memory:") as store:
        mine, theirs = store.values("c"), store.values("c")
        theirs.set("name", "Ada")
        theirs.set("city", "London")
        mine.set("age", 36)
        with pytest.raises(ConflictError) as caught:
            mine.set("name", "Eve")
        assert caught.value.head == 3
        assert mine.get("name") == "Ada"
        assert mine.set("name", "Ada L.") == 2
        assert theirs.get("name") == "Ada"
        theirs.refresh()
        assert theirs.get("name") == "Ada L."
        keys = theirs.keys()
        assert [theirs.get(key) for key in keys] == ["Ada L.", "London", 36]


OTHER = """
import sys, perdure
with perdure.open(sys.argv[1]) as store, store.values("customer-17") as known:
    known.set("seen", known.get("seen", 0) + 1)
"""


def test_two_processes_share_them(tmp_path: Path) -> None:
    path = tmp_path / "agents.db"
    with perdure.open(path) as store:
        known = store.values("customer-17")
        known.set("seen", 1)
        subprocess.run([sys.executable, "-c", OTHER, path], check=True, timeout=60)
        assert known.get("seen") == 1
        with pytest.raises(ConflictError):
            known.set("seen", 1)
        assert known.get("seen") == 2


def test_a_session_of_the_same_id_has_the_same_values() -> None:
    with perdure.open("memory:") as store:
        store.values("c").set("name", "Ada")
        session = store.session("c")
        assert session.get("name") == session.values.get("name") == "Ada"
        assert (session.values.id, len(session)) == ("c", 0)
        session.append(said("hello"))
        session.values.set("name", "Ada L.")
        assert session.get("name") == "Ada L."
        assert store.values("c").get("name") == "Ada L."
        assert [head.id for head in store.sessions()] == ["c"]
        store.delete("c")
        assert store.values("c").keys() == []


def test_closed_values_are_closed() -> None:
    with perdure.open("memory:") as store:
        with store.values("c") as known:
            known.set("name", "Ada")
        with pytest.raises(UsageError, match="closed"):
            known.get("name")
        with pytest.raises(UsageError, match="closed"):
            known.get("age")


@pytest.mark.parametrize("id", ["", "a\tb", "x" * 600])
def test_an_id_must_be_one(id: str) -> None:
    store = perdure.open("memory:")
    with pytest.raises(UsageError, match="a session id"):
        store.values(id)
