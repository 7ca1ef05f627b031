"""A hypothesis state machine that compares the sessions of a store with a model made of lists.

    TestMine = machine_for(lambda: MyBackend("store")).TestCase

This module chooses the next step; `model` predicts its result, and `driver` performs it and
compares. Nothing else in perdure imports hypothesis.
"""

import sys
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from perdure.backends.protocol import Backend
from perdure.core.state import session_state
from perdure.testing.faults import CrashAt, CrashPoint, Flaky, Torn
from perdure.testing.machine import model
from perdure.testing.machine.checks import check_touched
from perdure.testing.machine.driver import (
    HeldTurn,
    OpenHandle,
    SessionCall,
    SessionDriver,
)
from perdure.testing.machine.model import DELETED_VALUE

NAMES = ("a", "a/1", "b", "é")

KEYS = ("plan", "x")

TOPICS = ("plans", "costs")

LABELS = ("new", "urgent")

FIELDS = ("owner", "cost")


# Long enough that a small change is stored as a delta instead of a whole value.
LONG = "a sentence that is repeated until a delta is shorter than the whole. " * 8


class StoreFault(NamedTuple):
    """A way in which a store fails, as a wrapper; a failing run prints its name."""

    name: str
    wrap: Callable[[Backend], Backend]


picks = st.integers(0, 1_000)

names = st.sampled_from(NAMES)

texts = st.sampled_from(["one", "two", "", "três 💾"])

field_values = st.sampled_from(["Ada", "é", 1, -2, None])

documents = st.one_of(
    st.integers(-5, 5),
    st.none(),
    st.builds(lambda n, text: {"n": n, "text": text, "long": LONG}, st.integers(0, 9), texts),
    st.builds(lambda n: [LONG[n:], n, {"deep": [LONG[: 300 + n]]}], st.integers(0, 9)),
)


def _crash(point: CrashPoint, nth: int) -> StoreFault:
    return StoreFault(f"{point} {nth}", lambda backend: CrashAt(backend, point, nth=nth))


def _outage(times: int, *, after_commit: bool) -> StoreFault:
    """Fail the first appends. A commit is retried once, so two failures leave it in doubt."""

    def wrap(backend: Backend) -> Backend:
        return Flaky(backend, fail=lambda call: call <= times, after_commit=after_commit)

    return StoreFault(f"fails {times} after_commit={after_commit}", wrap)


def _tear(keep: int) -> StoreFault:
    def wrap(backend: Backend) -> Backend:
        return Flaky(Torn(backend, keep=keep), fail=lambda call: call == 2)

    return StoreFault("torn", wrap)


crashes = st.builds(_crash, st.sampled_from(["append.before", "append.after"]), st.integers(1, 3))

drop_crashes = st.builds(_crash, st.sampled_from(["drop.before", "drop.after"]), st.just(1))

faults = st.one_of(
    crashes,
    st.builds(_outage, st.integers(1, 2), after_commit=st.booleans()),
    st.builds(_tear, st.integers(1, 3)),
)


class SessionMachine(RuleBasedStateMachine):
    """Performs the steps of an application, of a concurrent one, and of a failing store."""

    open_backend: ClassVar[Callable[[], Backend]]

    def __init__(self) -> None:
        super().__init__()
        self._interval = session_state.SNAPSHOT_EVERY
        self.driver = SessionDriver(type(self).open_backend)

    @initialize(interval=st.sampled_from([4, 9, session_state.SNAPSHOT_EVERY]))
    def set_snapshot_interval(self, interval: int) -> None:
        session_state.SNAPSHOT_EVERY = interval

    @invariant()
    def sessions_match_the_model(self) -> None:
        check_touched(self.driver)

    def teardown(self) -> None:
        """Check everything once more as a new process, and restore the snapshot interval."""
        session_state.SNAPSHOT_EVERY = self._interval
        try:
            if sys.exc_info()[0] is None:
                self.driver.crash()
                check_touched(self.driver)
        finally:
            self.driver.close()

    def _pick_handle(self, pick: int) -> OpenHandle:
        """Return an open handle. The first two are on one session, so that they conflict."""
        handles = self.driver.handles
        if len(handles) < 2:
            name = handles[0].life.name if handles else NAMES[pick % len(NAMES)]
            self.driver.open(name)
            self.driver.open(name)
        return handles[pick % len(handles)]

    @rule(pick=picks, name=names, same_session=st.booleans())
    def open(self, pick: int, name: str, *, same_session: bool) -> None:
        self.driver.open(self._pick_handle(pick).life.name if same_session else name)

    @rule(pick=picks)
    def drop(self, pick: int) -> None:
        self.driver.drop(self._pick_handle(pick))

    @rule()
    def crash(self) -> None:
        self.driver.crash()

    @rule(pick=picks)
    def refresh(self, pick: int) -> None:
        handle = self._pick_handle(pick)
        if self.driver.is_current(handle):
            handle.refresh()
            assert handle.session.position >= handle.life.position
        else:
            self.driver.drop(handle)

    # Writing. There are few ids and few texts, so that an id is reused with the same messages and
    # with different ones.

    @rule(pick=picks, contents=st.lists(texts, min_size=1, max_size=4), number=st.integers(0, 5))
    def append(self, pick: int, contents: list[str], number: int) -> None:
        handle = self._pick_handle(pick)
        self.driver.call(handle, _append(handle, contents, f"id {number}" if number < 3 else ""))

    @rule(pick=picks, text=texts, number=st.integers(0, 4))
    def note(self, pick: int, text: str, number: int) -> None:
        handle = self._pick_handle(pick)
        self.driver.call(handle, _note(handle, text, f"id {number}" if number < 2 else ""))

    @rule(
        pick=picks,
        text=texts,
        topic=st.sampled_from(TOPICS),
        expect=st.sampled_from(["any", "seen", "none"]),
        number=st.integers(0, 4),
    )
    def note_on_topic(self, pick: int, text: str, topic: str, expect: str, number: int) -> None:
        handle = self._pick_handle(pick)
        seen = handle.life.seen(handle.session.position).newest_note(topic)
        position = {"any": None, "seen": seen, "none": 0}[expect]
        record_id = f"id {number}" if number < 2 else ""
        write = model.note_write(text, id=record_id, topic=topic, expect=position)

        def run() -> int:
            return handle.session.note(text, topic=topic, expect=position, id=record_id or None)

        self.driver.call(handle, SessionCall("note", run, write))

    @rule(pick=picks, at=st.lists(picks, min_size=1, max_size=2), shown=st.booleans())
    def retract(self, pick: int, at: list[int], *, shown: bool) -> None:
        handle = self._pick_handle(pick)
        self.driver.call(handle, _retract(handle, at, shown=shown))

    @rule(pick=picks, at=st.tuples(picks, picks), contents=st.lists(texts, min_size=1, max_size=2))
    def replace(self, pick: int, at: tuple[int, int], contents: list[str]) -> None:
        handle = self._pick_handle(pick)
        self.driver.call(handle, _replace(handle, at, contents))

    @rule(pick=picks, text=texts, key=st.sampled_from(KEYS), value=documents)
    def batch(self, pick: int, text: str, key: str, value: Any) -> None:
        handle = self._pick_handle(pick)
        self.driver.call(handle, _batch(handle, text, key, value))

    @rule(pick=picks)
    def view(self, pick: int) -> None:
        self.driver.view(self._pick_handle(pick))

    @rule(pick=picks, key=st.sampled_from(KEYS), value=documents)
    def set(self, pick: int, key: str, value: Any) -> None:
        handle = self._pick_handle(pick)
        self.driver.call(handle, _set(handle, key, value))

    @rule(pick=picks, key=st.sampled_from(KEYS))
    def delete_value(self, pick: int, key: str) -> None:
        handle = self._pick_handle(pick)
        write = model.value_write(key, DELETED_VALUE)
        self.driver.call(handle, SessionCall("delete", lambda: handle.session.delete(key), write))

    @rule(pick=picks, add=st.sampled_from(LABELS), remove=st.sampled_from((*LABELS, "")))
    def label(self, pick: int, add: str, remove: str) -> None:
        handle = self._pick_handle(pick)
        self.driver.call(handle, _label(handle, add, [remove] if remove else []))

    @rule(pick=picks, field=st.sampled_from(FIELDS), value=field_values)
    def describe(self, pick: int, field: str, value: str | int | None) -> None:
        handle = self._pick_handle(pick)
        self.driver.call(handle, _describe(handle, {field: value}))

    @rule(pick=picks, keep=st.integers(0, 3))
    def compact(self, pick: int, keep: int) -> None:
        self.driver.compact(self._pick_filled(pick), keep)

    def _pick_filled(self, pick: int) -> OpenHandle:
        """Return a handle of a session that has something to drop, and something to keep."""
        handle = self._pick_handle(pick)
        for contents, record_id in ((["one", "two"], "id 0"), (["two", "one"], "")):
            self.driver.call(handle, _append(handle, contents, record_id))
        return handle

    # Turns.

    @rule(pick=picks, text=texts, number=st.integers(0, 3))
    def begin(self, pick: int, text: str, number: int) -> None:
        turn_id = f"turn {number}" if number < 2 else ""
        self.driver.begin(self._pick_handle(pick), _message(text), turn_id)

    def _pick_turn(self, pick: int) -> tuple[OpenHandle, HeldTurn] | None:
        held = [(handle, turn) for handle in self.driver.handles for turn in handle.turns]
        return held[pick % len(held)] if held else None

    @rule(pick=picks, contents=st.lists(texts, min_size=1, max_size=2), number=st.integers(3, 5))
    def append_in_turn(self, pick: int, contents: list[str], number: int) -> None:
        held = self._pick_turn(pick)
        if held is None or held[1].turn.ended:
            return
        handle, (turn, owner) = held
        messages = [_message(text) for text in contents]
        record_id = "id 3" if number == 3 else ""
        write = model.append_write(messages, id=record_id, turn=turn.id, owner=owner)
        run = lambda: turn.append(*messages, id=record_id or None)  # noqa: E731 - like the other steps
        self.driver.call(handle, SessionCall("append", run, write))

    @rule(pick=picks, fails=st.booleans())
    def leave(self, pick: int, *, fails: bool) -> None:
        held = self._pick_turn(pick)
        if held is not None:
            self.driver.leave(*held, ValueError("the body failed") if fails else None)

    @rule(pick=picks, abandons=st.booleans())
    def resume(self, pick: int, *, abandons: bool) -> None:
        handle = self._pick_handle(pick)
        for turn in handle.session.interrupted[:1]:
            if abandons:
                write = model.change_turn_write("turn.abandoned", turn.id)
                self.driver.call(handle, SessionCall("abandon", turn.abandon, write))
            else:
                self.driver.resume(handle, turn)

    # Branching and deleting.

    @rule(pick=picks, name=names, at=picks)
    def branch(self, pick: int, name: str, at: int) -> None:
        handle = self._pick_handle(pick)
        self.driver.branch(handle, name, _position(handle, at))

    @rule(pick=picks, name=names, at=picks)
    def branch_while_another_creates(self, pick: int, name: str, at: int) -> None:
        handle = self._pick_handle(pick)
        self.driver.branch_while_another_creates(handle, name, _position(handle, at))

    @rule(name=names)
    def delete(self, name: str) -> None:
        self.driver.delete(name)

    # Failing.

    @rule(
        pick=picks,
        kind=st.integers(0, 8),
        text=texts,
        fault=faults,
        then=st.sampled_from(["retry", "crash", "overtake"]),
    )
    def write_with_fault(
        self, pick: int, kind: int, text: str, fault: StoreFault, then: str
    ) -> None:
        handle = self._pick_handle(pick)
        if not self.driver.is_current(handle):
            return
        calls: list[Callable[[], SessionCall]] = [
            lambda: _append(handle, [text, "three", text], ""),
            lambda: _set(handle, "plan", {"text": text, "long": LONG}),
            lambda: _label(handle, "urgent", []),
            lambda: _note(handle, text, ""),
            lambda: _begin(handle, text, next(self.driver.numbers)),
            lambda: _retract(handle, [kind], shown=True),
            lambda: _replace(handle, (kind, kind + 1), [text, "three"]),
            lambda: _batch(handle, text, "plan", {"text": text, "long": LONG}),
            lambda: _describe(handle, {"owner": f"of {text}"}),
        ]
        self.driver.call_with_fault(handle, calls[kind](), fault.wrap, then)

    @rule(pick=picks, name=names, at=picks, fault=crashes)
    def crash_while_branching(self, pick: int, name: str, at: int, fault: StoreFault) -> None:
        handle = self._pick_handle(pick)
        self.driver.branch_with_fault(handle, name, _position(handle, at), fault.wrap)

    @rule(pick=picks, keep=st.integers(0, 3), fault=st.one_of(crashes, drop_crashes))
    def crash_while_compacting(self, pick: int, keep: int, fault: StoreFault) -> None:
        self.driver.compact_with_fault(self._pick_filled(pick), keep, fault.wrap)

    @rule(name=names, fault=crashes)
    def crash_while_deleting(self, name: str, fault: StoreFault) -> None:
        self.driver.delete_with_fault(name, fault.wrap)


def _message(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _position(handle: OpenHandle, pick: int) -> int:
    """Return a position of the session, or sometimes the one after its end."""
    first, last = max(handle.life.begin, 1), max(handle.life.position, 1)
    return first + pick % (last - first + 2)


def _append(handle: OpenHandle, contents: list[str], record_id: str) -> SessionCall:
    messages = [_message(text) for text in contents]
    run = lambda: handle.session.append(*messages, id=record_id or None)  # noqa: E731 - like the other steps
    return SessionCall("append", run, model.append_write(messages, id=record_id))


def _note(handle: OpenHandle, text: str, record_id: str) -> SessionCall:
    write = model.note_write(text, id=record_id)
    return SessionCall("note", lambda: handle.session.note(text, id=record_id or None), write)


def _retract(handle: OpenHandle, picks: list[int], *, shown: bool) -> SessionCall:
    """Take messages back that the handle shows, or whatever is at some positions."""
    seen = [item.position for item in handle.life.seen(handle.session.position).shown]
    positions = [
        seen[pick % len(seen)] if shown and seen else _position(handle, pick) for pick in picks
    ]
    positions = sorted({*positions})
    write = model.retract_write(positions)
    return SessionCall("retract", lambda: handle.session.retract(*positions), write)


def _replace(handle: OpenHandle, picks: tuple[int, int], contents: list[str]) -> SessionCall:
    """Replace the messages between two places."""
    places = [item.place for item in handle.life.seen(handle.session.position).shown] or [1]
    first, last = sorted(places[pick % len(places)] for pick in picks)
    messages = [_message(text) for text in contents]
    run = lambda: handle.session.replace(first, last, *messages)  # noqa: E731 - like the other steps
    return SessionCall("replace", run, model.replace_write(first, last, messages))


def _batch(handle: OpenHandle, text: str, key: str, value: Any) -> SessionCall:
    """Write a message, a value, a note and a label in one commit."""

    def run() -> None:
        with handle.session.batch() as batch:
            batch.append(_message(text))
            batch.set(key, value)
            batch.note(text, topic="plans")
            batch.label("urgent")

    parts = [
        model.append_write([_message(text)]),
        model.value_write(key, value),
        model.note_write(text, topic="plans"),
        model.label_write(["urgent"], []),
    ]
    return SessionCall("batch", run, model.batch_write(parts))


def _set(handle: OpenHandle, key: str, value: Any) -> SessionCall:
    return SessionCall("set", lambda: handle.session.set(key, value), model.value_write(key, value))


def _label(handle: OpenHandle, add: str, remove: list[str]) -> SessionCall:
    write = model.label_write([add], remove)
    return SessionCall("label", lambda: handle.session.label(add, remove=remove), write)


def _describe(handle: OpenHandle, fields: dict[str, Any]) -> SessionCall:
    write = model.fields_write(fields)
    return SessionCall("describe", lambda: handle.session.describe(**fields), write)


def _begin(handle: OpenHandle, text: str, owner: int) -> SessionCall:
    """Enter a turn and never leave it, like a body that never returns."""
    turn = handle.session.turn(_message(text))

    def run() -> None:
        turn.__enter__()
        handle.own_turns.add(turn.id)

    return SessionCall(
        "begin", run, model.begin_turn_write(turn.id, _message(text), own_id=False, owner=owner)
    )


def machine_for(open_backend: Callable[[], Backend]) -> type[SessionMachine]:
    """Return a state machine class; its `TestCase` runs under pytest and unittest.

    `open_backend` opens the same store on every call. Every run uses its own session ids, so one
    store serves all runs. Closing a backend must not affect the others.
    """
    return type("SessionMachine", (SessionMachine,), {"open_backend": staticmethod(open_backend)})
