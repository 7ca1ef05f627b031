"""A state machine for hypothesis: sessions of a store against a model made of lists.

    TestMine = machine_for(lambda: MyBackend("store")).TestCase

What is done next is decided here; `machine_driving` does it, `machine_model` says what should come
of it, and `machine_checking` looks. Nothing else in perdure imports hypothesis.
"""

# ruff: noqa: S101, PLR2004 - a machine asserts; how often is a matter of taste
import sys
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from perdure.backends.protocol import Backend
from perdure.core.state import session_state
from perdure.testing.faults import CrashAt, Flaky, Torn
from perdure.testing.machine import model
from perdure.testing.machine.checks import check_touched
from perdure.testing.machine.driver import Call, Driving, Held, Opened
from perdure.testing.machine.model import GONE

NAMES = ("a", "a/1", "b", "é")

KEYS = ("plan", "x")

LABELS = ("new", "urgent")

TORN = "torn"

LONG = "a sentence that is repeated until a delta is shorter than the whole. " * 8


class Fault(NamedTuple):
    """A way in which a store fails, as a wrapper; its name is what a failing run shows."""

    name: str
    around: Callable[[Backend], Backend]


picks = st.integers(0, 1_000)

names = st.sampled_from(NAMES)

texts = st.sampled_from(["one", "two", "", "três 💾"])

documents = st.one_of(
    st.integers(-5, 5),
    st.none(),
    st.builds(lambda n, text: {"n": n, "text": text, "long": LONG}, st.integers(0, 9), texts),
    st.builds(lambda n: [LONG[n:], n, {"deep": [LONG[: 300 + n]]}], st.integers(0, 9)),
)


def _crash(point: Literal["append.before", "append.after"], nth: int) -> Fault:
    return Fault(f"{point} {nth}", lambda backend: CrashAt(backend, point, nth=nth))


def _failure(times: int, *, after_commit: bool) -> Fault:
    """A commit is sent again once by itself, so it takes two failures to leave it in doubt."""

    def around(backend: Backend) -> Backend:
        return Flaky(backend, fail=lambda call: call <= times, after_commit=after_commit)

    return Fault(f"fails {times} after_commit={after_commit}", around)


def _tear(keep: int) -> Fault:
    def around(backend: Backend) -> Backend:
        return Flaky(Torn(backend, keep=keep), fail=lambda call: call == 2)

    return Fault(TORN, around)


crashes = st.builds(_crash, st.sampled_from(["append.before", "append.after"]), st.integers(1, 3))

faults = st.one_of(
    crashes,
    st.builds(_failure, st.integers(1, 2), after_commit=st.booleans()),
    st.builds(_tear, st.integers(1, 3)),
)


class Sessions(RuleBasedStateMachine):
    """Does what an application, another one beside it, and a failing machine can do."""

    open_backend: ClassVar[Callable[[], Backend]]

    def __init__(self) -> None:
        super().__init__()
        self._interval = session_state.SNAPSHOT_EVERY
        self.driving = Driving(type(self).open_backend)

    @initialize(interval=st.sampled_from([4, 9, session_state.SNAPSHOT_EVERY]))
    def take_snapshots_this_often(self, interval: int) -> None:
        session_state.SNAPSHOT_EVERY = interval

    @invariant()
    def sessions_show_what_the_model_says(self) -> None:
        check_touched(self.driving)

    def teardown(self) -> None:
        """Look at everything once more, as a new process, and leave things as they were."""
        session_state.SNAPSHOT_EVERY = self._interval
        try:
            if sys.exc_info()[0] is None:
                self.driving.die()
                check_touched(self.driving)
        finally:
            self.driving.close()

    def _handle(self, pick: int) -> Opened:
        """One of the open handles. At first there are two on one session, so that they meet."""
        handles = self.driving.handles
        if len(handles) < 2:
            name = handles[0].life.name if handles else NAMES[pick % len(NAMES)]
            self.driving.open(name)
            self.driving.open(name)
        return handles[pick % len(handles)]

    @rule(pick=picks, name=names, beside=st.booleans())
    def open(self, pick: int, name: str, *, beside: bool) -> None:
        self.driving.open(self._handle(pick).life.name if beside else name)

    @rule(pick=picks)
    def drop(self, pick: int) -> None:
        self.driving.drop(self._handle(pick))

    @rule()
    def die(self) -> None:
        self.driving.die()

    @rule(pick=picks)
    def refresh(self, pick: int) -> None:
        opened = self._handle(pick)
        if self.driving.joined(opened):
            opened.refresh()
            assert opened.session.position >= opened.life.position
        else:
            self.driving.drop(opened)

    # Writing. There are few ids and few texts, so that the same id comes with the same messages,
    # and with others.

    @rule(pick=picks, said=st.lists(texts, min_size=1, max_size=4), number=st.integers(0, 5))
    def append(self, pick: int, said: list[str], number: int) -> None:
        opened = self._handle(pick)
        self.driving.call(opened, _append(opened, said, f"id {number}" if number < 3 else ""))

    @rule(pick=picks, text=texts, number=st.integers(0, 4))
    def note(self, pick: int, text: str, number: int) -> None:
        opened = self._handle(pick)
        self.driving.call(opened, _note(opened, text, f"id {number}" if number < 2 else ""))

    @rule(pick=picks, key=st.sampled_from(KEYS), value=documents)
    def set(self, pick: int, key: str, value: Any) -> None:
        opened = self._handle(pick)
        self.driving.call(opened, _set(opened, key, value))

    @rule(pick=picks, key=st.sampled_from(KEYS))
    def forget(self, pick: int, key: str) -> None:
        opened = self._handle(pick)
        write = model.setting(key, GONE)
        self.driving.call(opened, Call("forget", lambda: opened.session.delete(key), write))

    @rule(pick=picks, add=st.sampled_from(LABELS), remove=st.sampled_from((*LABELS, "")))
    def label(self, pick: int, add: str, remove: str) -> None:
        opened = self._handle(pick)
        self.driving.call(opened, _label(opened, add, [remove] if remove else []))

    # Turns.

    @rule(pick=picks, text=texts, number=st.integers(0, 3))
    def begin(self, pick: int, text: str, number: int) -> None:
        turn_id = f"turn {number}" if number < 2 else ""
        self.driving.begin(self._handle(pick), _message(text), turn_id)

    def _held(self, pick: int) -> tuple[Opened, Held] | None:
        held = [(one, turn) for one in self.driving.handles for turn in one.turns]
        return held[pick % len(held)] if held else None

    @rule(pick=picks, said=st.lists(texts, min_size=1, max_size=2), number=st.integers(3, 5))
    def say(self, pick: int, said: list[str], number: int) -> None:
        found = self._held(pick)
        if found is None or found[1].turn.ended:
            return
        opened, (turn, owner) = found
        messages, own = [_message(text) for text in said], "id 3" if number == 3 else ""
        write = model.saying(messages, id=own, turn=turn.id, owner=owner)
        run = lambda: turn.append(*messages, id=own or None)  # noqa: E731 - as short as its twins
        self.driving.call(opened, Call("append", run, write))

    @rule(pick=picks, fails=st.booleans())
    def leave(self, pick: int, *, fails: bool) -> None:
        found = self._held(pick)
        if found is not None:
            self.driving.leave(*found, ValueError("the body failed") if fails else None)

    @rule(pick=picks, gives_up=st.booleans())
    def resume(self, pick: int, *, gives_up: bool) -> None:
        opened = self._handle(pick)
        for turn in opened.session.interrupted[:1]:
            if gives_up:
                write = model.changing("turn.abandoned", turn.id)
                self.driving.call(opened, Call("abandon", turn.abandon, write))
            else:
                self.driving.resume(opened, turn)

    # Branching and deleting.

    @rule(pick=picks, name=names, at=picks)
    def branch(self, pick: int, name: str, at: int) -> None:
        opened = self._handle(pick)
        self.driving.branch(opened, name, _position(opened, at))

    @rule(pick=picks, name=names, at=picks)
    def branch_while_another_creates(self, pick: int, name: str, at: int) -> None:
        opened = self._handle(pick)
        self.driving.branch_while_another_creates(opened, name, _position(opened, at))

    @rule(name=names)
    def delete(self, name: str) -> None:
        self.driving.delete(name)

    # Failing.

    @rule(
        pick=picks,
        what=st.integers(0, 4),
        text=texts,
        fault=faults,
        then=st.sampled_from(["settle", "die", "overtake"]),
    )
    def write_while_the_store_fails(
        self, pick: int, what: int, text: str, fault: Fault, then: str
    ) -> None:
        opened = self._handle(pick)
        if not self.driving.joined(opened):
            return
        if fault.name == TORN and opened.life.name not in self.driving.lives:
            return  # Whether a session of which only that is left exists is nobody's guess.
        calls: list[Callable[[], Call]] = [
            lambda: _append(opened, [text, "three", text], ""),
            lambda: _set(opened, "plan", {"text": text, "long": LONG}),
            lambda: _label(opened, "urgent", []),
            lambda: _note(opened, text, ""),
            lambda: _begin(opened, text, next(self.driving.numbers)),
        ]
        self.driving.call_with_fault(opened, calls[what](), fault.around, then)

    @rule(pick=picks, name=names, at=picks, fault=crashes)
    def die_while_branching(self, pick: int, name: str, at: int, fault: Fault) -> None:
        opened = self._handle(pick)
        self.driving.branch_with_fault(opened, name, _position(opened, at), fault.around)

    @rule(name=names, fault=crashes)
    def die_while_deleting(self, name: str, fault: Fault) -> None:
        self.driving.delete_with_fault(name, fault.around)


def _message(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _position(opened: Opened, pick: int) -> int:
    """Any position of a life, and now and then one beyond."""
    first, last = max(opened.life.begin, 1), max(opened.life.position, 1)
    return first + pick % (last - first + 2)


def _append(opened: Opened, said: list[str], own: str) -> Call:
    messages = [_message(text) for text in said]
    run = lambda: opened.session.append(*messages, id=own or None)  # noqa: E731 - one of a kind
    return Call("append", run, model.saying(messages, id=own))


def _note(opened: Opened, text: str, own: str) -> Call:
    write = model.noting(text, id=own)
    return Call("note", lambda: opened.session.note(text, id=own or None), write)


def _set(opened: Opened, key: str, value: Any) -> Call:
    return Call("set", lambda: opened.session.set(key, value), model.setting(key, value))


def _label(opened: Opened, add: str, remove: list[str]) -> Call:
    write = model.labelling([add], remove)
    return Call("label", lambda: opened.session.label(add, remove=remove), write)


def _begin(opened: Opened, text: str, owner: int) -> Call:
    """A turn that is entered and then forgotten, as by a body that never ends."""
    turn = opened.session.turn(_message(text))

    def run() -> None:
        turn.__enter__()
        opened.own.add(turn.id)

    return Call("begin", run, model.beginning(turn.id, _message(text), own=False, owner=owner))


def machine_for(open_backend: Callable[[], Backend]) -> type[Sessions]:
    """Return a state machine class; its `TestCase` is a test, for pytest and unittest alike.

    `open_backend` opens the same store each time it is called. Every run uses session ids of its
    own, so one store serves all runs. Closing one of the backends must not harm the others.
    """
    return type("Sessions", (Sessions,), {"open_backend": staticmethod(open_backend)})
