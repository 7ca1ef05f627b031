"""P33: arguments that another thread or task changes between the check and the call.

The caller's objects are changed at every append to the store, by the function that says whether an
approval is needed, by the reconcile function, and all the time by another thread or task. What is
recorded, what was approved and what the function got must be the same.
"""

import asyncio
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import perdure
from perdure import DidNotHappen, Effect, Happened
from perdure.backends.digests import digest_of
from perdure.backends.memory import MemoryBackend
from perdure.backends.offload import ThreadedBackend
from perdure.backends.protocol import Append, Outcome
from perdure.errors import UsageError
from perdure.journal.codec import Codec, encode_tree
from perdure.journal.records import ApprovalRequested, EffectIntent, Record
from tests.promises.promise import Promise, Trial, in_time

ITEMS_MAX = 8  # Items of a list that grows all the time.
ATTEMPTS_MAX = 1_000  # Attempts of a call whose arguments changed while they were encoded.


@dataclass
class Order:
    """What is paid: a registered class."""

    items: list[int] = field(default_factory=lambda: [1])


TYPES = {"Order": Order}
CODEC = Codec(TYPES)


class Meddler:
    """Changes the objects that were passed to a call: they still belong to the caller."""

    def __init__(self) -> None:
        self.plain: dict[str, Any] = {"items": [1], "to": "bob"}
        self.order = Order()
        self.pair = ([1], [2])
        self._numbers = count(2)

    def meddle(self, *_: object) -> None:
        number = next(self._numbers)
        for items in (self.plain["items"], self.order.items, *self.pair):
            items.append(number)
            del items[1:-ITEMS_MAX]
        self.plain["to"] = f"eve {number}"

    @contextmanager
    def in_thread(self) -> Iterator[None]:
        """Meddle in another thread, which gets its turn very often."""
        stop, interval = threading.Event(), sys.getswitchinterval()

        def run() -> None:
            while not stop.wait(1e-5):
                self.meddle()

        thread = threading.Thread(target=run)
        sys.setswitchinterval(1e-5)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            sys.setswitchinterval(interval)

    async def in_task(self) -> None:
        while True:
            self.meddle()
            await asyncio.sleep(0)


class MeddledBackend(MemoryBackend):
    """A store that takes its time: meanwhile the caller's objects change."""

    def __init__(self, meddle: Callable[[], object]) -> None:
        super().__init__()
        self.meddle = meddle

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        self.meddle()
        return super().append(appends)


class Functions:
    """The application's functions; what they get is kept, packed at once."""

    def __init__(self, meddler: Meddler) -> None:
        self.got: list[Any] = []
        self._meddler = meddler

    def pay(self, plain: Any, order: Any = None, *rest: Any, both: Any = ()) -> str:
        if type(order) not in (Order, type(None)) or type(both) is not tuple:
            self.got.append(f"another class: {type(order)}, {type(both)}")
        now = perdure.current_effect().arguments
        passed = {"plain": plain, "order": order, "rest": [*rest], "both": [*both]}
        self.got += [CODEC.pack({name: passed[name] for name in now}), CODEC.pack(now)]
        return "paid"

    def needs_approval(self, arguments: dict[str, Any]) -> bool:
        """Say yes, and spoil what it was given, and what the caller has."""
        self.got.append(CODEC.pack(arguments))
        self._meddler.meddle()
        arguments["plain"].clear()
        return True

    def did_not_happen(self, effect: Effect) -> Happened | DidNotHappen:
        self.got.append(CODEC.pack(effect.arguments))
        self._meddler.meddle()
        effect.arguments["plain"].clear()
        return DidNotHappen()

    def ask(self, messages: Any) -> str:
        self.got.append(CODEC.pack({"request": {"messages": messages}}))
        return "an answer"


def judge(records: list[Record], functions: Functions, what: str) -> Trial:
    """Compare what is recorded, what was approved and what the functions got."""
    contents = [record.content for record in records]
    stored = [one for one in contents if isinstance(one, EffectIntent | ApprovalRequested)]
    if not functions.got or not any(isinstance(one, EffectIntent) for one in stored):
        return Trial(what, "nothing was called")
    recorded = stored[0].arguments
    seen = [*(one.arguments for one in stored), *functions.got]
    wrong = [f"recorded {recorded}, but {one}" for one in seen if one != recorded]
    wrong += [
        f"{one} has another digest"
        for one in stored
        if isinstance(one, ApprovalRequested)  # That of an intent is computed from its arguments.
        and one.digest != digest_of(encode_tree(one.arguments))
    ]
    return Trial(what, "; ".join(wrong))


def judge_model(records: list[Record], functions: Functions, what: str) -> Trial:
    """Compare the recorded digest with what was sent."""
    (intent,) = [one.content for one in records if isinstance(one.content, EffectIntent)]
    sent = [digest_of(encode_tree(one)) for one in functions.got]
    return Trial(what, "" if sent == [intent.digest] else f"sent {functions.got}, not {intent}")


def draw_arguments(draw: random.Random, meddler: Meddler) -> tuple[Any, Any]:
    if draw.random() < 0.5:
        return (meddler.plain, meddler.order, *meddler.pair), {}
    return (meddler.plain,), {"order": meddler.order, "both": meddler.pair}


def draw_options(draw: random.Random, functions: Functions) -> dict[str, Any]:
    approval = draw.choice((False, True, functions.needs_approval))
    return {"effect": draw.choice(("unsafe", "idempotent")), "approval": approval}


def retried(call: Callable[[], Any], functions: Functions) -> Any:
    """Make a call until its arguments did not change while they were encoded."""
    for _ in range(ATTEMPTS_MAX):
        try:
            return call()
        except UsageError as error:
            if functions.got:
                raise AssertionError(f"called, and then {error}") from error
    raise AssertionError(f"refused {ATTEMPTS_MAX} times")


def in_threads(draw: random.Random) -> Trial:
    """Call a tool, directly or by key, with or without an approval, while a thread meddles."""
    meddler = Meddler()
    functions, store = Functions(meddler), perdure.open(MeddledBackend(meddler.meddle), types=TYPES)
    session, other = store.session("s"), store.session("s")
    options, (args, kwargs) = draw_options(draw, functions), draw_arguments(draw, meddler)
    key = draw.choice(("", "invoice-7"))
    tool = session.tool(functions.pay, **options, approval_wait=60)
    tool = tool.keyed(key) if key else tool
    decider = threading.Thread(target=_approve, args=(other, meddler))
    with session.turn("Pay."), meddler.in_thread():
        if options["approval"]:
            decider.start()
        retried(lambda: tool(*args, **kwargs), functions)
    if options["approval"]:
        decider.join()
    return judge([*session.records()], functions, f"a thread, {options}, key {key!r}, {kwargs}")


def _approve(session: perdure.Session, meddler: Meddler) -> None:
    for _ in session.watch(timeout=60):
        for one in session.approvals.pending():
            meddler.meddle()
            session.approvals.approve(one.id, by="ada", digest=one.digest)
            return


def in_tasks(draw: random.Random) -> Trial:
    """Do the same in an event loop, where a task meddles."""
    meddler = Meddler()
    functions = Functions(meddler)
    options, (args, kwargs) = draw_options(draw, functions), draw_arguments(draw, meddler)

    async def run() -> Trial:
        backend = ThreadedBackend(MeddledBackend(meddler.meddle))
        async with perdure.open_async(backend, types=TYPES) as store:
            session, other = await store.session("s"), await store.session("s")
            tool = session.tool(functions.pay, **options, approval_wait=60)
            async with session.turn("Pay."):
                tasks = [asyncio.create_task(meddler.in_task())]
                if options["approval"]:
                    tasks.append(asyncio.create_task(_approve_async(other, meddler)))
                await tool(*args, **kwargs)
                for task in tasks:
                    task.cancel()
            records = [record async for record in session.records()]
        return judge(records, functions, f"a task, {options}, {kwargs}")

    return asyncio.run(run())


async def _approve_async(session: perdure.AsyncSession, meddler: Meddler) -> None:
    async for _ in session.watch(timeout=60):
        for one in await session.approvals.pending():
            meddler.meddle()
            await session.approvals.approve(one.id, by="ada", digest=one.digest)
            return


def requested(draw: random.Random) -> Trial:
    """Run the calls of a message that somebody changes after it was appended."""
    meddler = Meddler()
    functions, store = Functions(meddler), perdure.open(MeddledBackend(meddler.meddle), types=TYPES)
    session = store.session("s")
    call = {"type": "tool_use", "id": "c1", "name": "pay", "input": {"plain": meddler.plain}}
    message = {"role": "assistant", "content": [call]}
    with session.turn("Pay.") as turn, meddler.in_thread():
        retried(lambda: turn.append(message), functions)
        given = draw.choice((None, message))
        tools = [session.tool(functions.pay)]
        try:
            session.run_tool_calls(given, tools)
        except perdure.UsageError:  # A changed message is not the one in the turn: it is refused.
            if given is None:
                raise
            session.run_tool_calls(None, tools)
    return judge([*session.records()], functions, f"requested, {given is None}")


def reconciled(draw: random.Random) -> Trial:
    """Take over a call in flight; the reconcile function spoils whatever it can reach."""
    meddler = Meddler()
    functions, backend = Functions(meddler), MeddledBackend(lambda: None)
    options: dict[str, Any] = {"effect": "reconcile", "reconcile": functions.did_not_happen}
    args, kwargs = draw_arguments(draw, meddler)

    def take_over(*_: object, **__: object) -> None:
        session = perdure.open(backend, types=TYPES).session("s")
        tool = session.tool(functions.pay, **options)
        with session.turn("Pay.", id="turn-1"):
            backend.meddle = meddler.meddle  # From now on: these are the recorded arguments.
            tool(*args, **kwargs)
        backend.meddle = lambda: None

    first = perdure.open(backend, types=TYPES).session("s")
    take_over.__signature__ = _signature()  # type: ignore[attr-defined]
    given, given_by_name = deepcopy((args, kwargs))
    try:
        with first.turn("Pay.", id="turn-1"):
            first.tool(take_over, name="pay", **options)(*given, **given_by_name)
    except perdure.ConflictError:
        pass  # The other one has ended the turn.
    records = [*perdure.open(backend, types=TYPES).session("s").records()]
    return judge(records, functions, f"reconciled, {kwargs}")


def _signature() -> Any:
    import inspect

    return inspect.signature(Functions(Meddler()).pay)


def models(draw: random.Random) -> Trial:
    """Ask a model while a thread changes the messages."""
    meddler = Meddler()
    functions, store = Functions(meddler), perdure.open(MeddledBackend(meddler.meddle), types=TYPES)
    session, messages = store.session("s"), [meddler.plain]
    ask = session.model(functions.ask)
    with session.turn("Ask."), meddler.in_thread():
        retried(lambda: ask(messages) if draw.random() < 0.5 else ask(messages=messages), functions)
    return judge_model([*session.records()], functions, "a model")


def trials(seed: int, deadline: float) -> Iterator[Trial]:
    draw = random.Random(seed)
    while True:
        for way in WAYS:
            if not in_time(deadline):
                return
            try:
                yield way(draw)
            except (perdure.PerdureError, AssertionError) as error:
                yield Trial(way.__name__, f"{type(error).__name__}: {error}")


WAYS = (in_threads, in_tasks, requested, reconciled, models)
SAYS = "a call gets the arguments that were recorded and approved, whatever happens meanwhile"
PROMISE = Promise("P33", SAYS, 1_000, trials, "arguments")
