"""Build a context window: the newest part of a conversation that fits a budget.

A replica and a request come in, a transcript goes out. Pure: reads are yielded as steps.

A window is read backwards from the end, page by page, so its cost depends on its size and not on
the length of the session. Instructions (system and developer messages), pinned messages and the
summary in force are in every window. Of the rest it has the newest messages, from a safe cut on,
at the start of a turn where possible.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Any, NamedTuple

from perdure.core import history, streaming
from perdure.core.history import MessageCounter, MessageReader
from perdure.core.replica import Replica, StateView
from perdure.core.validation import require_int
from perdure.errors import ContextWindowError, UsageError
from perdure.formats.bodies import Body, Citation
from perdure.formats.parts import StoredMessage
from perdure.formats.tokens import ESTIMATE, REPLY_TOKENS, Counter
from perdure.formats.transcript import FORMATS, Transcript, render
from perdure.journal.codec import Codec
from perdure.journal.large import LOADED_MAX, as_leaf, read_body
from perdure.journal.reader import History
from perdure.journal.requests import Steps

EXACT_FORMAT = "openai.chat"  # The format whose tokens are counted after rendering.

TOKEN_BYTES = 64  # bytes; texts of longer tokens on average are no texts

START_SEARCH_PAGES = 16  # pages; give up looking for a turn boundary after this many


class WindowRequest(NamedTuple):
    """The window that a caller requests."""

    format: str | None = None
    max_tokens: int | None = None
    max_messages: int | None = None
    perspective: str = ""
    counter: Counter | None = None


EVERYTHING = WindowRequest()


def require_valid_request(request: WindowRequest) -> None:
    """Raise UsageError for a request that no window can meet."""
    if request.format is not None and request.format not in FORMATS:
        raise UsageError(f"no format {request.format!r}: choose one of {', '.join(FORMATS)}")
    for name, limit in (("max_tokens", request.max_tokens), ("max_messages", request.max_messages)):
        if limit is not None and require_int(limit, name) < 1:
            raise UsageError(f"{name} must be 1 or more, not {limit}")
    if request.perspective and request.format is None:
        raise UsageError("a perspective needs a format: pass format='openai.chat', for example")


def require_last_alone(request: WindowRequest, last: int | None) -> None:
    """Raise UsageError if `last` is combined with a window."""
    if last is not None and request != EVERYTHING:
        raise UsageError("`last` returns messages as they are: use max_messages for a window")


def read_window(
    replica: Replica, request: WindowRequest, *, live: Collection[str]
) -> Steps[Transcript]:
    """Return the window. `live` turns are held by this handle: their answers still stream."""
    require_valid_request(request)
    view, own = replica.view, replica.settings.codec  # One view: others may write meanwhile.
    counter = request.counter or replica.settings.counter or ESTIMATE
    if request.max_tokens is None:
        counting = MessageCounter.of(view.state, None, replica.settings.part_size)
    else:  # No tokenizer makes one token of so many bytes: a longer text fits no such window.
        texts = min(TOKEN_BYTES * request.max_tokens, LOADED_MAX)
        counting = MessageCounter.of(view.state, counter, replica.settings.part_size, texts)
    summary = view.state.conversation.summary
    fixed = yield from history.read_instructions(view, own, counting)
    if summary is not None:
        fixed += yield from history.read_summary(view.history, summary, counting)
        fixed += history.unknown_effect_notices(view.state, summary, counting)
    fixed.sort(key=_position)
    partials = yield from _read_partials(view, own, counting, live)
    budget = _Budget(replica.name, request, fixed, partials)
    after = summary.last if summary else 0
    messages = MessageReader(view, own, after=after, counting=counting)
    newest, whole = yield from _read_newest(messages, budget)
    error = None
    for index in budget.fitting_starts(newest, whole=whole):
        shown = budget.with_fixed(newest[index:])
        if request.format is not None and True in map(_has_bodies, shown):
            shown = yield from _load_bodies(view.history, shown)
        transcript = _render(shown, request)
        transcript.tokens = _count_tokens(shown, transcript, request, counting)
        # Rendering may add tokens or messages: then try the next shorter window.
        too_long = budget.exceeded_by(transcript)
        if too_long is None:
            transcript.truncated_before = newest[index].position if index or not whole else 0
            return transcript
        error = too_long
    raise error or budget.error([])


_position, _has_bodies = attrgetter("position"), attrgetter("has_bodies")


def _load_bodies(past: History, shown: Sequence[StoredMessage]) -> Steps[list[StoredMessage]]:
    """Return messages with the bodies that were not read with them; UsageError if it is too much.

    A provider gets the texts that they stand for.
    """
    bodies = {body.citation for item in shown for body in _bodies_in(item)}
    if sum(citation.size for citation in bodies) > LOADED_MAX:
        reason = f"the large bodies of these messages have more than {LOADED_MAX} bytes"
        raise UsageError(f"{reason}: pass max_messages or max_tokens, or read them one by one")
    leaves: dict[Citation, str | bytes] = {}
    for citation in bodies:
        data = yield from read_body(past, citation)
        leaves[citation] = as_leaf(past.stream.session, citation, data)
    if not leaves:
        return [*shown]
    return [
        item._replace(message=_with_leaves(item.message, leaves)) if item.has_bodies else item
        for item in shown
    ]


def _bodies_in(item: StoredMessage) -> Iterator[Body]:
    values: list[Any] = [item.message] if item.has_bodies and not item.opaque else []
    while values:
        value = values.pop()
        if isinstance(value, Body):
            yield value
        elif isinstance(value, dict | list):
            values += value.values() if isinstance(value, dict) else value


def _with_leaves(value: Any, leaves: Mapping[Citation, str | bytes]) -> Any:
    if isinstance(value, Body):
        return leaves.get(value.citation, value)
    if isinstance(value, dict):
        return {key: _with_leaves(item, leaves) for key, item in value.items()}
    return [_with_leaves(item, leaves) for item in value] if isinstance(value, list) else value


def _render(shown: Sequence[StoredMessage], request: WindowRequest) -> Transcript:
    if request.format is None:
        return Transcript([message.message for message in shown])
    return render(shown, request.format, perspective=request.perspective)


def _count_tokens(
    shown: Sequence[StoredMessage],
    transcript: Transcript,
    request: WindowRequest,
    counting: MessageCounter,
) -> int | None:
    """Return the number of tokens of a window; None if they are not counted.

    In the `EXACT_FORMAT`, rendered messages that differ from their records are counted again. Other
    formats use the counts of the records as an estimate.
    """
    if counting.counter is None:
        return None
    if request.format != EXACT_FORMAT:
        return REPLY_TOKENS + sum(candidate.tokens for candidate in shown)
    by_key: dict[tuple[str, str], list[StoredMessage]] = {}
    for candidate in shown:
        by_key.setdefault(_lookup_key(candidate.message), []).append(candidate)
    total = REPLY_TOKENS
    for message in transcript:
        candidates = by_key.get(_lookup_key(message), ())
        match = next((item for item in candidates if _is_subset_of(message, item.message)), None)
        if match is None:
            total += counting.message(message)
        else:
            total += match.tokens - counting.notices.get(match.position, 0)
    return total


def _lookup_key(message: dict[str, Any]) -> tuple[str, str]:
    """Return a cheap lookup key that is equal for equal messages."""
    content = message.get("content")
    return str(message.get("role")), content if isinstance(content, str) else ""


def _is_subset_of(message: dict[str, Any], stored: dict[str, Any]) -> bool:
    """Whether every field of a rendered message equals that of the stored one."""
    return all(name in stored and stored[name] == value for name, value in message.items())


class _Budget:
    """Decides how far back a window reaches."""

    def __init__(
        self,
        session: str,
        request: WindowRequest,
        fixed: list[StoredMessage],
        partials: list[StoredMessage],
    ) -> None:
        self.session = session
        self.request = request
        self._fixed_messages = fixed
        self._partials = partials
        self._fixed = {message.position for message in fixed}
        self._fixed_tokens = sum(message.tokens for message in (*fixed, *partials)) + REPLY_TOKENS
        self._fixed_count = len(fixed) + len(partials)

    def with_fixed(self, newest: Sequence[StoredMessage]) -> list[StoredMessage]:
        """Return these messages and those of every window, in order."""
        positions = {message.position for message in newest}
        fixed = [message for message in self._fixed_messages if message.position not in positions]
        shown = [*newest]
        for partial in self._partials:  # After the messages that came before it.
            place = len(shown)
            while place and shown[place - 1].position > partial.position:
                place -= 1
            shown.insert(place, partial)
        return [*fixed, *shown]

    def cost(self, message: StoredMessage) -> tuple[int, int]:
        """Return the tokens and messages that one adds; (0, 0) if every window has it, or none."""
        left_out = message.opaque and self.request.format is not None
        return (0, 0) if left_out or message.position in self._fixed else (message.tokens, 1)

    def exceeds(self, tokens: int, count: int) -> bool:
        """Whether this much, added to the fixed messages, is over the limit."""
        request = self.request
        if request.max_messages is not None and count + self._fixed_count > request.max_messages:
            return True
        return request.max_tokens is not None and tokens + self._fixed_tokens > request.max_tokens

    def error(self, newest: Sequence[StoredMessage]) -> ContextWindowError:
        """Return the error if even these messages do not fit."""
        request, own = self.request, [self.cost(message) for message in newest]
        tokens = self._fixed_tokens + sum(tokens for tokens, _ in own)
        if request.max_tokens is not None and tokens > request.max_tokens:
            return ContextWindowError(self.session, tokens, request.max_tokens, "tokens")
        count = self._fixed_count + sum(count for _, count in own)
        return ContextWindowError(self.session, count, request.max_messages or 0, "messages")

    def exceeded_by(self, transcript: Transcript) -> ContextWindowError | None:
        """Return the error if a transcript does not fit, else None."""
        max_tokens, max_messages = self.request.max_tokens, self.request.max_messages
        if max_tokens is not None and (transcript.tokens or 0) > max_tokens:
            return ContextWindowError(self.session, transcript.tokens or 0, max_tokens, "tokens")
        if max_messages is not None and len(transcript) > max_messages:
            return ContextWindowError(self.session, len(transcript), max_messages, "messages")
        return None

    def fitting_starts(self, newest: Sequence[StoredMessage], *, whole: bool) -> list[int]:
        """Return the starts of windows that fit, longest first; ContextWindowError if none do."""
        sums = accumulate(map(self.cost, reversed(newest)), _add_sizes, initial=(0, 0))
        exceeded = [self.exceeds(*size) for size in sums][::-1]
        starts = history.window_starts(newest, whole=whole)
        if whole and not starts:
            starts = [0]
        fitting = [index for index in starts if not exceeded[index]]
        if not fitting:
            raise self.error(newest[starts[-1] if starts else 0 :])
        return fitting


def _add_sizes(first: tuple[int, int], second: tuple[int, int]) -> tuple[int, int]:
    return first[0] + second[0], first[1] + second[1]


def _read_newest(reader: MessageReader, budget: _Budget) -> Steps[tuple[list[StoredMessage], bool]]:
    """Read the newest messages that a window may need, in order; and whether these are all."""
    messages: list[StoredMessage] = []  # Newest first.
    size, pages_over = (0, 0), 0
    while (page := (yield from reader.page())) is not None:
        messages += page
        for message in page:
            size = _add_sizes(size, budget.cost(message))
        if budget.exceeds(*size):
            pages_over += 1
            begins = any(map(history.is_turn_start, messages, messages[1:]))
            if begins or pages_over > START_SEARCH_PAGES:
                return messages[::-1], False
    return messages[::-1], True


def _read_partials(
    view: StateView, own: Codec, counting: MessageCounter, live: Collection[str]
) -> Steps[list[StoredMessage]]:
    """Read the interrupted answers, except those of `live` turns."""
    messages: list[StoredMessage] = []
    if not view.state.conversation.partials:
        return messages
    for partial in view.state.conversation.interrupted.values():
        if partial.turn in live:
            continue
        for message, _ in (yield from streaming.read_partial_answer(view.history, own, partial)):
            tokens = counting.message(message)
            stored = StoredMessage(partial.position, message, turn=partial.turn, interrupted=True)
            messages.append(stored._replace(tokens=tokens))
    return messages
