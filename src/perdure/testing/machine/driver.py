"""Perform steps on sessions and compare each result with the prediction of the model.

This part of the state machine does not need hypothesis: the steps are chosen elsewhere.
Rules for editing: expectations come from the model alone. Only positions are taken from the store,
because perdure writes records of its own between those of the application.
"""

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from perdure.backends.protocol import Backend
from perdure.core.settings import Settings
from perdure.errors import (
    CompactedError,
    ConflictError,
    InUseError,
    NotFoundError,
    PerdureError,
    UnavailableError,
    UsageError,
)
from perdure.journal.cipher import PlainCipher
from perdure.journal.codec import Codec
from perdure.journal.ids import random_text, random_texts
from perdure.sync.session import Session
from perdure.sync.store import Store
from perdure.sync.turn import Turn
from perdure.testing.faults import BackendWrapper, Crash, OvertakenBackend
from perdure.testing.machine import model
from perdure.testing.machine.model import (
    AlreadyStored,
    ModelRecord,
    ModelWrite,
    Prediction,
    SessionLife,
)

VIEW_EVERY = 5  # records; often enough that stored views are read again

HANDLES_MAX = 5  # allows two on one session; with more, each would get too few steps

# Records that perdure writes by itself: they have positions but no meaning for the application.
OWN_KINDS = frozenset(
    {
        *("branch.kept", "branch.released", "branched", "deleted"),
        *("batch", "carried", "compacted", "ids.dropped", "index", "snapshot", "view"),
    }
)


UNSHARED_KINDS = frozenset({"fields", "labels"})  # A branch has none of its parent's.


class HeldTurn(NamedTuple):
    """A turn that was entered, and the number of its owner."""

    turn: Turn
    owner: int


class OpenHandle:
    """A handle, the life of the session that it was opened on, and the turns that it holds."""

    def __init__(self, session: Session, life: SessionLife) -> None:
        self.session = session
        self.life = life
        self.turns: list[HeldTurn] = []
        self.known_position = session.position
        """The last position that the caller knows: from opening, refreshing or a ConflictError."""
        self.wrote: set[int] = set()
        self.own_turns: set[str] = set()
        """Turns of this handle, which the session does not list as interrupted."""

    def unseen(self) -> list[ModelRecord]:
        """Return the records of other handles that the caller does not know yet."""
        newer = [record for record in self.life.records if record.position > self.known_position]
        return [record for record in newer if record.position not in self.wrote]

    @property
    def knows_compactions(self) -> bool:
        """Whether the handle has read the newest compaction: before, records may be missing."""
        compactions = self.life.compactions
        return not compactions or compactions[-1][0] <= self.session.position

    @property
    def is_behind(self) -> bool:
        """Whether the caller knows nothing of what a compaction has kept."""
        return self.known_position < self.life.first - 1

    def predict(self, write: ModelWrite) -> Prediction:
        return model.predict(self.life, self.session.position, write, self.unseen())

    def refresh(self) -> None:
        self.session.refresh()
        self.known_position = self.session.position


class SessionCall(NamedTuple):
    """A call on a session, and the write that the model predicts for it."""

    name: str
    run: Callable[[], Any]
    write: ModelWrite


class SessionDriver:
    """A store, the model of its content, and the open handles."""

    def __init__(self, open_backend: Callable[[], Backend]) -> None:
        self._open_backend = open_backend
        self._backends: list[Backend] = []
        self.prefix = f"{random_text()} "
        self.log: list[str] = []
        """Steps and their results, without anything that differs between stores."""
        self.lives: dict[str, SessionLife] = {}
        self.ends: dict[str, int] = {}
        self.numbers = itertools.count(1)
        self.handles: list[OpenHandle] = []
        self.touched: set[str] = set()
        self.crash()

    def crash(self) -> None:
        """Continue as a new process after a crash: all handles are lost, and nothing was closed."""
        self._backends.append(self._open_backend())
        self.wrapper = BackendWrapper(self._backends[-1])
        settings = Settings(
            clock=lambda: 0.0, tokens=random_texts, cipher=PlainCipher(), codec=Codec(None)
        )
        self.store, self._settings = Store(self.wrapper, settings), settings
        self.handles = []
        self.touched = set(self.lives)

    def close(self) -> None:
        for backend in self._backends:
            backend.close()

    def open(self, name: str) -> OpenHandle:
        life = self.lives.get(name) or SessionLife(name, begin=self.ends.get(name, 0))
        handle = self._open_handle(life)
        if name not in self.lives:
            assert handle.session.position == life.begin, "positions continue after a deletion"
        return handle

    def _open_handle(self, life: SessionLife) -> OpenHandle:
        del self.handles[: max(len(self.handles) - HANDLES_MAX + 1, 0)]
        self.handles.append(OpenHandle(self.store.session(self.prefix + life.name), life))
        return self.handles[-1]

    def is_current(self, handle: OpenHandle) -> bool:
        """Return whether a handle is on the current life of its session.

        A handle that was opened before the session existed joins the life that began since.
        """
        life, name = handle.life, handle.life.name
        current = self.lives.get(name)
        if current is None:
            return not life.records and self.ends.get(name, 0) == life.begin
        if not life.records and current.begin == life.begin and not current.owners:
            handle.life = current
        return current is handle.life

    # Writing.

    def call(self, handle: OpenHandle, call: SessionCall) -> bool:
        """Make a call and compare; True if it wrote, or if its records were stored before."""
        if not self.is_current(handle):
            self._call_on_deleted(handle, call)
            return False
        expected = handle.predict(call.write)
        return self.compare(handle, call.name, call.run, expected)

    def compare(
        self, handle: OpenHandle, name: str, run: Callable[[], Any], expected: Prediction
    ) -> bool:
        knew, behind = handle.knows_compactions, handle.is_behind
        try:
            result = run()
        except PerdureError as error:
            self.log.append(f"{name}: {type(error).__name__}")
            explained = _is_expected(handle.life, error, expected, knew=knew, behind=behind)
            assert explained, (name, error, handle.life.compactions, knew, behind, expected)
            if isinstance(error, CompactedError):
                handle.refresh()
            elif isinstance(error, ConflictError) and error.head:
                handle.known_position = handle.session.position
            return False
        assert not isinstance(expected, str), f"{name} gave {result}, not {expected}"
        if isinstance(expected, list):
            self.add_to_model(handle, expected)
        self._compare_result(handle, name, expected, result)
        return True

    def add_to_model(self, handle: OpenHandle, expected: Sequence[ModelRecord]) -> None:
        """Add the expected records to the model, at the positions where the store has them."""
        life, new = handle.life, self._new_records(handle)
        assert [record.kind for record in new] == [record.kind for record in expected]
        for predicted, stored in zip(expected, new, strict=True):
            life.records.append(predicted._replace(position=stored.position))
            handle.wrote.add(stored.position)
        if expected:
            self.lives[life.name] = life
            self.touched.add(life.name)
            written = [(record.kind, record.value) for record in expected]
            self.log.append(f"{life.name} {life.position}: {written}")

    def _new_records(self, handle: OpenHandle) -> list[Any]:
        records = handle.session.records(after=handle.life.position)
        return [record for record in records if record.kind not in OWN_KINDS]

    def _compare_result(
        self, handle: OpenHandle, name: str, expected: Prediction, result: Any
    ) -> None:
        if name == "set" and isinstance(expected, list):
            versions = handle.life.seen(handle.session.position).values[expected[-1].about]
            assert result == len(versions)
        elif name in ("append", "note"):
            if isinstance(expected, AlreadyStored):
                first = [record for record in handle.life.records if record.id == expected.id][-1]
                assert result == first.position + expected.after
                return
            same = [record for record in handle.life.records if record[:4] == expected[-1][:4]]
            assert result == same[-1].position

    def _call_on_deleted(self, handle: OpenHandle, call: SessionCall) -> None:
        """Call a handle of a deleted session twice: it must neither write nor restore the session.

        If a branch has taken the name, the first call is refused; then the handle sees the branch.
        """
        expected = call.write.attempt(handle.life.seen(handle.session.position))
        current = self.lives.get(handle.life.name)
        taken = current is not None and current.owners and not handle.life.records
        for _ in range(1 if taken else 2):
            try:
                call.run()
            except (ConflictError, NotFoundError):
                self.log.append(f"{call.name}: refused")
            except PerdureError as error:
                assert type(error).__name__ == expected, error
            else:
                assert isinstance(expected, AlreadyStored), (
                    f"{call.name} wrote to a deleted session"
                )
        self.drop(handle)

    def view(self, handle: OpenHandle) -> None:
        """Compute a view of the caller's own, which counts records, and compare it."""
        if not self.is_current(handle) or not handle.life.records:
            return

        def count(counts: dict[str, int], record: Any) -> dict[str, int]:
            if record.kind in OWN_KINDS or record.kind in UNSHARED_KINDS:
                return counts
            return {**counts, record.kind: counts.get(record.kind, 0) + 1}

        handle.refresh()
        state = handle.session.view(count, name="counts", initial={}, every=VIEW_EVERY).state
        # A view that was not stored yet does not know what was dropped before.
        firsts = [0, *(first for _, first in handle.life.compactions)]
        assert state in [_count_kinds(handle.life, first) for first in firsts]
        self.log.append(f"view: {sorted(state.items())}")

    def drop(self, handle: OpenHandle) -> None:
        """Forget a handle without closing it; the turns that it holds are interrupted."""
        if handle in self.handles:
            self.handles.remove(handle)

    # Turns.

    def begin(self, handle: OpenHandle, message: dict[str, Any], turn_id: str) -> None:
        """Enter a turn: a new one, or an existing one by its id."""
        turn, owner = handle.session.turn(message, id=turn_id or None), next(self.numbers)
        write = model.begin_turn_write(turn.id, message, own_id=bool(turn_id), owner=owner)
        if not self.is_current(handle):
            self._call_on_deleted(handle, SessionCall("begin", turn.__enter__, write))
            return
        life, seen = handle.life, handle.session.position
        expected = handle.predict(write)
        known = life.seen(seen)
        if turn_id and known.is_dropped(turn.id) and expected != "DivergenceError":
            expected = "CompactedError"
        elif isinstance(expected, AlreadyStored) and turn.id in {*known.turns, *known.failed}:
            continued = model.change_turn_write("turn.continued", turn.id, new_owner=owner)
            expected = handle.predict(continued)
        if self.compare(handle, "begin", turn.__enter__, expected):
            assert turn.ended == isinstance(expected, AlreadyStored)
            handle.own_turns.add(turn.id)
            handle.turns.append(HeldTurn(turn, owner))

    def resume(self, handle: OpenHandle, turn: Turn) -> None:
        """Continue a turn that the session shows as interrupted."""
        owner = next(self.numbers)
        write = model.change_turn_write("turn.continued", turn.id, new_owner=owner)

        def run() -> None:
            turn.__enter__()
            if turn.ended:  # the turn has ended, so nothing was written
                raise ConflictError(turn.id, 0, 0)

        if self.call(handle, SessionCall("continue", run, write)):
            handle.own_turns.add(turn.id)
            handle.turns.append(HeldTurn(turn, owner))

    def leave(self, handle: OpenHandle, held: HeldTurn, error: Exception | None) -> None:
        """Leave a turn's `with`, by its end or by an exception."""
        turn = held.turn
        handle.turns.remove(held)
        handle.own_turns.discard(turn.id)
        if turn.ended:
            turn.__exit__(None, None, None)
            return
        kind = "turn.completed" if error is None else "turn.failed"
        write = model.change_turn_write(kind, turn.id, owner=held.owner)

        def run() -> None:
            turn.__exit__(type(error) if error else None, error, None)
            if getattr(error, "__notes__", None):
                # The body's error is raised; a note on it says that it could not be recorded.
                handle.known_position = handle.session.position
                raise ConflictError(turn.id, 0, 0)

        self.call(handle, SessionCall("leave", run, write))

    # Branching and deleting.

    def branch(self, handle: OpenHandle, name: str, at: int) -> None:
        alive, life = self.is_current(handle), handle.life
        first = max(life.begin, 1)
        if life.compactions:  # Its state is known from the newest compaction on.
            first = life.compactions[-1][0]
        good = alive and life.name in self.lives and first <= at <= handle.session.position
        try:
            child = handle.session.branch(self.prefix + name, at=at)
        except UsageError:
            # Evaluated now: the session may have been created during the call.
            taken = name in self.lives or name in self.ends
            assert taken or not good, "it could have been branched"
        except (ConflictError, NotFoundError):
            assert not good, "it could have been branched"
            self.drop(handle)
        else:
            assert good, "a branch was made of a position that does not exist"
            assert name not in self.lives, "another session was overwritten"
            assert name not in self.ends, "a deleted session was overwritten"
            self._branched(life, name, at)
            assert child.position == at + 1
            self.handles.append(OpenHandle(child, self.lives[name]))

    def branch_while_another_creates(self, handle: OpenHandle, name: str, at: int) -> None:
        """Branch while another store creates a session of that name with the same length."""

        def create() -> None:
            store = Store(self._backends[-1], self._settings)
            other = OpenHandle(store.session(self.prefix + name), SessionLife(name, begin=0))
            messages = [{"role": "user", "content": f"{number} of {at}"} for number in range(at)]
            write = model.append_write(messages)
            self.call(other, SessionCall("append", lambda: other.session.append(*messages), write))

        with self._failing(lambda backend: OvertakenBackend(backend, create)):
            self.branch(handle, name, at)

    def _branched(self, life: SessionLife, name: str, at: int) -> None:
        self.lives[name] = life.branch(name, at)
        self.touched |= {name, life.name}
        self.log.append(f"{life.name} at {at}: branch {name}")

    def delete(self, name: str) -> None:
        expected: type[PerdureError] | None = None if name in self.lives else NotFoundError
        if expected is None and self._is_needed(name):
            expected = InUseError
        try:
            self.store.delete(self.prefix + name)
        except (InUseError, NotFoundError) as error:
            assert type(error) is expected, error
        else:
            assert expected is None, f"{name} was deleted, not {expected}"
            self._deleted(name)

    def _is_needed(self, name: str) -> bool:
        """Return whether a branch shares the records of a session."""
        return any(name == owner for life in self.lives.values() for owner, _ in life.owners[:1])

    def _deleted(self, name: str) -> None:
        end = self.heads(deleted=True)[name].position
        assert end > self.lives[name].position
        del self.lives[name]
        self.ends[name] = end
        self.log.append(f"{name} {end}: deleted")

    def compact(self, handle: OpenHandle, keep: int) -> None:
        """Compact a session to its newest messages, and check what was dropped."""
        life = handle.life
        if not self.is_current(handle) or life.name not in self.lives:
            return
        handle.refresh()
        state, end = life.state, handle.session.position + 1
        wanted = max(model.wanted_first(state, keep, end), life.first)
        try:
            result = handle.session.compact(keep=keep)
        except InUseError:
            assert self._is_needed(life.name), "nothing needs its past"
            return
        if result.records == 0:
            assert handle.session.position == end - 1, "it wrote although there is nothing to drop"
            assert result.limited_by or wanted <= max(life.first, 1) or not state.shown
            return
        assert not self._is_needed(life.name), "a branch needs its past"
        first = result.complete_from
        assert first <= wanted, "more was dropped than allowed"
        assert result.limited_by or first == wanted
        assert result.messages == sum(item.position < first for item in state.shown)
        self._compacted(handle)

    def _compacted(self, handle: OpenHandle) -> None:
        """Add a compaction to the model, at the position where the store has it."""
        life, session = handle.life, handle.session
        first = session.complete_from
        for turn in life.state.turns:
            assert life.state.begun[turn] >= first, "an open turn was dropped"
        for record in life.records:
            if record.call and not record.about:
                stored = session.append(*record.call, id=record.id)
                assert stored == record.position + len(record.call) - 1, "an id was forgotten"
        (at,) = _compactions(session)
        life.compacted(at, first)
        self.touched.add(life.name)
        self.log.append(f"{life.name} {at}: compacted from {first}")

    def compact_with_fault(
        self, handle: OpenHandle, keep: int, fault: Callable[[Backend], Backend]
    ) -> None:
        """Crash during a compaction: it was made or not, and the next one finishes it."""
        try:
            with self._failing(fault):
                self.compact(handle, keep)
        except Crash:
            self.crash()
            after = self._open_handle(handle.life)
            known = [at for at, _ in handle.life.compactions]
            if any(at not in known for at in _compactions(after.session)):
                self._compacted(after)
            self.compact(after, keep)

    def heads(self, **options: Any) -> dict[str, Any]:
        heads = self.store.sessions(prefix=self.prefix, **options)
        return {head.id.removeprefix(self.prefix): head for head in heads}

    # Failing.

    @contextlib.contextmanager
    def _failing(self, fault: Callable[[Backend], Backend]) -> Iterator[None]:
        """Wrap the store for a while."""
        self.wrapper.backend = fault(self._backends[-1])
        try:
            yield
        finally:
            self.wrapper.backend = self._backends[-1]

    def call_with_fault(
        self, handle: OpenHandle, call: SessionCall, fault: Callable[[Backend], Backend], then: str
    ) -> None:
        """Make a call while the store fails; check that it is stored once or not at all."""
        handle.refresh()
        expected = handle.predict(call.write)
        if not isinstance(expected, list):
            return
        try:
            with self._failing(fault):
                call.run()
        except UnavailableError:
            self._resolve(handle, expected, then)
        except Crash:
            self._resolve(handle, expected, "crash")
        else:
            self.add_to_model(handle, expected)

    def _resolve(self, handle: OpenHandle, expected: list[ModelRecord], then: str) -> None:
        if then == "retry":
            handle.refresh()
            self.add_to_model(handle, expected)
            return
        if then == "crash":
            self.crash()
        other = self._open_handle(handle.life)
        self._check_doubt(other, expected)
        if then == "overtake":
            note = model.note_write("meanwhile")
            self.call(other, SessionCall("note", lambda: other.session.note("meanwhile"), note))
            handle.refresh()
            assert self._new_records(handle) == [], "an overtaken write was stored later"

    def _check_doubt(self, handle: OpenHandle, expected: list[ModelRecord]) -> None:
        """Check whether a write in doubt was stored, and update the model."""
        if self._new_records(handle):
            self.add_to_model(handle, expected)

    def branch_with_fault(
        self, handle: OpenHandle, name: str, at: int, fault: Callable[[Backend], Backend]
    ) -> None:
        try:
            with self._failing(fault):
                self.branch(handle, name, at)
        except Crash:
            self.crash()
            if name in self.heads() and name not in self.lives:
                self._branched(handle.life, name, at)

    def delete_with_fault(self, name: str, fault: Callable[[Backend], Backend]) -> None:
        try:
            with self._failing(fault):
                self.delete(name)
        except Crash:
            self.crash()
            if name in self.lives and name not in self.heads():
                self._deleted(name)


def _is_expected(
    life: SessionLife, error: PerdureError, expected: Prediction, *, knew: bool, behind: bool
) -> bool:
    """Return whether an error is the predicted one, or one that a compaction explains.

    A handle that does not know of it cannot read what is gone. One whose view ends before the cut
    cannot tell what it has missed.
    """
    if isinstance(error, CompactedError):
        return not knew or (life.first > 0 and expected in ("CompactedError", "NotFoundError"))
    return type(error).__name__ == expected or (behind and isinstance(error, ConflictError))


def _compactions(session: Session) -> list[int]:
    """Return the position of the newest compaction, if there is one."""
    newest = session.records(kinds=["compacted"], reverse=True, limit=1)
    return [record.position for record in newest]


def _count_kinds(life: SessionLife, first: int) -> dict[str, int]:
    """Count the records from a position on, by kind."""
    kinds = [record.kind for record in life.records if record.position >= first]
    return Counter(kind for kind in kinds if kind not in UNSHARED_KINDS)
