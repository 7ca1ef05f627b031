"""Record the calls of a run as effects, and replay recorded outcomes in their original order.

An interrupted run is run again from its beginning. Every recorded model answer and tool outcome is
returned to it again, so it reaches the point where it was and continues from there.
"""

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import sha256
from typing import Any

from perdure import AsyncSession, Effect, Happened
from perdure.adapters.tool_policies import ToolPolicy, name_parameters
from perdure.errors import (
    DivergenceError,
    EffectError,
    PerdureError,
    ToolFailureError,
    UnknownOutcomeError,
    UnstoredResultError,
)

CallFunction = Callable[[], Awaitable[dict[str, Any]]]

ToolFunction = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]

CALL_ID_MAX = 200  # Characters of a provider's call id; longer ids are hashed.

DRAIN_ITERATIONS = 32  # Event-loop iterations that let agents notice that their call was stopped.

# Seconds that a recorded outcome waits for the ones recorded before it. Only reached when the
# program asks in another order than before; a divergence is noticed when the next one is asked.
ORDER_TIMEOUT = 10.0

# Tool name and key of a recorded model failure that the run survived.
MODEL_FAILURE = "model_failure"

FINISH_HINT = "finish the run with the code that started it, or abandon() it"

# The run that the current task belongs to: tasks of a stopped run may linger.
_current_run: ContextVar[object | None] = ContextVar("perdure_agentchat_run", default=None)

# Failed model calls inside the current tool that is an agent or a team: key to error text.
_current_failures: ContextVar[dict[str, str] | None] = ContextVar(
    "perdure_agentchat_tool", default=None
)


class ReplayedModelError(RuntimeError):
    """A recorded model failure, raised again for callers that handled it before."""


class RunStopped(RuntimeError):  # noqa: N818 - nothing is wrong
    """Raised inside a team when its run is stopped from outside."""


class RunLog:
    """The calls of a session's runs. Outside a run, calls are made and not recorded."""

    def __init__(self, session: AsyncSession, policies: Mapping[str, ToolPolicy]) -> None:
        self._session = session
        self.policies = policies
        self._counts: Counter[str] = Counter()
        self._order = ReplayOrder(())
        self._failed: Mapping[str, str] = {}
        self._pending_calls = 0  # `_idle` is set while there are none.
        self._idle = asyncio.Event()
        self._idle.set()
        self._run = object()  # Identity of the current run; see `_current_run`.
        self.active = False
        self.error: BaseException | None = None

    def begin(self, order: Iterable[str], failed: Mapping[str, str]) -> None:
        """Start a run whose turn has recorded outcomes of these calls, in this order.

        Calls that `failed` without ending the run fail again with the same text.
        """
        self._failed = failed
        self._counts.clear()
        self._order = ReplayOrder(order)
        self.active, self.error = True, None
        self._run = object()
        _current_run.set(self._run)

    def end(self) -> None:
        """End a run: calls are no longer recorded."""
        self.active = False

    def fail(self, error: BaseException) -> None:
        """Prevent further calls; only the first error counts."""
        if self.error is None:
            self.error = error

    async def drain(self) -> None:
        """Wait until all pending calls have returned and their callers have resumed."""
        await self._idle.wait()
        for _ in range(DRAIN_ITERATIONS):
            await asyncio.sleep(0)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count a call while it is pending; a session error ends the run."""
        self.raise_if_stopped()
        self._pending_calls += 1
        self._idle.clear()
        try:
            yield
        except (EffectError, UnknownOutcomeError, UnstoredResultError):
            raise  # Outcomes of a call: the run continues.
        except PerdureError as error:
            self.fail(error)
            raise
        finally:
            self._pending_calls -= 1
            if not self._pending_calls:
                self._idle.set()
        self.raise_if_stopped()

    async def ask(self, scope: str, request: str, answer: CallFunction) -> dict[str, Any]:
        """Call a model, or return its recorded answer; `request` is a digest of the request."""
        if not self.active:
            return await answer()
        by = self._key(scope, "model")

        # The names of parameters and keys are stored.
        async def call(by: str, request: str) -> dict[str, Any]:
            if by in self._failed:  # Later messages depend on the failure: not asked again.
                raise ReplayedModelError(self._failed[by])
            return {"by": by, "request": request, **await answer()}

        # Identified by its key alone, so that a changed request is a divergence, not a new call.
        model = self._session.model(
            call, name=scope, actor=scope, digest_of=lambda arguments: arguments["by"]
        )
        with self._counted(), _noting_failure(by):
            recorded: dict[str, Any] = await model(by, request)
            await self._order.wait_for(by)
            if recorded["request"] != request:
                previous = recorded["request"]
                raise DivergenceError(self._session.id, by, previous, request, hint=FINISH_HINT)
        return recorded

    async def use(
        self, scope: str, name: str, *, id: str, arguments: Mapping[str, Any], run: ToolFunction
    ) -> dict[str, Any]:
        """Run a tool call once, or return its recorded outcome.

        `run` gets the arguments as recorded, not the caller's objects, which may have changed.
        If `run` raises ToolFailureError, its result is recorded with the failure, and is that of
        the EffectError that a repeated call raises. UnknownOutcomeError if its outcome is unknown.
        """
        if not self.active:
            return await run(dict(arguments))
        by = self._key(scope, id)

        async def call(**_: Any) -> dict[str, Any]:  # The parameter's name is stored.
            try:
                return {"by": by, **await run(_)}
            except ToolFailureError as failure:
                raise ToolFailureError(failure.reason, {"by": by, **failure.result}) from failure

        name_parameters(call, arguments)  # For the record, and for a reconcile function.
        policy = self.policies.get(name, "unsafe")
        if callable(policy):
            reconcile = _wrap_reconcile(policy, by)
            tool = self._session.tool(
                call, effect="reconcile", name=name, actor=scope, reconcile=reconcile
            )
        else:
            tool = self._session.tool(call, effect=policy, name=name, actor=scope)
        with self._counted():
            try:
                outcome: dict[str, Any] = await tool.keyed(by, in_turn=True)(**arguments)
            except EffectError:  # A recorded failure has its place in the order too.
                await self._order.wait_for(by)
                raise
            await self._order.wait_for(by)
        return outcome

    async def record_swallowed(self, scope: str, failed: Mapping[str, str], result: Any) -> Any:
        """Record model failures in a tool that the run survives; return the tool's result.

        A failure may be what ended a run, so failed calls are made again when the run resumes.
        These are not: the later messages depend on their failure.
        """
        if not self.active or not failed:
            return result
        by = self._key(scope, MODEL_FAILURE)

        async def call() -> dict[str, Any]:
            return {MODEL_FAILURE: dict(failed), "result": result}

        tool = self._session.tool(call, effect="read_only", name=MODEL_FAILURE, actor=scope)
        with self._counted():
            recorded: dict[str, Any] = await tool.keyed(by, in_turn=True)()
        return recorded["result"]

    def _key(self, scope: str, id: str) -> str:
        if len(id) > CALL_ID_MAX:
            id = sha256(id.encode()).hexdigest()
        self._counts[f"{scope}:{id}"] += 1  # Providers may repeat ids.
        return f"{scope}:{id}#{self._counts[f'{scope}:{id}']}"

    def raise_if_stopped(self) -> None:
        """Raise the error that stopped the run, if any."""
        if self.error is not None:
            raise self.error
        # None in tasks that were created before any run, such as a shared runtime's.
        if _current_run.get() not in (None, self._run):
            raise RunStopped("the run of this call was stopped")


@contextmanager
def collecting_failures(failed: dict[str, str]) -> Iterator[None]:
    """Collect the texts of model failures inside the block in `failed`."""
    previous = _current_failures.get()
    _current_failures.set(failed)
    try:
        yield
    finally:
        # Not `reset(token)`: a generator can be closed in another context.
        _current_failures.set(previous)


@contextmanager
def _noting_failure(by: str) -> Iterator[None]:
    """Note a failure of the model call in the enclosing `collecting_failures`, if any."""
    try:
        yield
    except PerdureError:
        raise
    except Exception as error:
        failed = _current_failures.get()
        if failed is not None:
            failed[by] = str(error)
        raise


class ReplayOrder:
    """Releases recorded outcomes in their original order when several are awaited concurrently."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._remaining = dict.fromkeys(keys)
        self._moved = asyncio.Event()

    async def wait_for(self, key: str) -> None:
        """Wait until it is this outcome's turn, at most `ORDER_TIMEOUT` seconds."""
        if key not in self._remaining:
            return
        try:
            async with asyncio.timeout(ORDER_TIMEOUT):
                while next(iter(self._remaining)) != key:
                    await self._moved.wait()
        except TimeoutError:
            pass
        self._remaining.pop(key, None)
        # A new event for each step: every waiter looks again, and waits for the next one.
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()


def _wrap_reconcile(reconcile: Callable[[Effect], Any], by: str) -> Callable[[Effect], Any]:
    """Wrap the user's reconcile function; its result gets the form of a recorded outcome."""

    async def wrapped(effect: Effect) -> Any:
        if [*effect.arguments] == ["_"]:  # No valid identifiers: they were recorded as `**_`.
            effect = effect._replace(arguments=effect.arguments["_"])
        answer = reconcile(effect)
        if inspect.isawaitable(answer):
            answer = await answer
        if not isinstance(answer, Happened):
            return answer
        return Happened({"by": by, "reconciled": answer.result})

    return wrapped
