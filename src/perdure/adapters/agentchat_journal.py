"""The calls of a run as effects: what was recorded is served, in the order in which it came.

A run that was cut off is run again from its beginning. Every answer of a model and every outcome of
a tool that it had got is given to it again, so it comes to where it was and goes on from there.
"""

import asyncio
import inspect
import keyword
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import sha256
from typing import Any, Literal, get_args

from perdure import AsyncSession, Effect
from perdure.errors import (
    DivergenceError,
    EffectError,
    PerdureError,
    UnknownOutcomeError,
    UsageError,
)

Named = Literal["read_only", "idempotent", "unsafe"]
Policy = Named | Callable[[Effect], Any]
Declared = Policy | Mapping[str, Any]
"""What is to be done about a call that may have happened; a function finds out."""

Call = Callable[[], Awaitable[dict[str, Any]]]
KEY_MAX = 200  # Characters of a provider's call id; longer ones are digested.
STEPS = 32  # Of the event loop, in which an agent takes in that its call was stopped.
PATIENCE = 10.0  # Seconds that a recorded outcome waits for those that came before it.
FAILED = "model_failure"  # What is recorded where a model failed and the run went on.
FINISH = "finish the run with the code that began it, or give it up with abandon()"


# Which run the running task belongs to: one that was stopped may be slow to see it.
_run: ContextVar[object | None] = ContextVar("perdure_agentchat_run", default=None)


# The model calls that failed inside of the tool, an agent or a team, that the running task is in.
_inside: ContextVar[dict[str, str] | None] = ContextVar("perdure_agentchat_tool", default=None)


class ModelError(RuntimeError):
    """A failure from the record: whoever went on in spite of it is told of it again."""


class Stopped(RuntimeError):  # noqa: N818 - nothing is wrong
    """What a team is told when its run is stopped from outside."""


class Journal:
    """The calls of a session's runs. Outside of a run, calls are made and not recorded."""

    def __init__(self, session: AsyncSession, policies: Mapping[str, Policy]) -> None:
        self._session = session
        self.policies = policies
        self._counts: Counter[str] = Counter()
        self._order = Order(())
        self._failed: Mapping[str, str] = {}
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._run = object()
        self.active = False
        self.error: BaseException | None = None

    def begin(self, order: Iterable[str], failed: Mapping[str, str]) -> None:
        """Begin a run, in whose turn these calls have an outcome, in this order.

        Those that `failed` without ending the run fail again, in the same words.
        """
        self._failed = failed
        self._counts.clear()
        self._order = Order(order)
        self.active, self.error = True, None
        self._run = object()
        _run.set(self._run)

    def end(self) -> None:
        """End a run: calls are not recorded any more."""
        self.active = False

    def fail(self, error: BaseException) -> None:
        """Let no call be made any more; the first error is the one that counts."""
        if self.error is None:
            self.error = error

    async def drain(self) -> None:
        """Wait until the calls that are under way have come back, and told their callers."""
        await self._idle.wait()
        for _ in range(STEPS):
            await asyncio.sleep(0)

    @contextmanager
    def _making(self) -> Iterator[None]:
        """Count a call while it is made; let errors of the session end the run."""
        self.require_going_on()
        self._under_way += 1
        self._idle.clear()
        try:
            yield
        except (EffectError, UnknownOutcomeError):
            raise
        except PerdureError as error:
            self.fail(error)
            raise
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()
        self.require_going_on()

    async def ask(self, scope: str, request: str, answer: Call) -> dict[str, Any]:
        """Ask a model, or return what it answered; `request` is a digest of what it is asked."""
        if not self.active:
            return await answer()
        by = self._key(scope, "model")

        async def call(by: str, request: str) -> dict[str, Any]:
            if by in self._failed:
                raise ModelError(self._failed[by])
            return {"by": by, "request": request, **await answer()}

        model = self._session.model(
            call, name=scope, actor=scope, digest_of=lambda given: given["by"]
        )
        with self._making(), _noting(by):
            found: dict[str, Any] = await model(by, request)
            await self._order.reach(by)
            if found["request"] != request:
                was = found["request"]
                raise DivergenceError(self._session.id, by, was, request, hint=FINISH)
        return found

    async def use(
        self, scope: str, name: str, *, id: str, arguments: Mapping[str, Any], run: Call
    ) -> dict[str, Any]:
        """Make a call of a tool once, or return what came of it.

        EffectError says that it failed, UnknownOutcomeError that nobody knows.
        """
        if not self.active:
            return await run()
        by = self._key(scope, id)

        async def call(**_: Any) -> dict[str, Any]:
            return {"by": by, **await run()}

        _name_parameters(call, arguments)
        policy = self.policies.get(name, "unsafe")
        if callable(policy):
            find_out = _reconciling(policy, by)
            tool = self._session.tool(
                call, effect="reconcile", name=name, actor=scope, reconcile=find_out
            )
        else:
            tool = self._session.tool(call, effect=policy, name=name, actor=scope)
        with self._making():
            found: dict[str, Any] = await tool.keyed(by, in_turn=True)(**arguments)
            await self._order.reach(by)
        return found

    async def pass_over(self, scope: str, failed: Mapping[str, str], told: Any) -> Any:
        """Record that model calls failed in a tool and the run goes on; return what the tool told.

        A failure may be what ended a run, so such calls are made again when it goes on: but not
        these, as what came after follows from them.
        """
        if not self.active or not failed:
            return told
        by = self._key(scope, FAILED)

        async def call() -> dict[str, Any]:
            return {FAILED: dict(failed), "told": told}

        tool = self._session.tool(call, effect="read_only", name=FAILED, actor=scope)
        with self._making():
            found: dict[str, Any] = await tool.keyed(by, in_turn=True)()
        return found["told"]

    def _key(self, scope: str, id: str) -> str:
        if len(id) > KEY_MAX:
            id = sha256(id.encode()).hexdigest()
        self._counts[f"{scope}:{id}"] += 1  # Ids of providers can repeat.
        return f"{scope}:{id}#{self._counts[f'{scope}:{id}']}"

    def require_going_on(self) -> None:
        """Raise what stopped the run, if something did."""
        if self.error is not None:
            raise self.error
        if _run.get() not in (None, self._run):
            raise Stopped("the run that this belongs to was stopped")


@contextmanager
def within(failed: dict[str, str]) -> Iterator[None]:
    """Have the model calls that fail noted here, with what they failed with."""
    before = _inside.get()
    _inside.set(failed)
    try:
        yield
    finally:
        _inside.set(before)  # No token: a generator can be closed in another context.


@contextmanager
def _noting(by: str) -> Iterator[None]:
    try:
        yield
    except PerdureError:
        raise
    except Exception as error:
        failed = _inside.get()
        if failed is not None:
            failed[by] = str(error)
        raise


class Order:
    """Gives recorded outcomes out as they came, where several are waited for at a time."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._left = dict.fromkeys(keys)
        self._moved = asyncio.Event()

    async def reach(self, key: str) -> None:
        """Return when it is this outcome's turn, or when those before it do not come."""
        if key not in self._left:
            return
        try:
            async with asyncio.timeout(PATIENCE):
                while next(iter(self._left)) != key:
                    await self._moved.wait()
        except TimeoutError:
            pass
        self._left.pop(key, None)
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()


def _name_parameters(call: Any, arguments: Mapping[str, Any]) -> None:
    """Have the arguments recorded by their names, where Python has such names."""
    if all(name.isidentifier() and not keyword.iskeyword(name) for name in arguments):
        kind = inspect.Parameter.KEYWORD_ONLY
        call.__signature__ = inspect.Signature([inspect.Parameter(one, kind) for one in arguments])


def _reconciling(reconcile: Callable[[Effect], Any], by: str) -> Callable[[Effect], Any]:
    """Return the user's function as one whose result has the form of this call's outcomes."""

    async def find_out(effect: Effect) -> Any:
        from perdure import Done

        if [*effect.arguments] == ["_"]:
            effect = effect._replace(arguments=effect.arguments["_"])
        found = reconcile(effect)
        if inspect.isawaitable(found):
            found = await found
        if not isinstance(found, Done):
            return found
        return Done({"by": by, "reconciled": found.result})

    return find_out


def require_policies(declared: Mapping[str, Declared]) -> dict[str, Policy]:
    """Return the policies of tools, or say which is none."""
    policies: dict[str, Any] = {
        name: one.get("reconcile", one.get("effect")) if isinstance(one, Mapping) else one
        for name, one in declared.items()
    }
    for name, policy in policies.items():
        if policy not in get_args(Named) and not callable(policy):
            known = ", ".join(get_args(Named))
            raise UsageError(
                f"no effect {policy!r} of {name!r}: choose one of {known}, or give a function "
                "that finds out and returns Done(result) or NotDone()"
            )
    return policies
