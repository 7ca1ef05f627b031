"""AsyncSession: the object that an application works with, for code in an event loop.

Nothing is decided here: each method creates a plan or steps, and runs them through the handle.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self, overload

from perdure import events
from perdure.aio.approvals import AsyncApprovals
from perdure.aio.batch import AsyncBatch
from perdure.aio.concurrency import require_plain_agent, require_resolved, resolve
from perdure.aio.driver import AsyncDriver
from perdure.aio.effects import AsyncEffects
from perdure.aio.handle import AsyncHandle
from perdure.aio.large_body import AsyncLargeBody, plan_with_parts, upload_body
from perdure.aio.lease import AsyncLease
from perdure.aio.session_reader import AsyncSessionReader
from perdure.aio.summaries import AsyncSummaries
from perdure.aio.tools import AsyncModel, AsyncTool, ToolSet, run_tool_calls
from perdure.aio.turn import AsyncTurn
from perdure.aio.values import AsyncValues
from perdure.core import (
    annotations,
    compaction,
    copies,
    history,
    leases,
    lifecycle,
    plans,
    turn_context,
    turns,
    validation,
    window,
)
from perdure.core.batch import BatchPlans
from perdure.core.compaction import CompactRequest, CompactResult
from perdure.core.effects import listing
from perdure.core.effects.calls import Effect, P, Policy, R_co, ToolSpec, require_spec
from perdure.core.effects.listing import EffectInfo
from perdure.core.fields import change_fields
from perdure.core.messages import Attribution, append_messages, make_attribution
from perdure.core.replica import Replica
from perdure.core.retractions import replace_messages, retract_messages
from perdure.core.state.fields import FieldValue
from perdure.core.summaries import (
    KEEP_TURNS,
    TIMEOUT,
    Summarizer,
    parse_summarizer,
    undo_summary,
    window_summarizer,
)
from perdure.core.turn_records import TurnPlace
from perdure.core.window import EVERYTHING, WindowRequest
from perdure.errors import UsageError
from perdure.formats.tokens import Counter
from perdure.formats.transcript import Transcript
from perdure.journal.ids import GENERATED_PREFIX
from perdure.journal.records import Summary

if TYPE_CHECKING:
    from asyncio import Task


class AsyncSession(AsyncSessionReader):
    """One agent's conversation and working state.

    An object has one view of its session: the state when it was opened or refreshed, and its own
    writes. Tasks may share an object; their appends never race. If another handle or process
    wrote first, a call that depends on the view raises ConflictError and refreshes it.
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
            AsyncTurn(
                self._handle,
                id,
                found=TurnPlace(id, turn.position),
                correlation_id=turn.correlation_id,
            )
            for id, turn in self._replica.state.turns.items()
            if id not in self._handle.active_turns
        )

    @property
    def current_turn(self) -> AsyncTurn | None:
        """The turn of this handle that the running code is inside of, or None.

        Each thread and task has its own.
        """
        turn: AsyncTurn | None = turn_context.current_turn(self._handle)
        return turn

    async def append(
        self,
        *messages: object,
        author: str = "",
        recipient: str = "",
        channel: str = "",
        origin: str = "",
        id: str | None = None,
        opaque: bool = False,
    ) -> int:
        """Append messages, all or none; on return they are durable. Return the last position.

        Messages are dicts, or SDK objects: chat completions, responses, their items. With `opaque`,
        they are dicts of any other form: `messages()` returns them as they are, and no provider
        gets them.

        With an `id`, repeating the call after a crash or a lost reply appends nothing twice. The
        same id with other messages is a DivergenceError.
        """
        attribution = make_attribution(author, recipient, channel, origin)
        plan = append_messages(
            self._replica, messages, attribution=attribution, record_id=id, opaque=opaque
        )
        return await self._handle.write(plan)

    def batch(self, *, id: str | None = None, expect: int | None = None) -> AsyncBatch:
        """Return a batch for `async with`: its records are stored in one commit, all or none.

        With `expect`, ConflictError unless the session is at that position. With an `id`, repeating
        the batch stores nothing twice; the same id with other content is a DivergenceError.
        """
        return AsyncBatch(BatchPlans(self._replica, id, expect), self._handle.write)

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
        the process dies. With an `id`, entering it again continues an interrupted or a failed turn.
        A completed turn stays completed: `turn.ended` is then true, and `turn.answer()` is the same
        as before. `session.run` does all of this.
        """
        if id is not None:
            validation.require_record_id(id)
        correlation_id = correlation_id or events.correlation_id.get()
        if isinstance(message, str):
            message = {"role": "user", "content": message}
        return AsyncTurn(
            self._handle,
            id,
            message=message,
            correlation_id=correlation_id,
            attribution=Attribution(author),
        )

    async def find_turn(self, id: str) -> AsyncTurn:
        """Return a turn of this view by its id, however long ago it was.

        NotFoundError if there is none. Entering it continues it if it is interrupted or failed.
        """
        validation.require_str(id, "an id")
        place, correlation_id = await self._handle.run(turns.require_turn(self._replica, id))
        return AsyncTurn(self._handle, id, found=place, correlation_id=correlation_id)

    async def run(
        self,
        id: str,
        function: Callable[[AsyncTurn], Any],
        message: object | None = None,
        *,
        correlation_id: str = "",
        author: str = "",
    ) -> dict[str, Any]:
        """Run a turn once, however often this is called with its id; return its answer.

        `function` gets the turn and appends the answer to it. It is called if the turn is new, and
        again if the turn failed or its process died: what was recorded is then part of the session.
        Once the turn is completed, the function is not called any more, and the recorded answer is
        returned. If the function raises, or appends no answer, the turn is failed.
        """
        if not callable(function):
            kind = type(function).__qualname__
            raise UsageError(f"pass a function that gets the turn, not a {kind}")
        require_plain_agent(function)
        async with self.turn(message, correlation_id=correlation_id, author=author, id=id) as turn:
            if not turn.ended:
                require_resolved(await resolve(function(turn)))
            return turns.require_answer(self.id, id, turn.state, await turn.answer())

    def lease(
        self,
        *,
        ttl: float = 30.0,
        timeout: float | bool | None = None,
        owner: str = "",
        force: bool = False,
    ) -> AsyncLease:
        """Return a lease for `async with`: while it is held, only this handle writes.

        Other handles get LeaseHeldError for all writes but notes, labels, approval decisions and
        outcomes of calls. The lease is renewed in the background. After `ttl` seconds without a
        renewal it expires: any handle may take it over, and writes of this one are FencedError.
        While another handle holds it, entering waits up to `timeout` seconds (True: forever; None:
        not at all), then raises LeaseHeldError. `force` takes it from a live holder. `owner` is
        recorded and shown to others; the default is the machine and process.
        """
        return AsyncLease(self._handle, leases.parse_request(ttl, timeout, owner, force=force))

    @overload
    def tool(
        self,
        function: Callable[P, R_co],
        *,
        effect: Policy = ...,
        name: str = ...,
        version: str = ...,
        actor: str = ...,
        reconcile: Callable[[Effect], Any] | None = ...,
        timeout: float | None = ...,
        approval: bool | Callable[[dict[str, Any]], Any] = ...,
        approval_ttl: float | None = ...,
        approval_wait: float | None = ...,
    ) -> AsyncTool[P, R_co]: ...
    @overload
    def tool(
        self,
        *,
        effect: Policy = ...,
        name: str = ...,
        version: str = ...,
        actor: str = ...,
        reconcile: Callable[[Effect], Any] | None = ...,
        timeout: float | None = ...,
        approval: bool | Callable[[dict[str, Any]], Any] = ...,
        approval_ttl: float | None = ...,
        approval_wait: float | None = ...,
    ) -> Callable[[Callable[P, R_co]], AsyncTool[P, R_co]]: ...
    def tool(  # noqa: PLR0913 - every option of a tool, by name
        self,
        function: Callable[P, R_co] | None = None,
        *,
        effect: Policy = "unsafe",
        name: str = "",
        version: str = "",
        actor: str = "",
        reconcile: Callable[[Effect], Any] | None = None,
        timeout: float | None = None,
        approval: bool | Callable[[dict[str, Any]], Any] = False,
        approval_ttl: float | None = None,
        approval_wait: float | None = None,
    ) -> AsyncTool[P, R_co] | Callable[[Callable[P, R_co]], AsyncTool[P, R_co]]:
        """Return a tool that runs once for each call, or reports that its outcome is unknown.

        Call it in a turn, like the function. With options or without, `session.tool` may be a
        decorator: `@session.tool(effect="idempotent")`.

        `effect` is the policy for a call whose process died before its outcome was recorded.
        "unsafe": it is not made again and raises UnknownOutcomeError. "read_only" and "idempotent":
        it is made again; an idempotent tool gets the same `perdure.current_effect().key`.
        "reconcile": the function `reconcile` finds out whether it happened, and returns
        Happened(result) or DidNotHappen().

        With `approval` (True, or a function of the arguments), a call runs only after it was
        approved (`session.approvals`, `perdure approve`) within `approval_ttl` seconds. The caller
        waits up to `approval_wait` seconds (None: no limit), then gets ApprovalPendingError.

        A result that cannot be stored is returned, and recorded as a text: if the call is repeated
        after a crash, it raises UnstoredResultError, and `run_tool_calls` returns the text again.
        """

        def make_tool(function: Callable[P, R_co]) -> AsyncTool[P, R_co]:
            options = ToolSpec(function, name, effect, version, actor, reconcile, timeout)
            spec = options._replace(
                approval=approval, approval_ttl=approval_ttl, approval_wait=approval_wait
            )
            return AsyncTool(self._handle, require_spec(spec))

        return make_tool if function is None else make_tool(function)

    @overload
    def model(
        self,
        function: Callable[P, R_co],
        *,
        name: str = ...,
        version: str = ...,
        actor: str = ...,
        timeout: float | None = ...,
        digest_of: Callable[[dict[str, Any]], Any] | None = ...,
    ) -> AsyncModel[P, R_co]: ...
    @overload
    def model(
        self,
        *,
        name: str = ...,
        version: str = ...,
        actor: str = ...,
        timeout: float | None = ...,
        digest_of: Callable[[dict[str, Any]], Any] | None = ...,
    ) -> Callable[[Callable[P, R_co]], AsyncModel[P, R_co]]: ...
    def model(
        self,
        function: Callable[P, R_co] | None = None,
        *,
        name: str = "",
        version: str = "",
        actor: str = "",
        timeout: float | None = None,
        digest_of: Callable[[dict[str, Any]], Any] | None = None,
    ) -> AsyncModel[P, R_co] | Callable[[Callable[P, R_co]], AsyncModel[P, R_co]]:
        """Return a model whose answers are recorded, so that no answer is paid for twice.

        Call it in a turn, with a request; the function returns the answer as storable data. A
        request that was answered in this turn, before its process died, gets the recorded answer;
        a request without an answer is sent again. The record has a digest of the request, not the
        request itself; `digest_of` maps the arguments, by name, to the data that is digested.
        """

        def make_model(function: Callable[P, R_co]) -> AsyncModel[P, R_co]:
            options = ToolSpec(function, name, "read_only", version, actor, timeout=timeout)
            spec = options._replace(kind="model", digest_of=digest_of)
            return AsyncModel(self._handle, require_spec(spec))

        return make_model if function is None else make_model(function)

    async def run_tool_calls(
        self, message: object | None = None, tools: ToolSet = (), *, parallel: int = 8
    ) -> list[dict[str, Any]]:
        """Make the tool calls of a message that was appended to the turn, each once, in parallel.

        Without a message: all open calls of the turn, such as those left by a killed process.
        Returns the result messages for the model; they are stored with the outcomes.
        """
        return await run_tool_calls(self._handle, message, tools, parallel=parallel)

    async def messages(
        self,
        *,
        format: str | None = None,
        max_tokens: int | None = None,
        max_messages: int | None = None,
        perspective: str = "",
        counter: Counter | None = None,
        last: int | None = None,
        summarize: Callable[..., Any] | Summarizer | None = None,
    ) -> Transcript:
        """Return the messages in this view, in order: all of them as appended, or a window.

        With a `format` ("openai.chat", "openai.responses", "anthropic", "gemini") the transcript is
        always valid for that provider: `losses` lists what could not be expressed,
        `interrupted_calls` the calls without a result. `perspective` is the name of the agent to
        render it for.

        With `max_tokens` or `max_messages`, it has the newest messages that fit, cut at the start
        of a turn, and always the instructions, pinned messages and the current summary.
        ContextWindowError if the newest turn alone is too long. With `summarize`, a function or a
        Summarizer, messages that would be cut are summarized first; a rejected summary is logged
        and changes nothing. `last` returns the last few messages unchanged.
        """
        request = WindowRequest(format, max_tokens, max_messages, perspective, counter)
        summarizer = None if summarize is None else window_summarizer(summarize, request, last)
        if request == EVERYTHING or last is not None:
            window.require_last_alone(request, last)
            messages = await self._handle.run(history.read_messages(self._replica, last=last))
            return Transcript(messages)
        transcript = await self._window(request)
        if (
            summarizer is None
            or not transcript.truncated_before
            or not await self._summaries.make_room(summarizer, request)
        ):
            return transcript
        return await self._window(request)

    async def _window(self, request: WindowRequest) -> Transcript:
        live = self._handle.active_turns
        return await self._handle.run(window.read_window(self._replica, request, live=live))

    async def retract(
        self, *positions: int | range, reason: str = "", id: str | None = None
    ) -> int:
        """Take messages back: conversations and windows leave them out; their records stay.

        Positions are those of single messages, or ranges of positions, whose messages are all taken
        back. NotFoundError if a position has no message, or one that was taken back already.
        """
        plan = retract_messages(self._replica, positions, reason=reason, record_id=id)
        return await self._handle.write(plan)

    async def replace(
        self, first: int, last: int, *messages: object, id: str | None = None, opaque: bool = False
    ) -> int:
        """Put messages in the place of those from position `first` to `last`; their records stay.

        UsageError if one of them has a call that waits for its result.
        """
        plan = replace_messages(self._replica, first, last, messages, record_id=id, opaque=opaque)
        return await self._handle.write(plan)

    async def pin(self, position: int) -> None:
        """Pin the message at a position: every window includes it."""
        await self._handle.write(annotations.pin_message(self._replica, position, on=True))

    async def unpin(self, position: int) -> None:
        """Unpin a message, so that windows may cut it again; NotFoundError if it is not pinned."""
        await self._handle.write(annotations.pin_message(self._replica, position, on=False))

    async def summarize(
        self,
        summarizer: Any,
        *,
        model: str = "",
        keep_turns: int = KEEP_TURNS,
        max_tokens: int | None = None,
        timeout: float | None = TIMEOUT,  # noqa: ASYNC109 - the same parameters as for threads
        counter: Counter | None = None,
    ) -> Summary:
        """Summarize older turns: windows show the summary in their place. They stay stored.

        `summarizer` is a function that gets the messages and returns a text, or an OpenAI client,
        with a `model`. The newest `keep_turns` turns are not summarized. On return the summary is
        durable. SummaryError, with nothing changed, if the summary is empty, longer than what it
        replaces or than `max_tokens`, if creating it failed or took longer than `timeout` seconds,
        or if there is nothing to summarize. Meanwhile only another summary is a conflict.
        """
        summarizer = Summarizer(summarizer, model, keep_turns, max_tokens, timeout, counter)
        return await self._summaries.make(parse_summarizer(summarizer))

    def summarize_in_background(
        self,
        summarizer: Any,
        *,
        model: str = "",
        keep_turns: int = KEEP_TURNS,
        max_tokens: int | None = None,
        timeout: float | None = TIMEOUT,
        counter: Counter | None = None,
    ) -> "Task[Summary]":
        """Start `summarize` in the background while the conversation continues; return its task.

        Closing the session waits for it, at most for its `timeout`.
        """
        summarizer = Summarizer(summarizer, model, keep_turns, max_tokens, timeout, counter)
        return self._summaries.start(parse_summarizer(summarizer))

    async def undo_summary(self) -> None:
        """Return to the summary before the current one, or to the messages; else NotFoundError."""
        await self._handle.write(undo_summary(self._replica))

    async def upload(self, source: Any, *, media_type: str = "") -> AsyncLargeBody:
        """Store bytes of any size, to put them into messages and values; return the body.

        `source` is a path, a binary file, bytes, an async iterable of bytes, or a body. It is read
        piece by piece. Until a record has the body, and if this fails, it has no effect.
        """
        return await upload_body(self._handle, source, media_type)

    async def set(self, key: str, value: object) -> int:
        """Store a value as the newest version of a key; on return it is durable.

        Returns the version. A small change of a long document is stored as a delta.
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

    async def note(
        self,
        data: object,
        *,
        topic: str = "",
        expect: int | None = None,
        author: str = "",
        id: str | None = None,
    ) -> int:
        """Append a note that is not part of the conversation; return its position.

        It conflicts only with `expect`: the position of the newest note of its topic, 0 if there is
        none. ConflictError if another one came first.
        """
        plan = annotations.add_note(
            self._replica, data, author=author, record_id=id, topic=topic, expect=expect
        )
        return await self._handle.write(plan)

    async def label(self, *add: str, remove: Sequence[str] = ()) -> None:
        """Add or remove labels, by which `store.sessions` finds the session."""
        await self._handle.write(annotations.change_labels(self._replica, add, remove))

    async def describe(self, /, **fields: FieldValue | None) -> None:
        """Set fields: small values by which `store.sessions` finds and sorts sessions.

        A value is a str, a number, a bool, or a datetime with a zone; None removes the field.
        """
        await self._handle.write(change_fields(self._replica, fields))

    async def branch(self, id: str, *, at: int | str | EffectInfo | None = None) -> "AsyncSession":
        """Create a session that shares this one's history, up to and including position `at`.

        If `at` is an effect or its id, the history ends before that call and before the calls that
        ran in parallel with it: its turn is open in the branch, and can continue differently.

        Nothing is copied. While the branch exists, this session cannot be deleted.
        """
        effect = at.id if isinstance(at, EffectInfo) else at
        if isinstance(effect, str) and effect.startswith(GENERATED_PREFIX):
            at = await self._handle.run(listing.position_before(self._replica, effect))
        with self._handle.span("branch", branch=id):
            child = await self._handle.run(lifecycle.create_branch(self._replica, id, at=at))
        await self._handle.write(plans.REFRESH_SILENTLY)
        return AsyncSession(self._handle.driver, child)

    async def copy(self, id: str) -> "AsyncSession":
        """Copy this view to a new session; on return it is durable, and nothing ties the two.

        Records keep their positions and times. The copy has no lease and no branches; turns that
        are open here are abandoned there. UsageError if the id is taken. After a crash, the copy is
        not visible; the same call finishes it.
        """
        with self._handle.span("copy", copy=id):
            replica = await self._handle.run(copies.copy_session(self._replica, id))
        return AsyncSession(self._handle.driver, replica)

    async def compact(
        self,
        *,
        keep: int | None = None,
        before: int | None = None,
        dry_run: bool = False,
        progress: Callable[[int, int], object] | None = None,
    ) -> CompactResult:
        """Drop older records for good: keep the newest messages, or what is from a position on.

        The cut is at the last safe place before that: never inside a turn, or between a call and
        its result. Values, pins, labels, instructions, summaries, the newest note of each topic,
        views, unknown effects, and the outcomes of calls with keys stay as they are. Callers' ids
        stay recognized. `complete_from` is then the first position.

        InUseError while branches or holds need the past. After a crash the session is as before, or
        compacted; calling it again frees the rest. `dry_run` changes nothing. `progress` is called
        with the position that was read, and the last one.
        """
        request = CompactRequest(keep, before).checked()
        await self._handle.write(plans.REFRESH_SILENTLY)
        past, carried = self._replica.history, 0
        with self._handle.span("compact") as span:
            cut = await self._handle.run(compaction.find_cut(self._replica, request, progress))
            if dry_run and cut.records:
                carried = await self._handle.run(compaction.try_compaction(self._replica, cut))
            elif cut.records:
                carried = await self._handle.write(await plan_with_parts(self._handle, cut))
            if not dry_run:
                await self._handle.run(compaction.drop_compacted(self._replica, past))
            span.fields.update(complete_from=cut.first, records=cut.records)
        return compaction.result_of(self._replica, cut, carried)

    async def refresh(self, *, accept_rollback: bool = False) -> int:
        """Apply the records of other writers; return the position of the newest record.

        HistoryReplacedError if the store no longer has this view's records, because a backup was
        restored or a standby took over. With `accept_rollback`, the session then continues from
        what the store has now: records that only this view had are lost, a write in doubt was not
        stored, a lease held here is lost, and a running turn continues only if the store still has
        it open under this handle.
        """
        return await self._handle.refresh(accept_rollback=accept_rollback)

    async def close(self) -> None:
        """Finish everything in flight and close the session. Closing twice is harmless."""
        await self._handle.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
