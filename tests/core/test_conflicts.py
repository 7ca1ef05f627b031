"""Two handles on one session: who yields, who goes on, and what they are told."""

from collections.abc import Callable

import pytest

import perdure
from perdure.core.conflicts import CONFLICT_RULES
from perdure.errors import ConflictError
from perdure.journal.kinds import KINDS
from tests.support import contents, said, store_in_memory


@pytest.fixture
def pair() -> tuple[perdure.Session, perdure.Session]:
    store, _ = store_in_memory()
    store.session("s").append(said("first"))
    return store.session("s"), store.session("s")


Act = Callable[[perdure.Session], object]


def append(session: perdure.Session) -> object:
    return session.append(said("said"))


def begin(session: perdure.Session) -> object:
    return session.turn("asked").__enter__()


def set_plan(session: perdure.Session) -> object:
    return session.set("plan", 1)


def set_other(session: perdure.Session) -> object:
    return session.set("other", 1)


def note(session: perdure.Session) -> object:
    return session.note("n")


def label(session: perdure.Session) -> object:
    session.label("l")
    return None


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [(append, append), (append, begin), (begin, append), (begin, begin), (set_plan, set_plan)],
)
def test_what_was_decided_in_view_of_something_older_is_refused(
    pair: tuple[perdure.Session, perdure.Session], theirs: Act, ours: Act
) -> None:
    one, two = pair
    theirs(one)
    with pytest.raises(ConflictError) as caught:
        ours(two)
    assert caught.value.head == one.position == two.position
    assert caught.value.position == 1
    ours(two)
    two.verify()


def test_a_conflict_names_the_position_after_which_others_wrote(
    pair: tuple[perdure.Session, perdure.Session],
) -> None:
    one, two = pair
    two.append(said("own"), said("own too"))
    one.refresh()
    one.append(said("theirs"))
    with pytest.raises(ConflictError, match="moved from position 3 to 4"):
        two.append(said("late"))
    one.append(said("theirs"))
    two.note("takes in what is there, and is not told")
    two.note("another")
    with pytest.raises(ConflictError, match="moved from position 4 to 7"):
        two.append(said("late"))


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (note, append),
        (label, append),
        (set_plan, append),
        (append, set_plan),
        (append, note),
        (append, label),
        (set_plan, set_other),
        (note, note),
        (begin, set_plan),
    ],
)
def test_what_does_not_depend_on_the_newer_records_goes_on(
    pair: tuple[perdure.Session, perdure.Session], theirs: Act, ours: Act
) -> None:
    one, two = pair
    theirs(one)
    before = one.position
    ours(two)
    one.refresh()
    assert two.position == one.position > before
    two.verify()


def test_after_a_conflict_the_view_is_the_newest_one(
    pair: tuple[perdure.Session, perdure.Session],
) -> None:
    one, two = pair
    one.append(said("theirs"))
    with pytest.raises(ConflictError, match="refreshed"):
        two.append(said("ours"))
    assert contents(two) == ["first", "theirs"]
    assert two.last_message == said("theirs")
    two.append(said("ours"))
    assert contents(two) == ["first", "theirs", "ours"]


def test_a_view_changes_only_by_refreshing_or_writing(
    pair: tuple[perdure.Session, perdure.Session],
) -> None:
    one, two = pair
    one.append(said("theirs"))
    assert (contents(two), len(two)) == (["first"], 1)
    assert two.refresh() == one.position
    assert contents(two) == ["first", "theirs"]


def test_two_new_sessions_under_one_name_do_not_overwrite_each_other() -> None:
    store, _ = store_in_memory()
    one, two = store.session("s"), store.session("s")
    one.append(said("a"))
    with pytest.raises(ConflictError):
        two.append(said("b"))
    two.append(said("b"))
    assert contents(store.session("s")) == ["a", "b"]


def test_a_handle_opened_before_its_name_became_a_branch_sees_the_shared_past() -> None:
    store, _ = store_in_memory()
    parent, early = store.session("parent"), store.session("child")
    parent.append(said("a"))
    parent.branch("child")
    with pytest.raises(ConflictError, match="branched record came first"):
        early.note("too early")
    assert contents(early) == ["a"]
    early.append(said("b"))
    assert contents(store.session("child")) == ["a", "b"]


def test_a_value_set_after_a_conflict_is_a_delta_against_the_right_version() -> None:
    store, _ = store_in_memory()
    one, two = store.session("s"), store.session("s")
    document = {"text": "word " * 200, "n": 0}
    one.set("doc", document)
    two.refresh()
    assert two.get("doc") == document
    one.set("doc", {**document, "n": 1, "text": "other " * 200})
    two.refresh()
    two.set("doc", {**document, "n": 2, "text": "other " * 200})
    assert store.session("s").get("doc") == {**document, "n": 2, "text": "other " * 200}
    two.verify()


def test_the_table_of_yields_names_kinds_that_exist() -> None:
    named = {
        kind
        for yields in CONFLICT_RULES.values()
        for kind in yields.any_subject | yields.same_subject
    }
    assert named <= set(KINDS)


def test_a_write_that_goes_on_does_not_hide_what_it_took_in_from_the_next_one(
    pair: tuple[perdure.Session, perdure.Session],
) -> None:
    """A note never conflicts; what is decided after it is still decided on the old view."""
    one, two = pair
    one.set("n", 1)
    two.refresh()
    seen = one.get("n")
    two.set("n", two.get("n") + 1)
    two.append(said("STOP"))
    one.note("in between")
    with pytest.raises(ConflictError, match="a value record came first"):
        one.set("n", seen + 1)
    one.set("n", one.get("n") + 1)
    assert two.refresh()
    assert two.get("n") == 3


def test_a_message_after_a_note_is_void_as_well(
    pair: tuple[perdure.Session, perdure.Session],
) -> None:
    one, two = pair
    two.append(said("STOP"))
    one.set("plan", "go on")
    with pytest.raises(ConflictError, match="a message record came first"):
        one.append(said("sent"))
    one.label("looked")
    one.append(said("stopped"))
    assert contents(one) == ["first", "STOP", "stopped"]


def test_a_repeated_call_under_an_id_is_answered_whatever_others_wrote(
    pair: tuple[perdure.Session, perdure.Session],
) -> None:
    one, two = pair
    position = one.append(said("mine"), id="m-1")
    two.refresh()
    two.append(said("theirs"))
    one.note("in between")
    assert one.append(said("mine"), id="m-1") == position
