"""An agent that calls again what failed, as applications do, and knows what must be there then."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import perdure
from perdure.errors import NotFoundError, PerdureError, UnavailableError, UsageError

TURNS = 4
ATTEMPTS = 4  # A fault is repaired when it was noticed; then few attempts must be enough.

T = TypeVar("T")


class Unexpected(Exception):  # noqa: N818 - no error of the code, but the finding of a trial
    """What happened instead of a typed error or success."""


class Agent:
    """Talks to a store. `raised` is called whenever a call failed as it may."""

    def __init__(self, open_store: Callable[[], perdure.Store], raised: Callable[[], None]) -> None:
        self._open_store = open_store
        self._raised = raised
        self._told: list[str] = []

    def run(self) -> str:
        """Return what went wrong; "" if every call was answered rightly, with or without errors."""
        try:
            self._run()
        except Unexpected as finding:
            return str(finding)
        return ""

    def _run(self) -> None:
        store = self._again("open", self._open_store)
        session = self._again("session", lambda: store.session("main"))
        doomed = self._again("doomed", lambda: store.session("doomed"))
        self._again("doomed append", lambda: doomed.append(_say("Forget me."), id="doomed"))
        for turn in range(TURNS):
            self._again(f"turn {turn}", partial(self._turn, session, turn))
            self._again(f"set {turn}", partial(session.set, "plan", _plan(turn)))
            self._read(session)
        several = [_say(f"Part {part}.") for part in range(3)]
        self._again("several", lambda: session.append(*several, id="several"))
        self._again("branch", lambda: self._branch(store, session))
        self._again("delete", lambda: self._delete(store))
        self._again("verify", session.verify)
        self._again("close", store.close)

    def _again(self, what: str, call: Callable[[], T]) -> T:
        last: PerdureError | None = None
        for _ in range(ATTEMPTS):
            try:
                return call()
            except UnavailableError as error:
                last = error
                self._raised()
            except Unexpected:
                raise
            except Exception as error:
                raise Unexpected(f"{what}: {type(error).__name__}: {error}") from error
        raise Unexpected(f"{what}: it did not go on when the fault was gone: {last}") from last

    def _turn(self, session: perdure.Session, number: int) -> None:
        with session.turn(f"Question {number}?", id=f"turn-{number}") as turn:
            if not turn.ended:
                said = _say(f"Answer {number}.")
                self._again(f"append {number}", lambda: turn.append(said, id=f"answer-{number}"))

    def _read(self, session: perdure.Session) -> None:
        """What was acknowledged can be read, or the store says that it can not be read now."""
        told = self._again("messages", session.messages)
        texts = [message["content"] for message in told]
        if texts != _expected()[: len(texts)] or len(texts) < len(self._told):
            raise Unexpected(f"after {self._told} one reads {texts}")
        self._told = texts

    def _branch(self, store: perdure.Store, session: perdure.Session) -> None:
        try:
            session.branch("branch")
        except UsageError:
            store.resume("branch")  # The name is taken: by the attempt before, or it is not there.

    def _delete(self, store: perdure.Store) -> None:
        try:
            store.delete("doomed")
        except NotFoundError:
            if any(head.id == "doomed" for head in store.sessions()):
                raise

    @staticmethod
    def judge(store: perdure.Store) -> str:
        """Say what is missing, double or open after a talk that went well in the end."""
        session = store.session("main")
        texts = [message["content"] for message in session.messages()]
        if texts != _expected():
            return f"{texts} is not what was said"
        if session.get("plan") != _plan(TURNS - 1):
            return f"the plan is {session.get('plan')}"
        if session.interrupted:
            return f"{session.interrupted} did not end"
        names = [head.id for head in store.sessions()]
        return "" if names == ["branch", "main"] else f"the sessions are {names}"


def _expected() -> list[str]:
    turns = [text for turn in range(TURNS) for text in (f"Question {turn}?", f"Answer {turn}.")]
    return [*turns, *(f"Part {part}." for part in range(3))]


def _say(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def _plan(turn: int) -> dict[str, Any]:
    return {"turn": turn, "steps": [{"step": step, "done": step < turn} for step in range(30)]}
