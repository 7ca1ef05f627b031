"""What an agent does all day, in cycles of 20 turns: the workload whose crashes are tried.

In each cycle occur: turns that end well and one that fails and is continued later, appends of
several messages, a long message, values and their deltas, a value's deletion, notes, labels, a
branch and turns in it, a session that is deleted, batches of one session and of several, sessions
that commit together, and a store that is closed and opened again. Snapshots are frequent and pages
of the index small, so that a cycle has several runs and merges of them.
"""

import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import perdure
from perdure.core import index
from perdure.core.state import session_state
from perdure.errors import UnsupportedError

CYCLE = 20
LONG = "It was a bright cold day in April. " * 600  # Spans several pages of the database.


def play(open_store: Callable[[], perdure.Store], turns: int) -> None:
    """Run the script on stores that `open_store` opens, one after the other."""
    with (
        mock.patch.object(session_state, "SNAPSHOT_EVERY", 12),
        mock.patch.object(index, "PAGE_ROWS", 2),
    ):
        store = open_store()
        for cycle in range(0, turns, CYCLE):
            half = min(cycle + CYCLE // 2, turns)
            _Cycle(store, cycle).run(range(cycle, half))
            store.close()
            store = open_store()
            _Cycle(store, cycle).run(range(half, min(cycle + CYCLE, turns)))
        store.close()


class _Cycle:
    def __init__(self, store: perdure.Store, number: int) -> None:
        self._store = store
        self._number = number
        self._main = store.session("main")

    def run(self, turns: range) -> None:
        for turn in turns:
            session = self._main if turn % 4 else self._store.session(f"other-{turn % 3}")
            self._converse(session, turn)
            between = _BETWEEN.get(turn % CYCLE)
            if between is not None:
                between(self, turn)

    def _converse(self, session: perdure.Session, turn: int) -> None:
        try:
            with session.turn(f"Question {turn}?", id=f"turn-{turn}") as open_turn:
                open_turn.append(_say(f"Answer {turn}."))
                if turn % 2:
                    session.set("plan", _plan(turn))
                _model(turn)
        except TimeoutError:
            pass

    def retry(self, turn: int) -> None:
        with self._main.turn(f"Question {turn - 2}?", id=f"turn-{turn - 2}") as again:
            again.append(_say(f"Answer {turn - 2}, after all."))

    def several(self, turn: int) -> None:
        self._main.append(*(_say(f"{turn}.{number}") for number in range(5)), id=f"several-{turn}")

    def long(self, turn: int) -> None:
        self._main.append(_say(f"{turn}: {LONG}"))

    def remark(self, turn: int) -> None:
        self._main.note({"seen": turn}, author="watcher")
        self._main.label(f"cycle-{turn // CYCLE % 8}", remove=[f"cycle-{(turn // CYCLE - 1) % 8}"])

    def forget(self, turn: int) -> None:
        self._main.set("scratch", {"turn": turn})
        self._main.delete("scratch")

    def doomed(self, turn: int) -> None:
        doomed = self._store.session(f"doomed-{self._number}")
        for number in range(4):
            doomed.append(_say(f"Forget {number}."), _say("Forgotten."))

    def delete(self, turn: int) -> None:
        self._store.delete(f"doomed-{self._number}", reason="asked for")

    def branch(self, turn: int) -> None:
        branch = self._main.branch(f"branch-{self._number}")
        with branch.turn("What if?") as what_if:
            what_if.append(_say("Then so."))

    def batch(self, turn: int) -> None:
        with self._main.batch(id=f"batch-{turn}") as batch:
            batch.append(_say(f"Counted {turn}."))
            batch.set("plan", _plan(turn))
            batch.note({"batch": turn})
        with self._main.turn(f"Batch {turn}?") as open_turn, open_turn.batch() as end:
            end.append(_say(f"Ended {turn}."))
            end.set("turns", turn)
            end.complete()

    def sessions(self, turn: int) -> None:
        side = self._store.session("side-0")
        try:
            with self._store.batch() as batch:
                batch.session(self._main).append(_say(f"Both {turn}."))
                batch.session(side).append(_say(f"Both {turn}."))
                batch.session(side.id + "-fresh").set("turn", turn)
        except UnsupportedError:  # A store of files has no commit over several of them.
            side.append(_say(f"Alone {turn}."))

    def together(self, turn: int) -> None:
        sessions = [self._store.session(f"side-{number}") for number in range(4)]
        start = threading.Barrier(len(sessions))

        def speak(session: perdure.Session) -> None:
            start.wait()
            session.append(_say(f"At once {turn}."))
            session.append(_say("And again."), _say("And more."))

        threads = [threading.Thread(target=speak, args=(session,)) for session in sessions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _model(turn: int) -> None:
    if turn % CYCLE == 6:
        raise TimeoutError("the model did not answer")


def _say(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def _plan(turn: int) -> dict[str, Any]:
    """Return a document of which only little changes, so that it is stored as a delta."""
    steps = [{"step": number, "done": number < turn} for number in range(40)]
    return {"turn": turn, "steps": steps, "goal": "a checklist"}


_BETWEEN: dict[int, Callable[[_Cycle, int], None]] = {
    1: _Cycle.doomed,
    2: _Cycle.batch,
    3: _Cycle.several,
    5: _Cycle.together,
    6: _Cycle.sessions,
    7: _Cycle.branch,
    8: _Cycle.retry,
    9: _Cycle.forget,
    11: _Cycle.delete,
    13: _Cycle.remark,
    15: _Cycle.long,
    17: _Cycle.together,
}
