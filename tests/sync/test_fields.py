# Generated from aio/test_fields.py by scripts/generate_sync.py: do not edit.
"""Sessions are described by fields, and found and sorted by them."""

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.errors import UnsupportedError, UsageError
from tests.support import said

ADDRESSES = ["memory:", "sqlite:{}/store.db", "files:{}/store"]
TODAY = datetime(2026, 11, 18, 10, 30, tzinfo=UTC)


def ids(store: perdure.Store, **chosen: Any) -> list[str]:
    return [info.id for info in store.sessions(**chosen)]


def fill(store: perdure.Store) -> None:
    for number in range(6):
        session = store.session(f"s{number}")
        session.describe(
            customer=f"c-{number % 2}",
            amount=10 - number,
            cost=number / 4,
            urgent=number == 3,
            due=TODAY + timedelta(days=number),
        )
    store.session("plain").append(said("x"))


@pytest.mark.parametrize("address", ADDRESSES)
def test_sessions_are_found_by_the_values_of_their_fields(address: str, tmp_path: Path) -> None:
    with perdure.open(address.format(tmp_path)) as store:
        fill(store)
        assert ids(store, where={"customer": "c-1"}) == ["s1", "s3", "s5"]
        assert ids(store, where={"customer": "c-1", "urgent": True}) == ["s3"]
        assert ids(store, where={"amount": 8}) == ids(store, where={"amount": 8.0})
        assert ids(store, where={"due": TODAY.astimezone(timezone(timedelta(hours=5)))}) == ["s0"]
        for nothing in ({"customer": "c-"}, {"urgent": 1}, {"amount": "8"}, {"other": "c-1"}):
            assert ids(store, where=nothing) == []
        assert ids(store, where={"customer": "c-1"}, after="s1", limit=1) == ["s3"]
        assert ids(store, where={"customer": "c-1"}, prefix="s5") == ["s5"]
        store.resume("s1").label("vip")
        assert ids(store, where={"customer": "c-1"}, labels=["vip"]) == ["s1"]
        assert ids(store, limit=2, order="id") == ["plain", "s0"]
        assert ids(store, limit=0) == []


@pytest.mark.parametrize("address", ADDRESSES[:2])
def test_sessions_are_sorted_by_a_field(address: str, tmp_path: Path) -> None:
    with perdure.open(address.format(tmp_path)) as store:
        fill(store)
        up = ["s5", "s4", "s3", "s2", "s1", "s0"]
        assert ids(store, order="amount") == up
        assert ids(store, order="-amount") == up[::-1]
        assert ids(store, order="cost") == up[::-1]
        assert ids(store, order="-due", limit=2) == ["s5", "s4"]
        assert (ids(store, order="urgent"))[-1:] == ["s3"]
        assert ids(store, order="amount", after="s3", limit=2) == ["s2", "s1"]
        assert ids(store, order="-amount", after="s3") == ["s4", "s5"]
        assert ids(store, order="amount", where={"customer": "c-0"}) == ["s4", "s2", "s0"]
        assert ids(store, where={"amount": (7, 9)}) == ["s3", "s2", "s1"]
        assert ids(store, where={"amount": (7, 9)}, order="-amount") == ["s1", "s2", "s3"]
        assert ids(store, where={"amount": (9, None)}, after="s1") == ["s0"]
        assert ids(store, where={"due": (None, TODAY + timedelta(days=1))}) == ["s0", "s1"]
        assert ids(store, where={"amount": (None, 6.5), "customer": "c-1"}) == ["s5"]
        assert ids(store, where={"customer": ("c-1", "c-1")}) == ["s1", "s3", "s5"]
        store.resume("s2").append(said("x"))
        assert ids(store, order="-changed", where={"customer": "c-0"}) == ["s2", "s4", "s0"]
        assert ids(store, order="-changed") == ids(store, recent=True)


@pytest.mark.parametrize("address", ADDRESSES)
def test_fields_are_part_of_the_session_until_they_are_removed(
    address: str, tmp_path: Path
) -> None:
    described = {"a": "x", "b": 3, "c": -2.5, "d": False, "e": TODAY, "f": 4}
    with perdure.open(address.format(tmp_path)) as store:
        session = store.session("s")
        assert session.fields == {}
        session.describe(a="x", b=3, c=-2.5, d=False, e=TODAY, f=4.0)
        session.label("vip")
        assert session.fields == described
        assert session.labels == {"vip"}
        assert [type(value) for value in session.fields.values()] == [
            *(str, int, float, bool, datetime, int)
        ]
        (info,) = list(store.sessions())
        assert info.fields == described
        assert info.labels == {"vip"}
        records = session.records(kinds=["fields"])
        assert [record.content.fields["e"] for record in records] == [TODAY]  # type: ignore[attr-defined]
        session.describe(a="y", b=None, c=None)
        for _ in range(300):  # Past a snapshot.
            session.note("n")
    if address == "memory:":
        return
    with perdure.open(address.format(tmp_path)) as store:
        session = store.resume("s")
        assert session.fields == {"a": "y", "d": False, "e": TODAY, "f": 4}
        assert session.verify().snapshots > 1
        assert ids(store, where={"a": "x"}) == ids(store, where={"b": 3}) == []
        store.delete("s")
        assert ids(store, where={"a": "y"}, deleted=True) == []
        assert store.verify().ok


def test_a_branch_has_no_fields_and_a_copy_has_them() -> None:
    with perdure.open("memory:") as store:
        session = store.session("s")
        session.describe(customer="c-1")
        branch, copy = session.branch("branch"), session.copy("copy")
        assert (branch.fields, copy.fields) == ({}, {"customer": "c-1"})
        assert ids(store, where={"customer": "c-1"}) == ["copy", "s"]
        branch.describe(customer="c-2")
        assert session.fields == {"customer": "c-1"}
        assert store.verify().ok


def test_fields_are_set_in_batches() -> None:
    with perdure.open("memory:") as store:
        session, other = store.session("s"), store.session("t")
        for _ in range(2):
            with session.batch(id="b") as batch:
                batch.append(said("x"))
                batch.describe(state="waiting", due=TODAY)
        assert (session.fields, session.position) == ({"state": "waiting", "due": TODAY}, 3)
        with session.turn("go") as turn, turn.batch() as part:
            part.describe(state="done")
            part.complete()
        with store.batch() as both:
            both.session(session).describe(due=None)
            both.session(other).describe(state="done")
        assert ids(store, where={"state": "done"}) == ["s", "t"]
        assert session.fields == {"state": "done"}


def test_two_handles_set_fields_of_one_session() -> None:
    with perdure.open("memory:") as store:
        first, second = store.session("s"), store.session("s")
        first.describe(a=1)
        with first.lease():
            second.describe(a=2, b=1)  # As a label: neither a conflict, nor held up.
        first.describe(c=3)
        assert first.fields == {"a": 2, "b": 1, "c": 3}
        assert ids(store, where={"a": 1}) == []


def test_a_name_is_normalized_as_python_does_with_a_keyword() -> None:
    composed, decomposed = "soci\u00e9t\u00e9", "socie\u0301te\u0301"
    with perdure.open("memory:") as store:
        session = store.session("s")
        session.describe(**{decomposed: "a", "self": "1"})
        assert session.fields == {composed: "a", "self": "1"}
        for name in (composed, decomposed):
            assert ids(store, where={name: "a"}) == ["s"]
            assert ids(store, order=name) == ["s"]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no field": ({}, "at least one field"),
    "a list": ({"a": [1]}, "the field 'a' must be str, int, float, bool or a datetime"),
    "a text too long": ({"a": "ü" * 128}, "1 to 255 bytes"),
    "an empty text": ({"a": ""}, "1 to 255 bytes"),
    "a control character": ({"a": "x\ty"}, "control characters"),
    "a surrogate": ({"a": "\ud800"}, "surrogate"),
    "an integer too large": ({"a": 2**53}, "store it as a text"),
    "not a number": ({"a": float("nan")}, "not a finite number"),
    "infinity": ({"a": float("-inf")}, "not a finite number"),
    "a time without a zone": ({"a": datetime(2026, 1, 1)}, "without a zone"),  # noqa: DTZ001
    "a time before the first": (
        {"a": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1)))},
        "UTC cannot express",
    ),
    "a name with a dash": ({"a-b": 1}, "a Python identifier"),
    "a name too long": ({"a" * 64: 1}, "at most 63 bytes"),
    "a name that is taken": ({"changed": 1}, "choose another name"),
    "too many": ({f"f{number}": 1 for number in range(17)}, "at most 16 fields"),
}


@pytest.mark.parametrize("what", WRONG)
def test_fields_that_cannot_be_are_refused_and_change_nothing(what: str) -> None:
    fields, text = WRONG[what]
    with perdure.open("memory:") as store:
        session = store.session("s")
        session.describe(good=1)
        with pytest.raises(UsageError, match=text):
            session.describe(**fields)
        assert (session.fields, session.position) == ({"good": 1}, 1)


def test_a_full_session_gets_another_field_for_one_that_is_removed() -> None:
    with perdure.open("memory:") as store:
        session = store.session("s")
        session.describe(**{f"f{number}": "x" * 255 for number in range(16)})
        session.label(*(f"label {number}" for number in range(12)))
        with pytest.raises(UsageError, match="remove one with None first"):
            session.describe(more=1)
        session.describe(more=1, f0=None)
        assert len(session.fields) == 16


QUESTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "where is a list": ({"where": ["a"]}, "a dict of fields"),
    "an operator": ({"where": {"a": {">": 3}}}, r"a range as a tuple \(lowest, highest\)"),
    "None": ({"where": {"a": None}}, "give the field a value"),
    "an id": ({"where": {"id": "s"}}, "prefix="),
    "a change": ({"where": {"changed": TODAY}}, "order='-changed'"),
    "a range of bools": ({"where": {"a": (False, True)}}, "the one value"),
    "a range of two types": ({"where": {"a": (1, "x")}}, "two ends of one type"),
    "a range without ends": ({"where": {"a": (None, None)}}, "must be .lowest, highest."),
    "a range of three": ({"where": {"a": (1, 2, 3)}}, "must be .lowest, highest."),
    "two ranges": ({"where": {"a": (1, 2), "b": (1, 2)}}, "one field can have a range"),
    "a range in another order": ({"where": {"a": (1, 2)}, "order": "b"}, "order='a'"),
    "a range by change": ({"where": {"a": (1, 2)}, "order": "-changed"}, "order='a'"),
    "a value of a wrong type": ({"where": {"a": b"x"}}, "must be str, int"),
    "a name": ({"where": {"a-b": 1}}, "a Python identifier"),
    "the oldest first": ({"order": "changed"}, "order='-changed'"),
    "ids backwards": ({"order": "-id"}, "order='id'"),
    "an order of a wrong type": ({"order": 3}, "order must be str"),
    "two orders": ({"order": "a", "recent": True}, "leave one of them out"),
    "after a session without it": ({"order": "a", "after": "s"}, "has no field 'a'"),
    "after a change": ({"order": "-changed", "after": "s"}, "use a higher limit="),
    "a limit below 0": ({"limit": -1}, "0 or more"),
}


@pytest.mark.parametrize("what", QUESTIONS)
def test_a_question_without_an_answer_says_what_to_ask_instead(what: str) -> None:
    chosen, text = QUESTIONS[what]
    with perdure.open("memory:") as store:
        store.session("s").describe(b=1)
        with pytest.raises(UsageError, match=text):
            ids(store, **chosen)


class Plain(MemoryBackend):
    capabilities = frozenset()


def test_a_store_without_an_order_of_values_still_finds_them() -> None:
    with perdure.open(Plain()) as store:
        fill(store)
        assert ids(store, where={"customer": "c-1"}) == ["s1", "s3", "s5"]
        for chosen in ({"order": "amount"}, {"where": {"amount": (1, 2)}}):
            with pytest.raises(UnsupportedError, match="list them by id, and sort them"):
                ids(store, **chosen)


def test_a_copied_store_finds_them_too(tmp_path: Path) -> None:
    source, target = f"files:{tmp_path}/a", f"sqlite:{tmp_path}/b.db"
    with perdure.open(source) as store:
        fill(store)
    assert not perdure.copy(source, target, final=True).problems
    with perdure.open(target) as store:
        assert ids(store, where={"amount": (7, 8)}) == ["s3", "s2"]
        assert store.verify().ok
