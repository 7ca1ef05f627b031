"""What agents say, recorded before it is handed over; and in a chat that goes on, compared.

A group's manager passes on what it was told. That is not recorded again: what a participant said
to the manager stands once, and who got it follows from who was in the group.
"""

import json
from collections import deque
from collections.abc import Callable, Iterator
from hashlib import sha256
from threading import RLock
from typing import Any, NamedTuple

from perdure import DivergenceError, PerdureError, Session, Turn, UsageError

CHANNEL = "autogen"
_KINDS = ("message", "turn.abandoned", "turn.failed")
INSTEAD = "autogen:instead"  # The origin of what a manager told somebody in place of a message.
HINT = (
    "the chat that was interrupted goes on only with the code and agents that began it: run those, "
    "or give it up with persist(...).abandon()"
)


class Spoken(NamedTuple):
    """A recorded message between two agents."""

    position: int
    turn: str
    author: str
    recipient: str
    origin: str
    message: dict[str, Any]


def spoken(session: Session, after: int = 0) -> tuple[list[Spoken], int]:
    """Return what agents said, without what was given up, and how many messages are not theirs."""
    records = [one for one in session.records(after=after) if one.kind in _KINDS]
    said: list[Any] = [one for one in records if one.kind == "message"]
    ended: list[Any] = [one for one in records if one.kind != "message"]
    given_up = {one.content.turn for one in ended}
    found: list[Spoken] = []
    others = 0
    for record, message in zip(said, session.messages(last=len(said)), strict=True):
        content = record.content
        if content.channel == CHANNEL:
            names = content.author, content.recipient
            found.append(Spoken(record.position, content.turn, *names, content.origin, message))
        elif not content.origin.startswith("perdure:"):
            others += 1
    return [one for one in found if one.turn not in given_up], others


def data_of(sender: Any, message: Any) -> dict[str, Any] | None:
    """Return a message as it is recorded; None for one that the framework will refuse to send."""
    data = {"content": message} if isinstance(message, str) else dict(message)
    if callable(data.get("content")):
        reason = "a function can not be stored as the content of a message"
        raise UsageError(f"{reason}: give its text", "$.content")
    calls = bool(data.get("function_call") or data.get("tool_calls"))
    if data.get("content") is None and not calls:
        return None
    if data.get("role") not in ("function", "tool"):
        by_model = calls or getattr(sender, "client", None) is not None
        data["role"] = "assistant" if by_model else "user"
    return data


class Groups:
    """The group chats among the agents, and what their managers have yet to pass on."""

    def __init__(self, managers: list[Any]) -> None:
        self._managers = {manager.name: manager for manager in managers}
        self._pending: dict[str, set[str]] = {}
        self._seen: dict[str, int] = {}

    def __iter__(self) -> Iterator[Any]:
        return iter(self._managers.values())

    def forget(self) -> None:
        self._pending.clear()

    def told(self, author: str, recipient: str) -> None:
        """Take in that somebody spoke to a manager, if it is one."""
        manager = self._managers.get(recipient)
        if manager is not None:
            others = {agent.name for agent in manager.groupchat.agents}
            self._pending[recipient] = others - {author}
            self._seen[recipient] = len(manager.groupchat.messages)

    def passing(self, author: str, message: Any, recipient: str) -> str | None:
        """Whether a message is a manager's passing on: "" if it is, INSTEAD of it, or None."""
        manager, pending = self._managers.get(author), self._pending.get(author, set())
        if manager is None or recipient not in pending:
            return None
        messages = manager.groupchat.messages
        if len(messages) <= self._seen[author]:  # Introductions come before.
            return None
        pending.discard(recipient)
        return "" if message == messages[-1] else INSTEAD


class Recorder:
    """The last of the hooks through which every message goes on its way."""

    def __init__(
        self, session: Session, names: set[str], groups: Groups, pass_over: Callable[[], None]
    ) -> None:
        self._session = session
        self._names = names
        self._pass_over = pass_over
        self._groups = groups
        self._lock = RLock()
        self._turn: Turn | None = None
        self._expected: dict[tuple[str, str], deque[Spoken]] = {}
        self.broken: PerdureError | None = None

    def begin(self, turn: Turn, before: list[Spoken]) -> None:
        """Record what is said from now on in a turn; what was said `before` is said again."""
        self._turn, self.broken = turn, None
        self._groups.forget()
        self._expected = {}
        for one in before:
            self._expected.setdefault((one.author, one.recipient), deque()).append(one)

    def end(self) -> None:
        self._turn = None

    def require_all(self) -> None:
        """Raise DivergenceError if something was not said again that had been said."""
        left = [one for said in self._expected.values() for one in said]
        if left:
            first = min(left)
            raise self._diverged(first, digest(first.message), "nothing")

    def __call__(self, sender: Any, message: Any, recipient: Any, **_: Any) -> Any:
        """Record a message; on return it is durable and may be handed over."""
        with self._lock:
            self.require_whole()
            if self._turn is not None:
                self.go_on()
                self._take(sender, message, recipient)
        return message

    async def a_call(self, sender: Any, message: Any, recipient: Any, **_: Any) -> Any:
        """Do the same as the hook of async code, where that has hooks of its own."""
        return self(sender, message, recipient)

    def go_on(self) -> None:
        """Take in that the chat goes on, whatever a model failed at before."""
        self.require_whole()
        try:
            self._pass_over()
        except PerdureError as error:
            self.broken = error
            raise

    def require_whole(self) -> None:
        """Raise what kept something from being recorded: nothing more may happen then."""
        if self.broken is not None:
            raise self.broken

    def _take(self, sender: Any, message: Any, recipient: Any) -> None:
        data = data_of(sender, message)
        if data is None:
            return
        if recipient.name not in self._names:
            reason = f"{recipient.name!r} takes part in the chat and was not given to persist()"
            raise UsageError(f"{reason}: give all agents, those of nested chats too")
        passed = self._groups.passing(sender.name, message, recipient.name)
        if passed != "":
            self.say(sender.name, recipient.name, data, passed or "")
        self._groups.told(sender.name, recipient.name)

    def say(self, author: str, recipient: str, data: dict[str, Any], origin: str) -> None:
        """Record what somebody says, or see that it is what was said before."""
        assert self._turn is not None  # noqa: S101 - `__call__` saw to it
        expected = self._expected.get((author, recipient))
        if expected:
            recorded = expected.popleft()
            if not _same(recorded.message, data):
                raise self._diverged(recorded, digest(recorded.message), digest(data))
            return
        self._turn.append(data, author=author, recipient=recipient, channel=CHANNEL, origin=origin)

    def _diverged(self, recorded: Spoken, was: str, now: str) -> DivergenceError:
        what = f"what {recorded.author} said to {recorded.recipient} at {recorded.position}"
        return DivergenceError(self._session.id, what, was, now, HINT)


def _same(recorded: dict[str, Any], given: dict[str, Any]) -> bool:
    """Whether two messages say the same; the role of plain words depends on who has a model."""
    if {recorded.get("role"), given.get("role")} <= {"user", "assistant"}:
        given = {**given, "role": recorded.get("role")}
    return digest(recorded) == digest(given)


def digest(data: Any) -> str:
    """Return a digest of data that JSON can say; of anything else, of its text."""
    text = json.dumps(data, sort_keys=True, ensure_ascii=False, default=str)
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
