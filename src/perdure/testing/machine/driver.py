"""Do something with a session and compare what it comes to with what the model says.

This is the part of the machine that needs no hypothesis: what is done next is decided elsewhere.
Rules for editors: an expectation comes from the model alone; only positions are learnt from the
store, because perdure puts records of its own between those of the application.
"""

# ruff: noqa: S101, PT017 - a machine asserts, with or without pytest
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from perdure.backends.protocol import Backend
from perdure.core.settings import Settings
from perdure.errors import (
    ConflictError,
    InUseError,
    NotFoundError,
    PerdureError,
    UnavailableError,
    UsageError,
)
from perdure.journal.cipher import PlainCipher
from perdure.journal.codec import Codec
from perdure.journal.ids import random_text
from perdure.sync.session import Session
from perdure.sync.store import Store
from perdure.sync.turn import Turn
from perdure.testing.faults import Crash, _Around, _Overtaken
from perdure.testing.machine import model
from perdure.testing.machine.model import Answer, Known, Life, Said, Write

HANDLES = 5  # Enough for two on one session; more would each see too little.

# What perdure adds by itself: it has positions, and says nothing to the application.
OWN_KINDS = frozenset({"snapshot", "recovered", "kept", "released", "branched", "deleted"})


class Held(NamedTuple):
    """A turn that was entered, and the number that says who holds it."""

    turn: Turn
    owner: int


class Opened:
    """A handle, the life that it was opened on, and the turns that it holds."""

    def __init__(self, session: Session, life: Life) -> None:
        self.session = session
        self.life = life
        self.turns: list[Held] = []
        self.told = session.position
        """How far its caller knows: by opening, refreshing, or being told of a conflict."""
        self.wrote: set[int] = set()
        self.own: set[str] = set()
        """The turns that the session counts as this handle's own, and does not show."""

    def untold(self) -> list[Said]:
        """What others wrote that the caller of this handle was not told of."""
        newer = [record for record in self.life.records if record.position > self.told]
        return [record for record in newer if record.position not in self.wrote]

    def predict(self, write: Write) -> Answer:
        return model.predict(self.life, self.session.position, write, self.untold())

    def refresh(self) -> None:
        self.session.refresh()
        self.told = self.session.position


class Call(NamedTuple):
    """Something to be called, and what the model says that it writes."""

    name: str
    run: Callable[[], Any]
    write: Write


class Driving:
    """A store, the model of what is in it, and the handles that are open."""

    def __init__(self, open_backend: Callable[[], Backend]) -> None:
        self._open_backend = open_backend
        self._backends: list[Backend] = []
        self.prefix = f"{random_text()} "
        self.log: list[str] = []
        """What was done and what came of it, without anything that differs between stores."""
        self.lives: dict[str, Life] = {}
        self.ends: dict[str, int] = {}
        self.numbers = itertools.count(1)
        self.handles: list[Opened] = []
        self.touched: set[str] = set()
        self.die()

    def die(self) -> None:
        """Go on as a new process would: everything held is lost, and nothing was closed."""
        self._backends.append(self._open_backend())
        self.around = _Around(self._backends[-1])
        settings = Settings(
            clock=lambda: 0.0, token=random_text, cipher=PlainCipher(), codec=Codec(None)
        )
        self.store, self._settings = Store(self.around, settings), settings
        self.handles = []
        self.touched = set(self.lives)

    def close(self) -> None:
        for backend in self._backends:
            backend.close()

    def open(self, name: str) -> Opened:
        life = self.lives.get(name) or Life(name, begin=self.ends.get(name, 0))
        opened = self._opened(life)
        if name not in self.lives:
            assert opened.session.position == life.begin, "the numbering goes on"
        return opened

    def _opened(self, life: Life) -> Opened:
        del self.handles[: max(len(self.handles) - HANDLES + 1, 0)]
        self.handles.append(Opened(self.store.session(self.prefix + life.name), life))
        return self.handles[-1]

    def joined(self, opened: Opened) -> bool:
        """Whether a handle is on the session as it is now.

        One that was opened when there was none yet becomes part of the life that began since.
        """
        life, name = opened.life, opened.life.name
        current = self.lives.get(name)
        if current is None:
            return not life.records and self.ends.get(name, 0) == life.begin
        if not life.records and current.begin == life.begin and not current.owners:
            opened.life = current
        return current is opened.life

    # Writing.

    def call(self, opened: Opened, call: Call) -> bool:
        """Make a call and compare; True if it wrote, or what it would write stood there."""
        if not self.joined(opened):
            self._call_the_dead(opened, call)
            return False
        expected = opened.predict(call.write)
        return self.compare(opened, call.name, call.run, expected)

    def compare(self, opened: Opened, name: str, run: Callable[[], Any], expected: Answer) -> bool:
        try:
            answer = run()
        except PerdureError as error:
            self.log.append(f"{name}: {type(error).__name__}")
            assert type(error).__name__ == expected, (name, error, expected)
            if isinstance(error, ConflictError) and error.head:
                opened.told = opened.session.position
            return False
        assert not isinstance(expected, str), f"{name} gave {answer}, not {expected}"
        if isinstance(expected, list):
            self.learn(opened, expected)
        self._compare_answer(opened, name, expected, answer)
        return True

    def learn(self, opened: Opened, expected: Sequence[Said]) -> None:
        """Take in the records that were to be written, at the positions where they stand."""
        life, new = opened.life, self._new(opened)
        assert [record.kind for record in new] == [said.kind for said in expected]
        for said, record in zip(expected, new, strict=True):
            life.records.append(said._replace(position=record.position))
            opened.wrote.add(record.position)
        if expected:
            self.lives[life.name] = life
            self.touched.add(life.name)
            says = [(said.kind, said.says) for said in expected]
            self.log.append(f"{life.name} {life.position}: {says}")

    def _new(self, opened: Opened) -> list[Any]:
        records = opened.session.records(after=opened.life.position)
        return [record for record in records if record.kind not in OWN_KINDS]

    def _compare_answer(self, opened: Opened, name: str, expected: Answer, answer: Any) -> None:
        if name == "set" and isinstance(expected, list):
            versions = opened.life.seen(opened.session.position).values[expected[-1].about]
            assert answer == len(versions)
        elif name in ("append", "note"):
            if isinstance(expected, Known):
                first = [one for one in opened.life.records if one.id == expected.id][-1]
                assert answer == first.position + expected.after
                return
            same = [one for one in opened.life.records if one[:4] == expected[-1][:4]]
            assert answer == same[-1].position

    def _call_the_dead(self, opened: Opened, call: Call) -> None:
        """A handle whose session was deleted must neither write nor bring it back, asked twice.

        One whose name was taken by a branch is refused once, and sees the branch then.
        """
        old = call.write.attempt(opened.life.seen(opened.session.position))
        current = self.lives.get(opened.life.name)
        taken = current is not None and current.owners and not opened.life.records
        for _ in range(1 if taken else 2):
            try:
                call.run()
            except (ConflictError, NotFoundError):
                self.log.append(f"{call.name}: refused")
            except PerdureError as error:
                assert type(error).__name__ == old, error
            else:
                assert isinstance(old, Known), f"{call.name} wrote to a deleted session"
        self.drop(opened)

    def drop(self, opened: Opened) -> None:
        """Let go of a handle; the turns that it holds are interrupted."""
        if opened in self.handles:
            self.handles.remove(opened)

    # Turns.

    def begin(self, opened: Opened, message: dict[str, Any], turn_id: str) -> None:
        """Enter a turn: a new one, or by its id one that began before."""
        turn, owner = opened.session.turn(message, id=turn_id or None), next(self.numbers)
        write = model.beginning(turn.id, message, own=bool(turn_id), owner=owner)
        if not self.joined(opened):
            self._call_the_dead(opened, Call("begin", turn.__enter__, write))
            return
        life, seen = opened.life, opened.session.position
        expected = opened.predict(write)
        if isinstance(expected, Known) and turn.id in life.seen(seen).turns:
            again = model.changing("turn.continued", turn.id, now=owner)
            expected = opened.predict(again)
        if self.compare(opened, "begin", turn.__enter__, expected):
            assert turn.ended == isinstance(expected, Known)
            opened.own.add(turn.id)
            opened.turns.append(Held(turn, owner))

    def resume(self, opened: Opened, turn: Turn) -> None:
        """Continue a turn that the session shows as interrupted."""
        owner = next(self.numbers)
        write = model.changing("turn.continued", turn.id, now=owner)

        def run() -> None:
            turn.__enter__()
            if turn.ended:  # There is nothing to be continued any more, and nothing was written.
                raise ConflictError(turn.id, 0, 0)

        if self.call(opened, Call("continue", run, write)):
            opened.own.add(turn.id)
            opened.turns.append(Held(turn, owner))

    def leave(self, opened: Opened, held: Held, error: Exception | None) -> None:
        """Leave a turn's `with`, by its end or by an exception."""
        turn = held.turn
        opened.turns.remove(held)
        opened.own.discard(turn.id)
        if turn.ended:
            turn.__exit__(None, None, None)
            return
        kind = "turn.completed" if error is None else "turn.failed"
        write = model.changing(kind, turn.id, owner=held.owner)

        def run() -> None:
            turn.__exit__(type(error) if error else None, error, None)
            if getattr(error, "__notes__", None):
                # The error of the body goes on, and says that it could not be recorded.
                opened.told = opened.session.position
                raise ConflictError(turn.id, 0, 0)

        self.call(opened, Call("leave", run, write))

    # Branching and deleting.

    def branch(self, opened: Opened, name: str, at: int) -> None:
        alive, life = self.joined(opened), opened.life
        first = max(life.begin, 1)
        good = alive and life.name in self.lives and first <= at <= opened.session.position
        try:
            child = opened.session.branch(self.prefix + name, at=at)
        except UsageError:
            # Looked at now: others may have begun a session of that name meanwhile.
            taken = name in self.lives or name in self.ends
            assert taken or not good or at in life.torn, "it could have been branched"
        except (ConflictError, NotFoundError):
            assert not good, "it could have been branched"
            self.drop(opened)
        else:
            assert good, "what is not there was branched"
            assert name not in self.lives, "another session was overwritten"
            assert name not in self.ends, "a deleted session was overwritten"
            self._branched(life, name, at)
            assert child.position == at + 1
            self.handles.append(Opened(child, self.lives[name]))

    def branch_while_another_creates(self, opened: Opened, name: str, at: int) -> None:
        """Branch while somebody begins a session of that name, as long as the past to be shared."""

        def create() -> None:
            store = Store(self._backends[-1], self._settings)
            other = Opened(store.session(self.prefix + name), Life(name, begin=0))
            messages = [{"role": "user", "content": f"{number} of {at}"} for number in range(at)]
            write = model.saying(messages)
            self.call(other, Call("append", lambda: other.session.append(*messages), write))

        self.around.backend = _Overtaken(self._backends[-1], create)
        try:
            self.branch(opened, name, at)
        finally:
            self.around.backend = self._backends[-1]

    def _branched(self, life: Life, name: str, at: int) -> None:
        self.lives[name] = life.branch(name, at)
        self.touched |= {name, life.name}
        self.log.append(f"{life.name} at {at}: branch {name}")

    def delete(self, name: str) -> None:
        needed = any(name == owner for life in self.lives.values() for owner, _ in life.owners[:1])
        expected: type[PerdureError] | None = None if name in self.lives else NotFoundError
        if expected is None and needed:
            expected = InUseError
        try:
            self.store.delete(self.prefix + name)
        except (InUseError, NotFoundError) as error:
            assert type(error) is expected, error
        else:
            assert expected is None, f"{name} was deleted, not {expected}"
            self._deleted(name)

    def _deleted(self, name: str) -> None:
        end = self._heads(deleted=True)[name].position
        assert end > self.lives[name].position
        del self.lives[name]
        self.ends[name] = end
        self.log.append(f"{name} {end}: deleted")

    def _heads(self, **options: Any) -> dict[str, Any]:
        heads = self.store.sessions(prefix=self.prefix, **options)
        return {head.stream.removeprefix(self.prefix): head for head in heads}

    # Failing.

    def call_with_fault(
        self, opened: Opened, call: Call, fault: Callable[[Backend], Backend], then: str
    ) -> None:
        """Make a call while the store fails, and see that it was stored once or not at all."""
        opened.refresh()
        expected = opened.predict(call.write)
        if not isinstance(expected, list):
            return
        self.around.backend = fault(self._backends[-1])
        try:
            call.run()
        except UnavailableError:
            self.around.backend = self._backends[-1]
            self._resolve(opened, expected, then)
        except Crash:
            self._resolve(opened, expected, "die")
        else:
            self.around.backend = self._backends[-1]
            self.learn(opened, expected)

    def _resolve(self, opened: Opened, expected: list[Said], then: str) -> None:
        if then == "settle":
            opened.refresh()
            self.learn(opened, expected)
            return
        if then == "die":
            self.die()
        other = self._opened(opened.life)
        self._look(other, expected)
        if then == "overtake":
            note = model.noting("meanwhile")
            self.call(other, Call("note", lambda: other.session.note("meanwhile"), note))
            opened.refresh()
            assert self._new(opened) == [], "it came back after it had been overtaken"

    def _look(self, opened: Opened, expected: list[Said]) -> None:
        """See whether a write in doubt was stored."""
        life, end = opened.life, opened.session.position
        if self._new(opened):
            self.learn(opened, expected)
        elif end > life.position:
            life.torn |= set(range(life.position + 1, end + 1))
            self.touched.add(life.name)

    def branch_with_fault(
        self, opened: Opened, name: str, at: int, fault: Callable[[Backend], Backend]
    ) -> None:
        self.around.backend = fault(self._backends[-1])
        try:
            self.branch(opened, name, at)
        except Crash:
            self.die()
            if name in self._heads() and name not in self.lives:
                self._branched(opened.life, name, at)
        finally:
            self.around.backend = self._backends[-1]

    def delete_with_fault(self, name: str, fault: Callable[[Backend], Backend]) -> None:
        self.around.backend = fault(self._backends[-1])
        try:
            self.delete(name)
        except Crash:
            self.die()
            if name in self.lives and name not in self._heads():
                self._deleted(name)
        finally:
            self.around.backend = self._backends[-1]
