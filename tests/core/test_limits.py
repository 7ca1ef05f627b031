"""Whatever is bounded, at and beyond the bounds: it works, or an error says what to do.

Each row uses a session with a count of something. Afterwards the session must be intact, in this
process and in the next one.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import perdure
from perdure.backends.files.backend import FilesBackend
from perdure.backends.memory import MemoryBackend
from perdure.backends.protocol import ATOMIC, RECENT, Backend, require_atomic, require_recent
from perdure.backends.sqlite.backend import SqliteBackend
from perdure.core.retractions import RANGES_MAX
from perdure.core.state.conversation import CALLS_MAX, PINS_MAX, SUMMARIES_MAX, SYSTEMS_MAX
from perdure.errors import ApprovalPendingError, NotFoundError, PerdureError, UsageError
from perdure.testing.contract.samples import append_of
from tests.promises.places import fast_directory
from tests.support import contents

COUNTS = (256, 257, 1_024, 1_025)


def hello(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def chat_calls(count: int, prefix: str = "c") -> dict[str, Any]:
    """Return a message of the chat API with many calls."""
    calls = [
        {
            "id": f"{prefix}{number}",
            "type": "function",
            "function": {"name": "pay", "arguments": json.dumps({"amount": number})},
        }
        for number in range(count)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def anthropic_calls(count: int) -> dict[str, Any]:
    """Return a message of Anthropic's API with many calls."""
    blocks = [
        {"type": "tool_use", "id": f"c{number}", "name": "pay", "input": {"amount": number}}
        for number in range(count)
    ]
    return {"role": "assistant", "content": blocks}


class Payments:
    """A tool, and what it did."""

    def __init__(self, session: perdure.Session, **options: Any) -> None:
        self.made: list[int] = []
        self.tool = session.tool(self.pay, name="pay", **options)

    def pay(self, amount: int) -> int:
        self.made.append(amount)
        return amount


def run_calls(session: perdure.Session, message: dict[str, Any], count: int) -> None:
    payments = Payments(session)
    with session.turn("Pay.") as turn:
        turn.append(message)
        answers = session.run_tool_calls(message, [payments.tool])
        assert session.run_tool_calls(None, [payments.tool]) == []
    assert sorted(payments.made) == [*range(count)]
    assert len(answers) == count


def in_a_chat_message(session: perdure.Session, count: int) -> None:
    run_calls(session, chat_calls(count), count)


def in_an_anthropic_message(session: perdure.Session, count: int) -> None:
    run_calls(session, anthropic_calls(count), count)


def in_a_message_appended_before_the_turn(session: perdure.Session, count: int) -> None:
    message = chat_calls(count)
    session.append(message)
    payments = Payments(session)
    with session.turn() as turn:
        turn.append({**message, "content": "Again, in the turn."})
        session.run_tool_calls(None, [payments.tool])
    assert sorted(payments.made) == [*range(count)]


def in_many_messages_of_a_turn(session: perdure.Session, count: int) -> None:
    """Calls of one turn, after others that were never answered, in another open turn too."""
    other = session.turn("Something else.")
    with other:
        other.append(chat_calls(3, "other"))
        other.suspend()
    payments = Payments(session)
    with session.turn("Pay.") as turn:
        for number in range(count):
            call = chat_calls(1, f"{number}-")
            turn.append(call)
        assert len(session.run_tool_calls(None, [payments.tool])) == count
    assert payments.made == [0] * count


def calls_that_nobody_answers(session: perdure.Session, count: int) -> None:
    """They are forgotten, whole messages at a time, and the newest message is not."""
    for number in range(count):
        session.append(chat_calls(2, f"{number}-"))
    conversation = session._replica.state.conversation
    assert len(conversation.calls) == CALLS_MAX
    assert len({call.position for call in conversation.calls.values()}) == CALLS_MAX // 2
    run_calls(session, chat_calls(count, "new"), count)


def calls_left_by_a_dead_process(session: perdure.Session, count: int) -> None:
    """The next turn closes them, so that transcripts stay valid."""
    with session.turn("Pay.") as turn:
        turn.append(chat_calls(count))
        turn.suspend()
    with session.turn("Go on."):
        pass
    transcript = session.messages(format="openai.chat")
    assert len([one for one in transcript if one["role"] == "tool"]) == count
    assert not session._replica.state.conversation.calls


def pending_approvals(session: perdure.Session, count: int) -> None:
    payments = Payments(session, approval=True, approval_wait=0)
    with session.turn("Pay.") as turn:
        turn.append(chat_calls(count))
        with pytest.raises(ApprovalPendingError):
            session.run_tool_calls(None, [payments.tool])
        turn.suspend()
    assert len(session.approvals.pending()) == count
    for one in session.approvals.pending()[:2]:
        session.approvals.approve(one.id, by="ada")
    assert len(session.approvals.pending()) == count - 2


def pins(session: perdure.Session, count: int) -> None:
    positions = [session.append({"role": "user", "content": f"{n}"}) for n in range(count)]
    for position in positions:
        session.pin(position)
    assert len(session.messages(max_messages=count + 1)) == count


def system_messages(session: perdure.Session, count: int) -> None:
    """A window has the first and the last of them."""
    for number in range(count):
        session.append({"role": "system", "content": f"rule {number}"})
    session.append({"role": "user", "content": "Hi."})
    half = SYSTEMS_MAX // 2
    wanted = [*range(half), *range(count - half, count)]
    shown = [one["content"] for one in session.messages(max_messages=SYSTEMS_MAX + 1)]
    assert shown == [*(f"rule {number}" for number in wanted), "Hi."]


def _summarize(session: perdure.Session, count: int) -> None:
    for number in range(count):
        for _ in range(2):
            with session.turn(f"Question {number}. " * 8):
                pass
        session.summarize(lambda _: "Sum.", keep_turns=1)


def summaries(session: perdure.Session, count: int) -> None:
    _summarize(session, count)
    assert "Sum." in str(session.messages(max_messages=8)[0])


def undone_summaries(session: perdure.Session, count: int) -> None:
    _summarize(session, SUMMARIES_MAX + 1)
    for _ in range(count):
        session.undo_summary()


def labels(session: perdure.Session, count: int) -> None:
    session.label(*(f"label {number}" for number in range(count)))


def values(session: perdure.Session, count: int) -> None:
    for number in range(count):
        session.set(f"key {number}", {"number": number})
    assert [session.get(f"key {n}")["number"] for n in range(count)] == [*range(count)]


def versions_of_a_value(session: perdure.Session, count: int) -> None:
    for number in range(count):
        session.set("key", {"number": number, "same": "x" * 200})
    assert session.get("key", version=1)["number"] == 0
    assert session.get("key")["number"] == count - 1


def branches(session: perdure.Session, count: int) -> None:
    session.append({"role": "user", "content": "Hi."})
    for number in range(count):
        session.branch(f"branch {number}")
    assert len(session._replica.state.kept_branches) == count


def tools_on_offer(session: perdure.Session, count: int) -> None:
    tools = [
        {"type": "function", "function": {"name": f"tool{n}", "parameters": {}}}
        for n in range(count)
    ]
    with session.turn("Go.") as turn:
        assert not turn.record_tools(tools)
        assert len(turn.record_tools(tools[1:]).removed) == 1


def calls_with_an_unknown_outcome(session: perdure.Session, count: int) -> None:
    def pay(amount: int) -> None:
        raise KeyboardInterrupt

    tool = session.tool(pay)
    with session.turn("Pay."):
        for number in range(count):
            with pytest.raises(KeyboardInterrupt):
                tool(number)
    assert len(session.effects.unknown()) == count


def messages_in_one_append(session: perdure.Session, count: int) -> None:
    texts = [f"{number}" for number in range(count)]
    session.append(*(hello(text) for text in texts), id="many")
    position = session.position
    assert session.append(*(hello(text) for text in texts), id="many") <= position
    assert session.position == position, "it is known by its id"
    assert contents(session) == texts


def parts_of_a_batch(session: perdure.Session, count: int) -> None:
    with session.batch() as batch:
        for number in range(count):
            batch.append(hello(f"{number}"))
            batch.note(number, topic=f"topic {number}", id=f"note {number}")
            batch.set(f"key {number}", number)
    assert len(session) == count
    assert [session.get(f"key {number}") for number in range(count)] == [*range(count)]
    for number in (0, count // 2, count - 1):
        assert [record.content.data for record in session.notes(f"topic {number}")] == [number]  # type: ignore[attr-defined]


def _every_second(session: perdure.Session, count: int) -> list[int]:
    messages = [hello(f"{number}") for number in range(2 * count)]
    for start in range(0, 2 * count, 8):
        session.append(*messages[start : start + 8])
    return [record.position for record in session.records(kinds=["message"])][::2]


def retractions_in_one_call(session: perdure.Session, count: int) -> None:
    session.retract(*_every_second(session, count))
    assert len(session) == count


def retractions(session: perdure.Session, count: int) -> None:
    for position in _every_second(session, count):
        session.retract(position)
    assert len(session) == count


def replacements(session: perdure.Session, count: int) -> None:
    for position in _every_second(session, count):
        session.replace(position, position, hello("other"))
    assert contents(session).count("other") == count


def ids(session: perdure.Session, count: int) -> None:
    """Of turns, messages and notes; all are known when they are repeated, by a new handle too."""
    for again in range(2):
        for number in range(count):
            with session.turn(f"{number}", id=f"turn {number}") as turn:
                assert turn.ended == bool(again)
            session.append(hello("same"), id=f"message {number}")
            session.note("same", id=f"note {number}")
    assert len(session) == 2 * count


def interrupted_turns(session: perdure.Session, count: int) -> None:
    for number in range(count):
        turn = session.turn(f"{number}", id=f"turn {number}")
        with turn:
            turn.suspend()
    assert len(session.interrupted) == count
    for turn in session.interrupted[:2]:
        turn.abandon()
    assert len(session.interrupted) == count - 2


class Limit(NamedTuple):
    """What is counted, the most that is allowed (None: any number), and the error beyond."""

    use: Callable[[perdure.Session, int], None]
    most: int | None = None
    error: type[PerdureError] = UsageError
    text: str = ""
    counts: tuple[int, ...] = COUNTS


LIMITS = [
    Limit(in_a_chat_message),
    Limit(in_an_anthropic_message),
    Limit(in_a_message_appended_before_the_turn),
    Limit(in_many_messages_of_a_turn),
    Limit(calls_that_nobody_answers),
    Limit(calls_left_by_a_dead_process),
    Limit(pending_approvals),
    Limit(pins, PINS_MAX, text="at most 256 messages can be pinned: unpin one first"),
    Limit(system_messages),
    Limit(summaries),
    Limit(undone_summaries, SUMMARIES_MAX - 1, NotFoundError, "at most 64 summaries"),
    Limit(labels, 12, text="a session has at most 12 labels: remove one first"),
    Limit(values),
    Limit(versions_of_a_value),
    Limit(branches, counts=COUNTS[:2]),  # Each opens a session, which takes a while.
    Limit(tools_on_offer),
    Limit(calls_with_an_unknown_outcome),
    Limit(messages_in_one_append),
    Limit(parts_of_a_batch),
    Limit(retractions_in_one_call, RANGES_MAX, text="retract whole ranges"),
    Limit(retractions, RANGES_MAX, text="retract whole ranges", counts=(1_025,)),
    Limit(replacements, RANGES_MAX // 2, text="retract whole ranges", counts=(513,)),
    Limit(ids),
    Limit(interrupted_turns),
]


@pytest.mark.parametrize(
    ("limit", "count"),
    [
        pytest.param(limit, count, id=f"{limit.use.__name__}-{count}")
        for limit in LIMITS
        for count in limit.counts
    ],
)
def test_a_count_at_or_beyond_a_bound_works_or_is_refused(limit: Limit, count: int) -> None:
    backend = MemoryBackend()
    session = perdure.open(backend).session("s")
    if limit.most is None or count <= limit.most:
        limit.use(session, count)
    else:
        with pytest.raises(limit.error, match=limit.text):
            limit.use(session, count)
    again = perdure.open(backend).session("s")
    assert again.messages() == session.messages()
    again.append({"role": "user", "content": "And then?"})
    again.verify()


@pytest.mark.parametrize("limit", [limit for limit in LIMITS if limit.most is not None])
def test_the_most_that_is_allowed_works(limit: Limit) -> None:
    assert limit.most is not None
    limit.use(perdure.open("memory:").session("s"), limit.most)


def test_a_store_holds_any_count_of_sessions_in_a_commit_and_a_listing() -> None:
    """On each kind of store: pages, groups and commits are bounded, what they hold is not."""
    for kind in ("memory", "sqlite", "files"):
        for count in COUNTS if kind != "files" else COUNTS[:2]:  # Each has a file of its own.
            with fast_directory() as folder:
                _use_many_sessions(backend_of(kind, folder), count)


def backend_of(kind: str, folder: Path) -> Backend:
    if kind == "sqlite":
        return SqliteBackend(folder / "store.db")
    return FilesBackend(folder / "store") if kind == "files" else MemoryBackend()


def _use_many_sessions(backend: Backend, count: int) -> None:
    names = [f"s{number:05}" for number in range(count)]
    outcomes = backend.append([append_of(name, 1, 2, "tag") for name in names])
    assert {outcome.status for outcome in outcomes} == {"stored"}
    outcomes = backend.append([append_of(name, 3, 3, "tag", "other") for name in names])
    assert {outcome.status for outcome in outcomes} == {"stored"}
    for chosen in ({}, {"prefix": "s"}, {"labels": ["tag"]}, {"labels": ["tag", "other"]}):
        assert [head.stream for head in backend.streams(**chosen)] == names
    assert [head.stream for head in backend.streams(limit=count - 1)] == names[:-1]
    if RECENT in backend.capabilities:
        assert {head.stream for head in require_recent(backend).recent()} == {*names}
    if ATOMIC in backend.capabilities:
        together = [append_of(name, 4, 4, "tag") for name in names]
        assert require_atomic(backend).append_together(together).status == "stored"
        assert {head.position for head in backend.streams()} == {4}
    backend.close()
