"""The newest part of a conversation that fits a budget, as a provider takes it. Pure.

A window is read from the end backwards, a page at a time, so it costs what it returns, however long
the session is. Instructions (system and developer messages), pinned messages and the summary in
force are in every window; of the rest it holds the newest, cut where nothing is torn that belongs
together, at the beginning of a turn where that is possible.
"""

from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from perdure.conversations import spoken, talking
from perdure.conversations.spoken import Counted, Counting
from perdure.errors import BudgetError, UsageError
from perdure.plans import require_int
from perdure.replica import Replica
from perdure.steps import Steps
from perdure.tokens import ESTIMATE, REPLY_TOKENS, Counter
from perdure.transcript import FORMATS, Said, Transcript, render

EXACT = "openai.chat"  # The format whose tokens are counted as it is given out.
PAGES_FOR_A_START = 16  # Where nobody has turns and no user speaks, this many pages tell so.


class Asked(NamedTuple):
    """What a caller wants of a window."""

    format: str | None = None
    max_tokens: int | None = None
    max_messages: int | None = None
    perspective: str = ""
    counter: Counter | None = None


EVERYTHING = Asked()


def require_asked(asked: Asked) -> None:
    """Refuse what no window can be."""
    if asked.format is not None and asked.format not in FORMATS:
        raise UsageError(f"no format {asked.format!r}: choose one of {', '.join(FORMATS)}")
    for name, limit in (("max_tokens", asked.max_tokens), ("max_messages", asked.max_messages)):
        if limit is not None and require_int(limit, name) < 1:
            raise UsageError(f"{name} must be 1 or more, not {limit}")
    if asked.perspective and asked.format is None:
        raise UsageError("a perspective needs a format: give format='openai.chat', for one")


def require_alone(asked: Asked, last: int | None) -> None:
    """Refuse the last few messages as they are together with a window of them."""
    if last is not None and asked != EVERYTHING:
        raise UsageError("`last` gives messages as they are: with a window use max_messages")


def window(replica: Replica, asked: Asked, *, live: Collection[str]) -> Steps[Transcript]:
    """Return the window. `live` are the turns that this handle holds: their answers are coming."""
    require_asked(asked)
    replica = spoken.still(replica)
    counter = asked.counter or replica.settings.counter or ESTIMATE
    counting = Counting.of(replica, None if asked.max_tokens is None else counter)
    kept = yield from spoken.instructions(replica, counting)
    kept += yield from spoken.summary_in_force(replica, counting)
    kept += spoken.unknown_effects(replica, counting)
    kept.sort(key=lambda one: one.said.position)
    partials = yield from _partials(replica, counting, live)
    budget = _Budget(replica.name, asked, kept, partials)
    found, whole = yield from _newest(replica, budget, counting)
    error = budget.error([])
    for index in budget.beginnings(found, whole=whole):
        shown = budget.shown(found[index:])
        transcript = _rendered(shown, asked)
        transcript.tokens = _tokens(shown, transcript, asked, counting)
        # Giving it out may have made it longer: then as little as is needed is left out.
        too_long = budget.exceeded_by(transcript)
        if too_long is None:
            transcript.cut = found[index].said.position if index or not whole else 0
            return transcript
        error = too_long
    raise error


def _rendered(shown: Sequence[Counted], asked: Asked) -> Transcript:
    said = [one.said for one in shown]
    if asked.format is None:
        return Transcript([one.message for one in said])
    return render(said, asked.format, perspective=asked.perspective)


def _tokens(
    shown: Sequence[Counted], transcript: Transcript, asked: Asked, counting: Counting
) -> int | None:
    """Return how many tokens a window takes: those of its records, unless it says them otherwise.

    The estimate of what is given out in another format than OpenAI's is that of its records.
    """
    if counting.counter is None:
        return None
    if asked.format != EXACT:
        return REPLY_TOKENS + sum(one.tokens for one in shown)
    known: dict[tuple[str, str], list[Counted]] = {}
    for one in shown:
        known.setdefault(_mark(one.said.message), []).append(one)
    total = REPLY_TOKENS
    for message in transcript:
        same = next((one for one in known.get(_mark(message), ()) if _is_of(message, one)), None)
        if same is None:
            total += counting.message(message)
        else:
            total += same.tokens - counting.notices.get(same.said.position, 0)
    return total


def _mark(message: dict[str, Any]) -> tuple[str, str]:
    """Return what messages that say the same have in common, cheaply."""
    content = message.get("content")
    return str(message.get("role")), content if isinstance(content, str) else ""


def _is_of(message: dict[str, Any], one: Counted) -> bool:
    """Whether a message says nothing that the one it was made from does not."""
    stored = one.said.message
    return all(name in stored and stored[name] == value for name, value in message.items())


class _Budget:
    """Says how far back a window reaches."""

    def __init__(
        self, session: str, asked: Asked, kept: list[Counted], partials: list[Counted]
    ) -> None:
        self.session = session
        self.asked = asked
        self._kept = kept
        self._partials = partials
        self._fixed = {one.said.position for one in kept}
        self._fixed_tokens = sum(one.tokens for one in (*kept, *partials)) + REPLY_TOKENS
        self._fixed_count = len(kept) + len(partials)

    def shown(self, newest: Sequence[Counted]) -> list[Counted]:
        """Return everything that a window has with these messages, in order."""
        held = {one.said.position for one in newest}
        kept = [one for one in self._kept if one.said.position not in held]
        return [*kept, *newest, *self._partials]

    def own(self, one: Counted) -> tuple[int, int]:
        """Return the tokens and the messages that one adds to what every window has."""
        return (0, 0) if one.said.position in self._fixed else (one.tokens, 1)

    def exceeded(self, tokens: int, count: int) -> bool:
        """Whether so much, besides what every window has, is more than fits."""
        asked = self.asked
        if asked.max_messages is not None and count + self._fixed_count > asked.max_messages:
            return True
        return asked.max_tokens is not None and tokens + self._fixed_tokens > asked.max_tokens

    def error(self, newest: Sequence[Counted]) -> BudgetError:
        """Return what to say if not even these fit."""
        asked, own = self.asked, [self.own(one) for one in newest]
        tokens = self._fixed_tokens + sum(tokens for tokens, _ in own)
        if asked.max_tokens is not None and tokens > asked.max_tokens:
            return BudgetError(self.session, tokens, asked.max_tokens, "tokens")
        count = self._fixed_count + sum(count for _, count in own)
        return BudgetError(self.session, count, asked.max_messages or 0, "messages")

    def exceeded_by(self, transcript: Transcript) -> BudgetError | None:
        """Return what to say if a transcript does not fit, else None."""
        allowed, most = self.asked.max_tokens, self.asked.max_messages
        if allowed is not None and (transcript.tokens or 0) > allowed:
            return BudgetError(self.session, transcript.tokens or 0, allowed, "tokens")
        if most is not None and len(transcript) > most:
            return BudgetError(self.session, len(transcript), most, "messages")
        return None

    def beginnings(self, found: Sequence[Counted], *, whole: bool) -> list[int]:
        """Return the indexes that a window may begin at and fits, the longest one first."""
        sums = accumulate(map(self.own, reversed(found)), _plus, initial=(0, 0))
        exceeded = [self.exceeded(*one) for one in sums][::-1]
        begin = spoken.starts(found, whole=whole)
        if whole and not begin:
            begin = [0]
        fitting = [index for index in begin if not exceeded[index]]
        if not fitting:
            raise self.error(found[begin[-1] if begin else 0 :])
        return fitting


def _plus(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return one[0] + other[0], one[1] + other[1]


def _newest(
    replica: Replica, budget: _Budget, counting: Counting
) -> Steps[tuple[list[Counted], bool]]:
    """Return the newest messages in order, as many as a window may need; and if these are all."""
    summary = replica.fold.talk.summary
    reader = spoken.Reader(replica, after=summary.last if summary else 0, counting=counting)
    found: list[Counted] = []  # Newest first.
    size, beyond = (0, 0), 0
    while (page := (yield from reader.page())) is not None:
        found += page
        for one in page:
            size = _plus(size, budget.own(one))
        if budget.exceeded(*size):
            beyond += 1
            begins = any(map(spoken.begins_turn, found, found[1:]))
            if begins or beyond > PAGES_FOR_A_START:
                return found[::-1], False
    return found[::-1], True


def _partials(replica: Replica, counting: Counting, live: Collection[str]) -> Steps[list[Counted]]:
    """Return answers whose stream was cut and whose turn nobody here goes on with."""
    found: list[Counted] = []
    for partial in replica.fold.talk.cut.values():
        if partial.turn in live:
            continue
        for message, _ in (yield from talking.said_so_far(replica, partial)):
            said = Said(partial.position, message, turn=partial.turn, interrupted=True)
            found.append(Counted(said, counting.message(message)))
    return found
