"""Which messages a summary stands for, what makes its text, and which texts are refused. Pure.

The newest turns stay as they are, and so do turns that are going on; what is older, up to a place
where nothing is torn, is summed up together with the summary in force. Instructions are not: every
window has them.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, NamedTuple

from perdure import codec, reading
from perdure.conversations import spoken
from perdure.conversations.intake import take
from perdure.conversations.spoken import Counted, Counting
from perdure.conversations.window import EVERYTHING, Asked
from perdure.errors import PerdureError, SummaryError, UsageError
from perdure.plans import require_int, require_str
from perdure.records import Summary
from perdure.replica import Replica
from perdure.steps import Steps
from perdure.tokens import ESTIMATE, REPLY_TOKENS, Counter, counted
from perdure.transcript import Transcript, render

KEEP_TURNS = 4
TIMEOUT = 60.0  # Seconds; a summary is worth waiting for, and a model that hangs is not.

# What a client is asked, before and after the messages.
INSTRUCTION = (
    "You keep the memory of a conversation between a user and an assistant. You are shown its "
    "older part, which may begin with an earlier summary. Write a summary that can stand for it: "
    "keep names, numbers, dates, identifiers, decisions, promises, what the user wants and what "
    "is still open, and what tools found out. Do not answer anything and add nothing."
)
REQUEST = "Write the summary of everything above now. Reply with the summary alone."
LENGTH = " Use at most {} tokens."

_META = ("id", "model", "usage", "finish_reason")


class Summariser(NamedTuple):
    """What sums a conversation up, and how.

    `with_` is a function that gets messages and returns a text, or a client in OpenAI's manner,
    which needs a `model`. The newest `keep_turns` turns stay as they are. A text of more than
    `max_tokens`, by the `counter` or the store's, is refused, and a function that takes longer than
    `timeout` seconds is not waited for.
    """

    with_: Any
    model: str = ""
    keep_turns: int = KEEP_TURNS
    max_tokens: int | None = None
    timeout: float | None = TIMEOUT
    counter: Counter | None = None


class Work(NamedTuple):
    """What is to be summed up: the messages, what they stand for, and what they take."""

    session: str
    messages: Transcript
    first: int
    last: int
    digest: str
    previous: int
    tokens: int
    limit: int | None
    counting: Counting


def summariser(given: object) -> Summariser:
    """Return what was given as a summariser, or say what is wrong with it."""
    asked = given if isinstance(given, Summariser) else Summariser(given)
    require_str(asked.model, "model")
    if require_int(asked.keep_turns, "keep_turns") < 1:
        raise UsageError(f"keep_turns must be 1 or more, not {asked.keep_turns}")
    if asked.max_tokens is not None and require_int(asked.max_tokens, "max_tokens") < 1:
        raise UsageError(f"max_tokens must be 1 or more, not {asked.max_tokens}")
    if asked.timeout is not None and not asked.timeout > 0:
        raise UsageError(f"timeout must be more than 0 seconds, not {asked.timeout}")
    if is_client(asked.with_):
        if not asked.model:
            raise UsageError("a client needs to know which model: give model='gpt-4o-mini', say")
    elif not callable(asked.with_):
        kind = type(asked.with_).__name__
        raise UsageError(f"a summary is made by a function or an OpenAI client, not a {kind}")
    elif asked.model:
        raise UsageError("a function knows its own model: `model` is for clients")
    return asked


def for_window(given: object, asked: Asked, last: int | None) -> Summariser | None:
    """Return what sums up if a window overflows, where that was asked for."""
    if given is None:
        return None
    if last is not None or (asked.max_tokens is None and asked.max_messages is None):
        raise UsageError("`summarise` is for windows: give max_tokens or max_messages, not `last`")
    return summariser(given)


def is_client(with_: object) -> bool:
    """Whether this is a client in OpenAI's manner."""
    completions = getattr(getattr(with_, "chat", None), "completions", None)
    return callable(getattr(completions, "create", None))


# Choosing.


def chosen(
    replica: Replica, asked: Summariser, *, live: Collection[str], room: Asked = EVERYTHING
) -> Steps[Work]:
    """Return what is to be summed up; SummaryError if there is nothing.

    `live` are the turns that this handle holds. If the summary is to make `room` in a window, the
    turns that stay take at most half of it.
    """
    replica = spoken.still(replica)
    counter = asked.counter or room.counter or replica.settings.counter or ESTIMATE
    counting = Counting.of(replica, counter)
    talk, past = replica.fold.talk, replica.past
    before = yield from spoken.summary_in_force(replica, counting)
    ordered = yield from _since(replica, talk.summary.last if talk.summary else 0, counting)
    # Nor are calls parted from results that others may still give.
    waiting = {call.turn for call in talk.calls.values()} & replica.fold.turns.keys()
    index = _index(ordered, asked, room, {*live, *waiting})
    kept = {*talk.systems}
    old = [one for one in ordered[:index] if one.said.position not in kept]
    if not old:
        raise SummaryError(replica.name, "there is nothing to sum up yet")
    last = yield from reading.entry_at(past, ordered[index - 1].said.position)
    replaced = [*before, *(one for one in old if one.said.position not in talk.pins)]
    limit = asked.max_tokens
    if room.max_tokens is not None:
        fixed = yield from spoken.instructions(replica, counting)
        left = room.max_tokens - _total(fixed) - _total(ordered[index:]) - REPLY_TOKENS
        limit = left if limit is None else min(left, limit)
    return Work(
        session=replica.name,
        messages=render([one.said for one in (*before, *old)], "openai.chat"),
        first=ordered[0].said.position,
        last=last.entry.position,
        digest=last.digest,
        previous=talk.summary.position if talk.summary else 0,
        tokens=_total(replaced),
        limit=limit,
        counting=counting,
    )


def _total(messages: Sequence[Counted]) -> int:
    return sum(one.tokens for one in messages)


def _since(replica: Replica, after: int, counting: Counting) -> Steps[list[Counted]]:
    reader = spoken.Reader(replica, after=after, counting=counting)
    found: list[Counted] = []
    while (page := (yield from reader.page())) is not None:
        found += page
    return found[::-1]


def _index(
    ordered: Sequence[Counted], asked: Summariser, room: Asked, live: Collection[str]
) -> int:
    """Return where the part begins that stays as it is; 0 if all of it does."""
    begin = spoken.starts(ordered, whole=True)
    going_on = next((i for i, one in enumerate(ordered) if one.said.turn in live), len(ordered))
    begin = [index for index in begin if index <= going_on]
    stays = begin[-asked.keep_turns :]
    if not stays:
        return 0
    for index in stays:
        tail = ordered[index:]
        if room.max_tokens is not None and 2 * _total(tail) > room.max_tokens:
            continue
        if room.max_messages is not None and 2 * len(tail) > room.max_messages:
            continue
        return index
    return stays[-1]


# Asking.


def request(asked: Summariser, work: Work) -> Callable[[], Any]:
    """Return the call that makes the text."""
    if not is_client(asked.with_):
        return partial(asked.with_, work.messages)
    return partial(_complete, asked, work)


def _complete(asked: Summariser, work: Work) -> Any:
    client = asked.with_
    if asked.timeout is not None and hasattr(client, "with_options"):
        client = client.with_options(timeout=asked.timeout)
    wanted = REQUEST + (LENGTH.format(work.limit) if work.limit is not None else "")
    messages = [
        {"role": "system", "content": INSTRUCTION},
        *work.messages,
        {"role": "user", "content": wanted},
    ]
    return client.chat.completions.create(model=asked.model, messages=messages)


def raised(work: Work, error: BaseException) -> SummaryError:
    """Return what to say if making the text raised; the caller chains the cause."""
    return SummaryError(work.session, f"what was to make it raised {type(error).__qualname__}")


def too_slow(work: Work, asked: Summariser) -> SummaryError:
    """Return what to say if making the text took too long."""
    return SummaryError(work.session, f"it took longer than {asked.timeout:g} seconds")


# Judging.


def checked(asked: Summariser, work: Work, given: object) -> Summary:
    """Return the summary to store; SummaryError if what was given can not stand for the rest."""
    text, meta = _read(work, given) if is_client(asked.with_) else (given, {})
    if not isinstance(text, str):
        raise SummaryError(work.session, f"a text is wanted, and a {type(text).__name__} was given")
    if not text.strip():
        raise SummaryError(work.session, "the text is empty")
    counter = work.counting.counter or ESTIMATE
    tokens = counted(counter, spoken.summary_message(text))
    for most, what in ((work.limit, "were allowed"), (work.tokens, "is what it would replace")):
        if most is not None and tokens > most:
            raise SummaryError(work.session, f"it takes {tokens} tokens, and {most} {what}")
    content = Summary(
        text=text,
        first=work.first,
        last=work.last,
        digest=work.digest,
        previous=work.previous,
        meta=meta,
        tokens=tokens,
        counter=counter.name,
    )
    try:
        codec.encode(content)
    except (TypeError, ValueError) as error:  # A lone surrogate, or more than a record holds.
        raise SummaryError(work.session, "it can not be stored") from error
    return content


def _read(work: Work, reply: object) -> tuple[object, dict[str, Any]]:
    """Return the text of a client's answer, and what came with it."""
    try:
        message, found = take(reply)[0]
    except PerdureError as error:
        raise SummaryError(work.session, "the client did not give a chat completion") from error
    if found.get("finish_reason") == "length":
        raise SummaryError(work.session, "the model's answer was cut off at its limit")
    if message.get("refusal"):
        raise SummaryError(work.session, "the model refused")
    meta = {name: found[name] for name in _META if found.get(name) is not None}
    return message.get("content"), meta
