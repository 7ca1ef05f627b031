"""Record messages before they are delivered; on resume, compare them with the recorded ones.

A manager broadcasts each message it receives. Broadcasts are not recorded: a participant's message
to the manager is recorded once, and its receivers follow from the group's members.
"""

from collections import deque
from collections.abc import Callable, Iterator
from threading import RLock
from typing import Any, NamedTuple

from perdure import Session, Turn
from perdure.adapters.digests import json_digest
from perdure.errors import DivergenceError, PerdureError, UsageError

# Marks messages between agents, and distinguishes them from other messages of the session.
CHANNEL = "autogen"

# Origin of a message that a manager sent to one member in place of its broadcast.
REPLACEMENT_ORIGIN = "autogen:instead"

DIGEST_LENGTH = 16  # hexadecimal digits, stored with failed model calls and shown in errors

_KINDS = ("message", "turn.abandoned", "turn.failed")

RESUME_HINT = (
    "an interrupted chat resumes only with the code and agents that started it: run those, "
    "or abandon it with persist(...).abandon()"
)


class AgentMessage(NamedTuple):
    """A recorded message between two agents."""

    position: int
    turn: str
    author: str
    recipient: str
    origin: str
    message: dict[str, Any]


def read_agent_messages(session: Session, after: int = 0) -> tuple[list[AgentMessage], int]:
    """Return the agents' messages, without abandoned chats, and the number of foreign messages."""
    records = [record for record in session.records(after=after) if record.kind in _KINDS]
    message_records: list[Any] = [record for record in records if record.kind == "message"]
    endings: list[Any] = [record for record in records if record.kind != "message"]
    abandoned = {record.content.turn for record in endings}
    chat_messages: list[AgentMessage] = []
    foreign = 0
    # `session.messages` decodes what the records hold in stored form: the same messages, in order.
    for record, message in zip(
        message_records, session.messages(last=len(message_records)), strict=True
    ):
        content = record.content
        if content.channel == CHANNEL:
            names = content.author, content.recipient
            chat_messages.append(
                AgentMessage(record.position, content.turn, *names, content.origin, message)
            )
        elif not content.origin.startswith("perdure:"):  # Not a notice about an interrupted call.
            foreign += 1
    return [message for message in chat_messages if message.turn not in abandoned], foreign


def message_data(sender: Any, message: Any) -> dict[str, Any] | None:
    """Return a message as it is recorded; None if the framework will refuse to send it."""
    data = {"content": message} if isinstance(message, str) else dict(message)
    if callable(data.get("content")):
        reason = "a function cannot be stored as the content of a message"
        raise UsageError(f"{reason}: pass its text", "$.content")
    calls = bool(data.get("function_call") or data.get("tool_calls"))
    if data.get("content") is None and not calls:
        return None
    # The framework sets the roles on delivery, different ones on each side. The record has one
    # role, so that the session's messages are a transcript that a provider accepts.
    if data.get("role") not in ("function", "tool"):
        by_model = calls or getattr(sender, "client", None) is not None
        data["role"] = "assistant" if by_model else "user"
    return data


class GroupChats:
    """The group chats among the agents, and their managers' pending broadcasts."""

    def __init__(self, managers: list[Any]) -> None:
        self._managers = {manager.name: manager for manager in managers}
        self._recipients: dict[str, set[str]] = {}  # Of pending broadcasts, by manager.
        self._lengths: dict[str, int] = {}  # Of a group's messages before its broadcast.

    def __iter__(self) -> Iterator[Any]:
        return iter(self._managers.values())

    def clear(self) -> None:
        self._recipients.clear()

    def note_message(self, author: str, recipient: str) -> None:
        """Note that a message was sent to a manager, if the recipient is one."""
        manager = self._managers.get(recipient)
        if manager is not None:
            members = {agent.name for agent in manager.groupchat.agents}
            self._recipients[recipient] = members - {author}
            self._lengths[recipient] = len(manager.groupchat.messages)

    def broadcast_origin(self, author: str, message: Any, recipient: str) -> str | None:
        """Return the origin of a message that takes part in a manager's broadcast, else None.

        "" is the broadcast itself, REPLACEMENT_ORIGIN another message in its place.
        """
        manager, pending = self._managers.get(author), self._recipients.get(author, set())
        if manager is None or recipient not in pending:
            return None
        messages = manager.groupchat.messages
        if len(messages) <= self._lengths[author]:  # Introductions are sent before the broadcast.
            return None
        pending.discard(recipient)
        return "" if message == messages[-1] else REPLACEMENT_ORIGIN


class MessageRecorder:
    """The last send hook of every agent: each message passes through it."""

    def __init__(
        self,
        session: Session,
        names: set[str],
        groups: GroupChats,
        record_swallowed: Callable[[], None],
    ) -> None:
        self._session = session
        self._names = names
        self._record_swallowed = record_swallowed
        self._groups = groups
        self._lock = RLock()  # Messages may be sent from several threads.
        self._turn: Turn | None = None
        self._expected: dict[tuple[str, str], deque[AgentMessage]] = {}
        self.error: PerdureError | None = None

    def begin(self, turn: Turn, previous: list[AgentMessage]) -> None:
        """Record messages in a turn from now on; the `previous` ones are expected again first."""
        self._turn, self.error = turn, None
        self._groups.clear()
        # By author and recipient: concurrent chats have no order among each other.
        self._expected = {}
        for message in previous:
            self._expected.setdefault((message.author, message.recipient), deque()).append(message)

    def end(self) -> None:
        self._turn = None

    def require_all_replayed(self) -> None:
        """Raise DivergenceError if a recorded message was not sent again."""
        remaining = [message for expected in self._expected.values() for message in expected]
        if remaining:
            first = min(remaining)
            raise self._diverged(first, digest(first.message), "nothing")

    def __call__(self, sender: Any, message: Any, recipient: Any, **_: Any) -> Any:
        """Record a message; on return it is durable and may be delivered."""
        with self._lock:
            self.raise_if_broken()
            if self._turn is not None:
                self.proceed()
                self._record(sender, message, recipient)
        return message

    async def a_call(self, sender: Any, message: Any, recipient: Any, **_: Any) -> Any:
        """Record a message, as the hook of async code in versions that have separate hooks."""
        return self(sender, message, recipient)

    def proceed(self) -> None:
        """Note that the chat continues: a model failure pending here was swallowed."""
        self.raise_if_broken()
        try:
            self._record_swallowed()
        except PerdureError as error:
            self.error = error
            raise

    def raise_if_broken(self) -> None:
        """Raise the error that prevented a record: the chat must not continue without it."""
        if self.error is not None:
            raise self.error

    def _record(self, sender: Any, message: Any, recipient: Any) -> None:
        data = message_data(sender, message)
        if data is None:
            return
        if recipient.name not in self._names:
            reason = f"{recipient.name!r} takes part in the chat and was not passed to persist()"
            raise UsageError(f"{reason}: pass all agents, those of nested chats too")
        broadcast = self._groups.broadcast_origin(sender.name, message, recipient.name)
        if broadcast != "":
            self.record_message(sender.name, recipient.name, data, broadcast or "")
        self._groups.note_message(sender.name, recipient.name)

    def record_message(
        self, author: str, recipient: str, data: dict[str, Any], origin: str
    ) -> None:
        """Append a message, or compare it with the recorded one; DivergenceError if they differ."""
        assert self._turn is not None  # noqa: S101 - checked in `__call__`
        expected = self._expected.get((author, recipient))
        if expected:
            recorded = expected.popleft()
            if not _is_same_message(recorded.message, data):
                raise self._diverged(recorded, digest(recorded.message), digest(data))
            return
        self._turn.append(data, author=author, recipient=recipient, channel=CHANNEL, origin=origin)

    def _diverged(
        self, recorded: AgentMessage, recorded_digest: str, current_digest: str
    ) -> DivergenceError:
        description = (
            f"the message of {recorded.author} to {recorded.recipient} at {recorded.position}"
        )
        return DivergenceError(
            self._session.id, description, recorded_digest, current_digest, RESUME_HINT
        )


def _is_same_message(recorded: dict[str, Any], message: dict[str, Any]) -> bool:
    """Return whether messages are equal, except a text's role: it depends on having a model."""
    if {recorded.get("role"), message.get("role")} <= {"user", "assistant"}:
        message = {**message, "role": recorded.get("role")}
    return digest(recorded) == digest(message)


def digest(data: Any) -> str:
    """Return a short digest of messages; values that are not JSON are digested as text."""
    return json_digest(data, length=DIGEST_LENGTH)
