"""Session: what an application holds, for blocking code.

Every method here has its twin in `session_async`, in the same order, with the same parameters and
promises. Nothing is decided here: a method makes a plan or steps, and runs them.
"""

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from perdure import events
from perdure.aio.session import Seen
from perdure.core import (
    annotations,
    history,
    leases,
    lifecycle,
    plans,
    turn_context,
    validation,
    verify,
    window,
)
from perdure.core.effects import listing
from perdure.core.effects.calls import Effect, Policy, ToolSpec, require_spec
from perdure.core.effects.listing import EffectInfo
from perdure.core.messages import Attribution, append_messages, make_attribution
from perdure.core.replica import Replica
from perdure.core.summaries import (
    KEEP_TURNS,
    TIMEOUT,
    Summariser,
    parse_summarizer,
    window_summarizer,
)
from perdure.core.validation import require_int, require_timeout
from perdure.core.verify import Verified
from perdure.core.window import EVERYTHING, WindowRequest
from perdure.errors import UsageError
from perdure.formats.tokens import Counter
from perdure.formats.transcript import Transcript
from perdure.journal.ids import GENERATED_PREFIX
from perdure.journal.reader import OnDamage
from perdure.journal.records import Record, Summary
from perdure.sync.approvals import Approvals
from perdure.sync.driver import Driver
from perdure.sync.effects import Effects
from perdure.sync.handle import Handle
from perdure.sync.lease import Lease
from perdure.sync.summaries import Summaries
from perdure.sync.tools import Model, Tool, ToolSet, run_tool_calls
from perdure.sync.turn import Turn
from perdure.sync.values import Values

if TYPE_CHECKING:
    from concurrent.futures import Future


def watch_records(handle: Handle, at: int, timeout: float | None) -> Iterator[Record]:
    """Yield the records after a position until nothing comes for so long, or the end."""
    handle.require_open()
    try:
        while handle.wait(at, timeout):
            past = handle.catch_up(at)
            records = history.RecordReader(past, handle.replica.settings, after=at, on_damage=None)
            while (page := handle.driver.run(records.page())) is not None:
                yield from page
            at = past.tip.position
            if handle.replica.deleted:
                return
    except UsageError:
        if not handle.closed:
            raise


class Making:
    """What a session can do about functions: the part of it that makes tools and models."""

    _handle: Handle

    def tool(  # noqa: PLR0913 - what a tool can be declared to be, by name
        self,
        function: Callable[..., Any],
        *,
        effect: Policy = "unsafe",
        name: str = "",
        version: str = "",
        actor: str = "",
        reconcile: Callable[[Effect], Any] | None = None,
        timeout: float | None = None,
        unstorable: Literal["raise", "return"] = "raise",
        approval: bool | Callable[[dict[str, Any]], Any] = False,
        approval_ttl: float | None = None,
        approval_wait: float | None = None,
    ) -> Tool:
        """Return a tool that runs once for each call, or says that nobody knows whether it ran.

        Call it in a turn, like the function. `effect` says what is to be done about a call whose
        process died before its outcome was recorded: an "unsafe" one is not made again and is
        UnknownOutcomeError, "read_only" and "idempotent" ones are made again (the latter find the
        same `perdure.current_effect().key`), for "reconcile" the function `reconcile` finds out,
        and returns Done(result) or NotDone().

        With `approval`, True or a function of the arguments, a call waits until somebody lets it
        happen (`session.approvals`, `perdure approve`), within `approval_ttl` seconds. Its caller
        waits for `approval_wait` seconds, None for ever; then it is ApprovalPendingError.
        """
        how = ToolSpec(function, name, effect, version, actor, reconcile, timeout, unstorable)
        spec = how._replace(
            approval=approval, approval_ttl=approval_ttl, approval_wait=approval_wait
        )
        return Tool(self._handle, require_spec(spec))

    def model(
        self,
        function: Callable[..., Any],
        *,
        name: str = "",
        version: str = "",
        actor: str = "",
        timeout: float | None = None,
        digest_of: Callable[[dict[str, Any]], Any] | None = None,
    ) -> Model:
        """Return a model whose answers are recorded, so that none is paid for twice.

        Call it in a turn, with a request; the function returns the answer as data that can be
        stored. A request that was answered in this turn, before its process died, gets the recorded
        answer; one that was not is made again. The record has a digest of the request and not the
        request itself; `digest_of` says what of the arguments, by name, is digested.
        """
        how = ToolSpec(function, name, "read_only", version, actor, timeout=timeout)
        spec = how._replace(kind="model", digest_of=digest_of)
        return Model(self._handle, require_spec(spec))

    def run_tool_calls(
        self, message: object | None = None, tools: ToolSet = (), *, parallel: int = 8
    ) -> list[dict[str, Any]]:
        """Make the tool calls of a message that was appended to the turn, each once, in parallel.

        Without a message, all that are open in the turn: those that a killed process left. Returns
        the messages that tell the model; they are stored with the outcomes.
        """
        return run_tool_calls(self._handle, message, tools, parallel=parallel)


class Session(Seen, Making):
    """One agent's conversation and working state.

    A handle has one view of its session: what it had read when it was opened or refreshed, and
    what it wrote itself. Threads may share a handle; their appends never race. When another handle
    or process wrote first, a call that depends on the view raises ConflictError and refreshes it.
    """

    def __init__(self, driver: Driver, replica: Replica, handle: Handle | None = None) -> None:
        self._handle = handle or Handle(driver, replica)
        self.effects = Effects(self._handle)
        self.approvals = Approvals(self._handle)
        self._replica = replica
        self.values = Values(self._handle)
        self._summaries = Summaries(self._handle)

    @property
    def interrupted(self) -> tuple[Turn, ...]:
        """The turns that began and have not ended, other than those that this handle has open.

        Enter one with `with` to continue it, or call its `abandon`.
        """
        return tuple(
            Turn(self._handle, turn, begun=found.position, correlation_id=found.correlation_id)
            for turn, found in self._replica.state.turns.items()
            if turn not in self._handle.own_turns
        )

    @property
    def current(self) -> Turn | None:
        """The turn of this handle that the running code is inside of, or None.

        Threads and tasks have each their own.
        """
        found: Turn | None = turn_context.current_turn(self._handle)
        return found

    def append(
        self,
        *messages: object,
        author: str = "",
        recipient: str = "",
        channel: str = "",
        origin: str = "",
        id: str | None = None,
    ) -> int:
        """Append messages, all or none; on return they are durable. Return the last position.

        Messages are dicts, or what SDKs give: chat completions, responses, their items.

        With an `id` of the caller's own, calling again after a crash or a lost answer appends
        nothing twice; the same id with other messages is a DivergenceError.
        """
        voice = make_attribution(author, recipient, channel, origin)
        return self._handle.write(
            append_messages(self._replica, messages, voice=voice, record_id=id)
        )

    def turn(
        self,
        message: object | None = None,
        *,
        correlation_id: str = "",
        author: str = "",
        id: str | None = None,
    ) -> Turn:
        """Return a turn for `with`: begun, with the user's message durable, when the body runs.

        It is completed when the body ends, failed when the body raises, and interrupted when the
        process dies. With an `id`, entering it again after a crash continues the turn.
        """
        if id is not None:
            validation.require_record_id(id)
        correlation_id = correlation_id or events.correlation_id.get()
        if isinstance(message, str):
            message = {"role": "user", "content": message}
        return Turn(
            self._handle,
            id,
            message=message,
            correlation_id=correlation_id,
            voice=Attribution(author),
        )

    def lease(
        self,
        *,
        ttl: float = 30.0,
        wait: float | bool | None = None,
        who: str = "",
        force: bool = False,
    ) -> Lease:
        """Return a lease for `with`: while it is held, only this handle writes.

        To others all but notes, labels, decisions and outcomes of calls is LeaseHeldError. It is
        renewed in the background; `ttl` seconds without a renewal anybody may take it over, and
        what this handle writes is FencedError. While another one holds it, `wait` so many seconds
        (True: as long as it takes; None: not at all), then LeaseHeldError. `force` takes it from a
        living holder. `who` is recorded and told to others; empty, it is the machine and process.
        """
        return Lease(self._handle, leases.parse_request(ttl, wait, who, force=force))

    def messages(
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
        """Return the messages in this view, in order; all of them as they were given, or a window.

        With a `format` ("openai.chat", "openai.responses", "anthropic", "gemini") the provider
        accepts them, whatever happened: `losses` says what could not be expressed, `closed` which
        calls had no result. `perspective` is the name of the agent whose side is wanted.

        With `max_tokens` or `max_messages`, they are the newest that fit, cut at the beginning of
        a turn; instructions, pinned messages and the summary in force stay. BudgetError if the
        newest turn alone is too long. Given `summarise`, a function or a Summariser, what would be
        left out is summed up first; a summary that is refused is told of, and changes nothing.
        `last` gives the last few just as they are.
        """
        asked = WindowRequest(format, max_tokens, max_messages, perspective, counter)
        how = window_summarizer(summarise, asked, last)
        if asked == EVERYTHING or last is not None:
            window.require_last_alone(asked, last)
            return Transcript(self._handle.run(history.read_messages(self._replica, last=last)))
        found = self._window(asked)
        if how is None or not found.cut or not self._summaries.make_room(how, asked):
            return found
        return self._window(asked)

    def _window(self, asked: WindowRequest) -> Transcript:
        live = self._handle.own_turns
        return self._handle.run(window.read_window(self._replica, asked, live=live))

    def pin(self, position: int) -> None:
        """Keep a message in every window, named by its position."""
        self._handle.write(annotations.pin_message(self._replica, position, on=True))

    def unpin(self, position: int) -> None:
        """Let a pinned message go out of windows again; NotFoundError if it is not pinned."""
        self._handle.write(annotations.pin_message(self._replica, position, on=False))

    def summarise(
        self,
        with_: Any,
        *,
        model: str = "",
        keep_turns: int = KEEP_TURNS,
        max_tokens: int | None = None,
        timeout: float | None = TIMEOUT,
        counter: Counter | None = None,
    ) -> Summary:
        """Have windows show a summary in the place of older turns; these stay stored.

        `with_` is a function that gets the messages and returns a text, or an OpenAI client, with
        a `model`. The newest `keep_turns` turns stay as they are. On return the summary is
        durable. SummaryError if it is empty, longer than what it stands for or than `max_tokens`,
        if making it failed or took longer than `timeout` seconds, or if there is nothing to sum
        up: nothing changed then. Others can go on meanwhile; only another summary is a conflict.
        """
        how = Summariser(with_, model, keep_turns, max_tokens, timeout, counter)
        return self._summaries.make(parse_summarizer(how))

    def summarise_in_background(
        self,
        with_: Any,
        *,
        model: str = "",
        keep_turns: int = KEEP_TURNS,
        max_tokens: int | None = None,
        timeout: float | None = TIMEOUT,
        counter: Counter | None = None,
    ) -> "Future[Summary]":
        """Do what `summarise` does while the conversation goes on; return what to wait for.

        Closing the session waits for it, as long as its `timeout` at most.
        """
        how = Summariser(with_, model, keep_turns, max_tokens, timeout, counter)
        return self._summaries.start(parse_summarizer(how))

    def undo_summary(self) -> None:
        """Go back to the summary before the one in force, or to the messages themselves.

        NotFoundError if there is no summary.
        """
        self._summaries.undo()

    def set(self, key: str, value: object) -> int:
        """Store a value as the newest version of a key; on return it is durable.

        Returns the version. Long documents are stored as deltas, so a small change costs little.
        """
        return self.values.set(key, value)

    def get(self, key: str, default: Any = None, *, version: int | None = None) -> Any:
        """Return a value, or the default where the key has none.

        An earlier version that was asked for and is not there is a NotFoundError.
        """
        return self.values.get(key, default, version=version)

    def delete(self, key: str) -> None:
        """Delete a value; its earlier versions stay readable. An absent one is NotFoundError."""
        self.values.delete(key)

    def note(self, data: object, *, author: str = "", id: str | None = None) -> int:
        """Append a remark that is not part of the conversation. It never conflicts."""
        return self._handle.write(
            annotations.add_note(self._replica, data, author=author, record_id=id)
        )

    def label(self, *add: str, remove: Sequence[str] = ()) -> None:
        """Put labels on the session, by which `store.sessions` finds it, or take them off."""
        self._handle.write(annotations.change_labels(self._replica, add, remove))

    def records(self, *, after: int = 0, on_damage: OnDamage | None = None) -> Iterator[Record]:
        """Yield every record in this view, its chain checked.

        Damage is raised; given `on_damage`, it is called with each error instead, and reading
        goes on with the next record that can be read.
        """
        past, settings = self._replica.past, self._replica.settings
        records = history.RecordReader(past, settings, after=after, on_damage=on_damage)
        while (page := self._handle.run(records.page())) is not None:
            yield from page

    def watch(self, *, after: int | None = None, timeout: float | None = None) -> Iterator[Record]:
        """Yield the records that come after this view as they come, and take them into the view.

        They are those of other handles and processes, and of this one. Given `after`, they are
        those after that position: whoever stopped watching misses nothing. It ends when nothing has
        come for `timeout` seconds (None waits for ever), when the session or the store is closed,
        and after the record by which the session was deleted.
        """
        at = self._replica.tip.position if after is None else require_int(after, "after")
        return watch_records(self._handle, at, require_timeout(timeout))

    def branch(self, id: str, *, at: int | str | EffectInfo | None = None) -> "Session":
        """Create a session that shares this one's past, up to and with position `at`.

        Given an effect, or its id, the past is what was there before that call, and before those
        that ran beside it: its turn is open in the branch, and can go on differently.

        Nothing is copied. While the branch lives, this session can not be deleted.
        """
        effect = at.id if isinstance(at, EffectInfo) else at
        if isinstance(effect, str) and effect.startswith(GENERATED_PREFIX):
            at = self._handle.run(listing.position_before(self._replica, effect))
        with self._handle.observed("branch", branch=id):
            child = self._handle.run(lifecycle.create_branch(self._replica, id, at=at))
        self._handle.write(plans.REFRESH_SILENTLY)
        return Session(self._handle.driver, child)

    def refresh(self) -> int:
        """Take in what others wrote; return the position of the newest record."""
        return self._handle.write(plans.REFRESH)

    def verify(self) -> Verified:
        """Read the whole past and check it: chain, bodies, snapshots, labels. Raise if damaged."""
        with self._handle.observed("verify") as seen:
            found = self._handle.run(verify.verify_session(self._replica))
            seen.fields.update(entries=found.entries, position=found.position)
        return found

    def close(self) -> None:
        """Finish what is under way and let the handle go. Closing twice is harmless."""
        self._handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
