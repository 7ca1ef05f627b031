"""Select the messages to summarize, request the text, and validate it.

A replica and a summarizer come in; a `Summary` record goes out. Pure: reads are yielded as steps,
and the caller makes the call that writes the text.

The newest turns and the active turns are kept as they are. Older messages, up to a safe cut, are
summarized together with the summary in force. Instructions are not: every window has them.
"""

import math
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, NamedTuple

from perdure.core import history
from perdure.core.history import MessageCounter
from perdure.core.plans import Plan, RecordBatch
from perdure.core.replica import Replica, StateView
from perdure.core.state.conversation import SUMMARIES_MAX
from perdure.core.validation import require_int, require_str
from perdure.core.window import EVERYTHING, WindowRequest
from perdure.errors import NotFoundError, PerdureError, SummaryError, UsageError
from perdure.formats.intake import extract_messages
from perdure.formats.parts import StoredMessage
from perdure.formats.tokens import ESTIMATE, REPLY_TOKENS, Counter, count_tokens
from perdure.formats.transcript import Transcript, render
from perdure.journal import codec
from perdure.journal.codec import Codec
from perdure.journal.large import LOADED_MAX
from perdure.journal.reader import read_record
from perdure.journal.records import Summary, SummaryUndone
from perdure.journal.requests import Steps


def activate_summary(replica: Replica, content: Summary, digest: str) -> Plan[int]:
    """Plan to put a summary in force; ConflictError if another summary came first.

    `digest` is that of the entry with the last message it replaces, when that was read.
    """
    record_id = replica.new_id()

    def make(batch: RecordBatch) -> Steps[int]:
        current = batch.state.conversation.summary
        if (current.position if current else 0) != content.previous:
            raise batch.conflict("another summary came first")
        # The text was written for a while: the history may have been replaced meanwhile.
        past, replaced = batch.past, content.last > batch.past.tip.position
        if not replaced:
            last = yield from read_record(past, content.last, check_tip=False)
            replaced = last.digest != digest
        if replaced:
            raise batch.conflict("the summarized messages are no longer stored")
        return batch.add_content(record_id, content)

    return Plan("summary", "", make)


def undo_summary(replica: Replica) -> Plan[int]:
    """Plan to restore the previous summary, or the messages themselves if there is none."""
    record_id = replica.new_id()

    def make(batch: RecordBatch) -> int:
        current = batch.state.conversation.summary
        if current is None:
            raise NotFoundError("an active summary", "there is nothing to undo")
        if current.previous and len(batch.state.conversation.summaries) == 1:
            hint = f"at most {SUMMARIES_MAX} summaries can be undone in a row"
            raise NotFoundError(f"the summary before the one at {current.position}", hint)
        return batch.add_content(record_id, SummaryUndone(summary=current.position))

    return Plan("summary", "", make)


KEEP_TURNS = 4

TIMEOUT = 60.0  # seconds; models need that long for a summary, a hanging one must not block


# Prompts for a client, before and after the messages.
INSTRUCTION = (
    "You keep the memory of a conversation between a user and an assistant. You are shown its "
    "older part, which may begin with an earlier summary. Write a summary that can stand for it: "
    "keep names, numbers, dates, identifiers, decisions, promises, what the user wants and what "
    "is still open, and what tools found out. Do not answer anything and add nothing."
)

REQUEST = "Write the summary of everything above now. Reply with the summary alone."

LENGTH_REQUEST = " Use at most {} tokens."


_META_FIELDS = ("id", "model", "usage", "finish_reason")


class Summarizer(NamedTuple):
    """How a conversation is summarized.

    `function` is a function that takes messages and returns a text, or an OpenAI-compatible client,
    which needs a `model`. The newest `keep_turns` turns are kept as they are. A text of more than
    `max_tokens`, by `counter` or else the store's counter, is rejected. A call that takes longer
    than `timeout` seconds fails; None waits without limit.
    """

    function: Any
    model: str = ""
    keep_turns: int = KEEP_TURNS
    max_tokens: int | None = None
    timeout: float | None = TIMEOUT
    counter: Counter | None = None


class SummaryJob(NamedTuple):
    """The messages to summarize, the positions they cover, and the tokens they take."""

    session: str
    messages: Transcript
    first: int
    last: int
    digest: str
    previous: int
    tokens: int
    limit: int | None
    counting: MessageCounter


def parse_summarizer(source: object) -> Summarizer:
    """Return a summarizer, from one or from its `function`; UsageError if it is invalid."""
    summarizer = source if isinstance(source, Summarizer) else Summarizer(source)
    require_str(summarizer.model, "model")
    if require_int(summarizer.keep_turns, "keep_turns") < 1:
        raise UsageError(f"keep_turns must be 1 or more, not {summarizer.keep_turns}")
    if summarizer.max_tokens is not None and require_int(summarizer.max_tokens, "max_tokens") < 1:
        raise UsageError(f"max_tokens must be 1 or more, not {summarizer.max_tokens}")
    if summarizer.timeout is not None and not summarizer.timeout > 0:
        raise UsageError(f"timeout must be more than 0 seconds, not {summarizer.timeout}")
    if is_client(summarizer.function):
        if not summarizer.model:
            raise UsageError("a client needs a model: pass model='gpt-4o-mini', for example")
    elif not callable(summarizer.function):
        kind = type(summarizer.function).__name__
        raise UsageError(f"a summary is written by a function or an OpenAI client, not a {kind}")
    elif summarizer.model:
        raise UsageError("`model` is for clients: a function chooses its own model")
    return summarizer


def window_summarizer(
    source: object, request: WindowRequest, last: int | None
) -> Summarizer | None:
    """Return the summarizer to use if a window overflows; None if none was requested."""
    if source is None:
        return None
    if last is not None or (request.max_tokens is None and request.max_messages is None):
        raise UsageError("`summarize` is for windows: pass max_tokens or max_messages, not `last`")
    return parse_summarizer(source)


def is_client(source: object) -> bool:
    """Whether this is an OpenAI-compatible client."""
    completions = getattr(getattr(source, "chat", None), "completions", None)
    return callable(getattr(completions, "create", None))


# Selection.


def select(
    replica: Replica,
    summarizer: Summarizer,
    *,
    live: Collection[str],
    room: WindowRequest = EVERYTHING,
) -> Steps[SummaryJob]:
    """Select the messages to summarize; SummaryError if there are none.

    `live` are the turns that this handle holds. If the summary is to make `room` in a window, the
    turns that are kept take at most half of it, if possible.
    """
    view, own = replica.view, replica.settings.codec  # One view: others may write meanwhile.
    counter = summarizer.counter or room.counter or replica.settings.counter or ESTIMATE
    counting = MessageCounter.of(view.state, counter, LOADED_MAX)
    conversation, summary = view.state.conversation, view.state.conversation.summary
    previous, after = [], 0
    if summary is not None:
        previous = yield from history.read_summary(view.history, summary, counting)
        after = summary.last
    ordered = yield from _messages_since(view, own, after, counting)
    # Calls are not separated from results that another process may still deliver.
    waiting = {call.turn for call in conversation.calls.values()} & view.state.turns.keys()
    index = _first_kept_index(ordered, summarizer, room, {*live, *waiting})
    instructions, pins = {*conversation.systems}, conversation.pins
    old = [message for message in ordered[:index] if message.position not in instructions]
    if not old:
        raise SummaryError(replica.name, "there is nothing to summarize yet")
    place = conversation.place_of(ordered[index - 1].position)
    last = yield from read_record(view.history, place)
    replaced = [*previous, *(message for message in old if message.position not in pins)]
    limit = summarizer.max_tokens
    if room.max_tokens is not None:
        fixed = yield from history.read_instructions(view, own, counting)
        kept = [*fixed, *ordered[index:]]
        available = room.max_tokens - _total_tokens(kept) - REPLY_TOKENS
        limit = available if limit is None else min(available, limit)
    return SummaryJob(
        session=replica.name,
        messages=render([*previous, *old], "openai.chat"),
        first=conversation.place_of(ordered[0].position),
        last=last.position,
        digest=last.digest,
        previous=summary.position if summary else 0,
        tokens=_total_tokens(replaced),
        limit=limit,
        counting=counting,
    )


def _total_tokens(messages: Sequence[StoredMessage]) -> int:
    return sum(message.tokens for message in messages)


def _messages_since(
    view: StateView, own: Codec, after: int, counting: MessageCounter
) -> Steps[list[StoredMessage]]:
    reader = history.MessageReader(view, own, after=after, counting=counting)
    messages: list[StoredMessage] = []
    while (page := (yield from reader.page())) is not None:
        messages += page
    return messages[::-1]


def _first_kept_index(
    ordered: Sequence[StoredMessage],
    summarizer: Summarizer,
    room: WindowRequest,
    live: Collection[str],
) -> int:
    """Return the index from which messages are kept as they are; 0 keeps all of them."""
    starts = history.window_starts(ordered, whole=True)
    first_live = next((i for i, item in enumerate(ordered) if item.turn in live), len(ordered))
    starts = [index for index in starts if index <= first_live][-summarizer.keep_turns :]
    most_tokens = math.inf if room.max_tokens is None else room.max_tokens / 2
    most_messages = math.inf if room.max_messages is None else room.max_messages / 2
    for index in starts:
        tail = ordered[index:]
        if _total_tokens(tail) <= most_tokens and len(tail) <= most_messages:
            return index
    return starts[-1] if starts else 0


# Request.


def summary_call(summarizer: Summarizer, work: SummaryJob) -> Callable[[], Any]:
    """Return the call that writes the text."""
    if not is_client(summarizer.function):
        return partial(summarizer.function, work.messages)
    return partial(_ask_client, summarizer, work)


def _ask_client(summarizer: Summarizer, work: SummaryJob) -> Any:
    client = summarizer.function
    if summarizer.timeout is not None and hasattr(client, "with_options"):
        client = client.with_options(timeout=summarizer.timeout)
    prompt = REQUEST + (LENGTH_REQUEST.format(work.limit) if work.limit is not None else "")
    messages = [
        {"role": "system", "content": INSTRUCTION},
        *work.messages,
        {"role": "user", "content": prompt},
    ]
    return client.chat.completions.create(model=summarizer.model, messages=messages)


# Validation.


def validate(summarizer: Summarizer, work: SummaryJob, reply: object) -> Summary:
    """Return the summary to store; SummaryError if the reply cannot replace the messages."""
    text, meta = _parse_reply(work, reply) if is_client(summarizer.function) else (reply, {})
    if not isinstance(text, str):
        raise SummaryError(work.session, f"the summary must be a str, not {type(text).__name__}")
    if not text.strip():
        raise SummaryError(work.session, "the text is empty")
    counter = work.counting.counter or ESTIMATE
    tokens = count_tokens(counter, history.summary_message(text))
    for maximum, what in ((work.limit, "are allowed"), (work.tokens, "is what it would replace")):
        if maximum is not None and tokens > maximum:
            raise SummaryError(work.session, f"it takes {tokens} tokens, and {maximum} {what}")
    content = Summary(
        text=text,
        first=work.first,
        last=work.last,
        previous=work.previous,
        meta=meta,
        tokens=tokens,
        counter=counter.name,
    )
    try:
        codec.encode(content)
    except (TypeError, ValueError) as error:  # A lone surrogate, or more than a record can hold.
        raise SummaryError(work.session, "it cannot be stored") from error
    return content


def _parse_reply(work: SummaryJob, reply: object) -> tuple[object, dict[str, Any]]:
    """Return the text of a client's reply, and its meta."""
    try:
        message, details = extract_messages(reply)[0]
    except PerdureError as error:
        raise SummaryError(work.session, "the client did not return a chat completion") from error
    if details.get("finish_reason") == "length":
        raise SummaryError(work.session, "the model's answer was cut off at its limit")
    if message.get("refusal"):
        raise SummaryError(work.session, "the model refused")
    meta = {name: details[name] for name in _META_FIELDS if details.get(name) is not None}
    return message.get("content"), meta
