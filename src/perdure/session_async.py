"""AsyncSession: the object that an application works with, for code in an event loop.

Nothing is decided here: each method creates a plan or steps, and runs them through the handle.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Any, Self

from perdure import entering, events, lifecycle, saying, views, writing
from perdure.approvals.approvals_async import AsyncApprovals
from perdure.commit_async import AsyncDriver
from perdure.conversations import talking, window
from perdure.conversations.summaries_async import AsyncSummaries
from perdure.conversations.summarising import (
    KEEP_TURNS,
    TIMEOUT,
    Summariser,
    for_window,
    summariser,
)
from perdure.conversations.window import EVERYTHING, Asked
from perdure.effects import deed_views
from perdure.effects.deed_views import Found
from perdure.effects.effects_async import AsyncEffects
from perdure.effects.making_async import AsyncMaking
from perdure.fold import GENERATED
from perdure.following_async import follow
from perdure.handle_async import AsyncHandle
from perdure.leases import leasing
from perdure.leases.lease_async import AsyncLease
from perdure.plans import require_int, require_timeout
from perdure.reading import OnDamage
from perdure.records import Record, Summary
from perdure.replica import Replica
from perdure.saying import Voice, voice_of
from perdure.seen import Seen
from perdure.tokens import Counter
from perdure.transcript import Transcript
from perdure.turn_async import AsyncTurn
from perdure.values_async import AsyncValues
from perdure.views import Verified


class AsyncSession(Seen, AsyncMaking):
    """One agent's conversation and working state.

    An object has one view of its session: the state when it was opened or refreshed, and its own
    writes. Tasks may share an object; their appends never race. If another handle or process wrote
    first, a call that depends on the view raises ConflictError and refreshes it.
    """

    def __init__(
        self, driver: AsyncDriver, replica: Replica, handle: AsyncHandle | None = None
    ) -> None:
        self._handle = handle or AsyncHandle(driver, replica)
        self.effects = AsyncEffects(self._handle)
        self.approvals = AsyncApprovals(self._handle)
        self._replica = replica
        self.values = AsyncValues(self._handle)
        self._summaries = AsyncSummaries(self._handle)

    @property
    def interrupted(self) -> tuple[AsyncTurn, ...]:
        """The turns that have begun and not ended, except those running in this handle.

        Enter one with `async with` to continue it, or call its `abandon`.
        """
        return tuple(
            AsyncTurn(self._handle, id, begun=turn.position, correlation_id=turn.correlation_id)
            for id, turn in self._replica.state.turns.items()
            if id not in self._handle.own_turns
        )

    @property
    def current(self) -> AsyncTurn | None:
        """The turn of this handle that the running code is inside of, or None.

        Each thread and task has its own.
        """
        turn: AsyncTurn | None = entering.innermost(self._handle)
        return turn

    async def append(
        self,
        *messages: object,
        author: str = "",
        recipient: str = "",
        channel: str = "",
        origin: str = "",
        id: str | None = None,
    ) -> int:
        """Append messages, all or none; on return they are durable. Return the last position.

        Messages are dicts, or SDK objects: chat completions, responses, their items.

        With an `id`, repeating the call after a crash or a lost reply appends nothing twice. The
        same id with other messages is a DivergenceError.
        """
        voice = voice_of(author, recipient, channel, origin)
        return await self._handle.write(
            saying.say(self._replica, messages, voice=voice, record_id=id)
        )

    def turn(
        self,
        message: object | None = None,
        *,
        correlation_id: str = "",
        author: str = "",
        id: str | None = None,
    ) -> AsyncTurn:
        """Return a turn for `async with`. When the body runs, the user's message is durable.

        The turn is completed when the body ends, failed when the body raises, and interrupted when
        the process dies. With an `id`, entering it again after a crash continues the turn.
        """
        if id is not None:
            saying.require_id(id)
        correlation_id = correlation_id or events.correlation_id.get()
        if isinstance(message, str):
            message = {"role": "user", "content": message}
        return AsyncTurn(
            self._handle, id, message=message, correlation_id=correlation_id, voice=Voice(author)
        )

    def lease(
        self,
        *,
        ttl: float = 30.0,
        wait: float | bool | None = None,
        who: str = "",
        force: bool = False,
    ) -> AsyncLease:
        """Return a lease for `async with`: while it is held, only this handle writes.

        Other handles get LeaseHeldError for all writes but notes, labels, approval decisions and
        outcomes of calls. The lease is renewed in the background. After `ttl` seconds without a
        renewal it expires: any handle may take it over, and writes of this one are FencedError.
        While another handle holds it, entering waits up to `wait` seconds (True: forever; None: not
        at all), then raises LeaseHeldError. `force` takes it from a live holder. `who` is recorded
        and shown to others; the default is the machine and process.
        """
        return AsyncLease(self._handle, leasing.asked(ttl, wait, who, force=force))

    async def messages(
        self,
        *,
        format: str | None = None,
        max_tokens: int | None = None,
        max_messages: int | None = None,
        perspective: str = "",
        counter: Counter | None = None,
        last: int | None = None,
        summarise: Callable[..., Any] | Summariser | None = None,
    ) -> Transcript:
        """Return the messages in this view, in order: all of them as appended, or a window.

        With a `format` ("openai.chat", "openai.responses", "anthropic", "gemini") the transcript is
        always valid for that provider: `losses` lists what could not be expressed, `closed` the
        calls without a result. `perspective` is the name of the agent to render it for.

        With `max_tokens` or `max_messages`, it has the newest messages that fit, cut at the start
        of a turn, and always the instructions, pinned messages and the current summary. BudgetError
        if the newest turn alone is too long. With `summarise`, a function or a Summariser, messages
        that would be cut are summarized first; a rejected summary is logged and changes nothing.
        `last` returns the last few messages unchanged.
        """
        request = Asked(format, max_tokens, max_messages, perspective, counter)
        summarizer = for_window(summarise, request, last)
        if request == EVERYTHING or last is not None:
            window.require_alone(request, last)
            return Transcript(await self._handle.run(views.messages(self._replica, last=last)))
        transcript = await self._window(request)
        if (
            summarizer is None
            or not transcript.cut
            or not await self._summaries.make_room(summarizer, request)
        ):
            return transcript
        return await self._window(request)

    async def _window(self, request: Asked) -> Transcript:
        live = self._handle.own_turns
        return await self._handle.run(window.window(self._replica, request, live=live))

    async def pin(self, position: int) -> None:
        """Pin the message at a position: every window includes it."""
        await self._handle.write(talking.pin(self._replica, position, on=True))

    async def unpin(self, position: int) -> None:
        """Unpin a message, so that windows may cut it again; NotFoundError if it is not pinned."""
        await self._handle.write(talking.pin(self._replica, position, on=False))

    async def summarise(
        self,
        with_: Any,
        *,
        model: str = "",
        keep_turns: int = KEEP_TURNS,
        max_tokens: int | None = None,
        timeout: float | None = TIMEOUT,  # noqa: ASYNC109 - the same parameters as in `Session`
        counter: Counter | None = None,
    ) -> Summary:
        """Summarize older turns: windows show the summary in their place. They stay stored.

        `with_` is a function that gets the messages and returns a text, or an OpenAI client, with
        a `model`. The newest `keep_turns` turns are not summarized. On return the summary is
        durable. SummaryError, with nothing changed, if the summary is empty, longer than what it
        replaces or than `max_tokens`, if creating it failed or took longer than `timeout` seconds,
        or if there is nothing to summarize. Other writers can continue meanwhile; only another
        summary is a conflict.
        """
        summarizer = Summariser(with_, model, keep_turns, max_tokens, timeout, counter)
        return await self._summaries.make(summariser(summarizer))

    def summarise_in_background(
        self,
        with_: Any,
        *,
        model: str = "",
        keep_turns: int = KEEP_TURNS,
        max_tokens: int | None = None,
        timeout: float | None = TIMEOUT,
        counter: Counter | None = None,
    ) -> "asyncio.Task[Summary]":
        """Start `summarise` in the background while the conversation continues; return its task.

        Closing the session waits for it, at most for its `timeout`.
        """
        summarizer = Summariser(with_, model, keep_turns, max_tokens, timeout, counter)
        return self._summaries.start(summariser(summarizer))

    async def undo_summary(self) -> None:
        """Return to the summary before the current one, or to the messages themselves.

        NotFoundError if there is no summary.
        """
        await self._summaries.undo()

    async def set(self, key: str, value: object) -> int:
        """Store a value as the newest version of a key; on return it is durable.

        Returns the version. Long documents are stored as deltas, so a small change costs little.
        """
        return await self.values.set(key, value)

    async def get(self, key: str, default: Any = None, *, version: int | None = None) -> Any:
        """Return a value, or the default if the key has none.

        NotFoundError if a version is given and does not exist.
        """
        return await self.values.get(key, default, version=version)

    async def delete(self, key: str) -> None:
        """Delete a value; earlier versions stay readable. NotFoundError if it does not exist."""
        await self.values.delete(key)

    async def note(self, data: object, *, author: str = "", id: str | None = None) -> int:
        """Append a note that is not part of the conversation. It never conflicts."""
        return await self._handle.write(
            writing.remark(self._replica, data, author=author, record_id=id)
        )

    async def label(self, *add: str, remove: Sequence[str] = ()) -> None:
        """Add or remove labels, by which `store.sessions` finds the session."""
        await self._handle.write(writing.label(self._replica, add, remove))

    async def records(
        self, *, after: int = 0, on_damage: OnDamage | None = None
    ) -> AsyncIterator[Record]:
        """Yield every record in this view, and verify the chain.

        Damage is raised; if `on_damage` is given, it is called with each error instead, and reading
        continues with the next readable record.
        """
        past, settings = self._replica.past, self._replica.settings
        records = views.Records(past, settings, after=after, on_damage=on_damage)
        while (page := await self._handle.run(records.page())) is not None:
            for record in page:
                yield record

    def watch(
        self, *, after: int | None = None, timeout: float | None = None
    ) -> AsyncIterator[Record]:
        """Yield new records as they are appended, and add them to the view.

        They come from any handle or process, this one included. They start after this view, or
        after the position `after`, so a caller that resumes watching misses nothing. Watching ends
        when no record arrives for `timeout` seconds (None waits forever), when the session or the
        store is closed, and after the record that deletes the session.
        """
        at = self._replica.tip.position if after is None else require_int(after, "after")
        return follow(self._handle, at, require_timeout(timeout))

    async def branch(self, id: str, *, at: int | str | Found | None = None) -> "AsyncSession":
        """Create a session that shares this one's history, up to and including position `at`.

        If `at` is an effect or its id, the history ends before that call and before the calls that
        ran in parallel with it: its turn is open in the branch, and can continue differently.

        Nothing is copied. While the branch exists, this session cannot be deleted.
        """
        effect = at.id if isinstance(at, Found) else at
        if isinstance(effect, str) and effect.startswith(GENERATED):
            at = await self._handle.run(deed_views.before(self._replica, effect))
        with self._handle.observed("branch", branch=id):
            child = await self._handle.run(lifecycle.branch(self._replica, id, at=at))
        await self._handle.write(writing.CATCH_UP)
        return AsyncSession(self._handle.driver, child)

    async def refresh(self) -> int:
        """Apply the records of other writers; return the position of the newest record."""
        return await self._handle.write(writing.REFRESH)

    async def verify(self) -> Verified:
        """Read and check the whole history: chain, bodies, snapshots, labels. Raise if damaged."""
        with self._handle.observed("verify") as span:
            result = await self._handle.run(views.verify(self._replica))
            span.fields.update(entries=result.entries, position=result.position)
        return result

    async def close(self) -> None:
        """Finish everything in flight and close the session. Closing twice is harmless."""
        await self._handle.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
