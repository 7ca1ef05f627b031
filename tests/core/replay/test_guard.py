"""A replayed agent cannot write to a live store, read one, or leave its process."""

import _thread
import asyncio
import concurrent.futures
import contextvars
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import perdure
from perdure.backends.files import FilesBackend
from perdure.backends.memory import MemoryBackend
from perdure.backends.offload import ThreadedBackend
from perdure.backends.sqlite import SqliteBackend
from perdure.cli.__main__ import main
from perdure.cli.registry import COMMANDS
from perdure.core.replay import guard
from perdure.errors import ReplayBlockedError
from tests.promises.p14_agents import drive
from tests.promises.p14_calls import (
    CALLS,
    FREE,
    PURE,
    STREAM,
    WRITES,
    Live,
    finished,
    names,
    replay_with,
    wrong,
)

Make = Callable[..., Live]


@pytest.fixture(params=["memory", "files", "sqlite", "postgres"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """What makes a live store of each kind, for blocking code or for an event loop."""
    address = {"memory": "", "files": f"files:{tmp_path / 'store'}", "sqlite": ""}
    address["sqlite"] = str(tmp_path / "agents.db")

    def live(*, is_async: bool) -> Live:
        if request.param == "postgres":
            from perdure.backends.postgres.backend import PostgresBackend
            from perdure.backends.postgres.backend_async import AsyncPostgresBackend

            url = request.getfixturevalue("postgres_store")
            own = AsyncPostgresBackend(url) if is_async else None
            return Live(PostgresBackend(url), own, address=url)
        backend: Any = MemoryBackend()
        if request.param == "files":
            backend = FilesBackend(tmp_path / "store")
        elif request.param == "sqlite":
            backend = SqliteBackend(tmp_path / "agents.db")
        threaded = ThreadedBackend(backend) if is_async else None
        return Live(backend, threaded, address=address[request.param])

    return live


def run(work: Any, *, is_async: bool) -> Any:
    return asyncio.run(work) if is_async else drive(work)


def test_every_public_name_has_a_row() -> None:
    rows = {name.partition(",")[0] for name in CALLS} | PURE
    assert {*names()} == rows


@pytest.mark.parametrize("is_async", [False, True])
def test_no_public_call_of_a_replayed_agent_reaches_a_live_store(
    make: Make, *, is_async: bool
) -> None:
    async def work() -> None:
        live = await make(is_async=is_async).fill()
        before, numbers = live.contents(), live.call_numbers()
        replay, tried = await replay_with(live, [*CALLS])
        assert wrong(replay, tried) == ""
        assert (live.contents(), live.call_numbers()) == (before, numbers)
        assert len(tried) == len(CALLS)
        # Everything live still works, and the replay of the agent alone is identical.
        replay, _ = await replay_with(live, [])
        assert replay.check().refused == ()
        assert live.lease.held
        assert await finished(live.stream) == STREAM[1:]
        await finished(live.turn.complete())
        await finished(live.session.note("after"))
        assert live.contents() != before
        await live.close()
        live.backend.close()

    run(work(), is_async=is_async)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_the_same_calls_work_outside_of_a_replay(name: str, *, is_async: bool) -> None:
    async def work() -> None:
        backend = MemoryBackend()
        own = ThreadedBackend(backend) if is_async else None
        live = await Live(backend, own, address="").fill()
        with guard.guarded():  # From now on everything checks whether it is guarded.
            pass
        before = live.contents()
        with suppress(perdure.UsageError if CALLS[name].verdict == FREE else NotImplementedError):
            await finished(CALLS[name].make(live))
        if name != "Store.close":
            assert (live.contents() != before) == (CALLS[name].verdict == WRITES)
        await live.close()

    run(work(), is_async=is_async)


# Each as it is called on a live store, and whether it writes there or makes another store.
COMMAND_LINES: dict[str, tuple[bool, str]] = {
    "approvals": (False, "--store {store}"),
    "approve": (True, "waiting {approval} --by Ada --yes --store {store}"),
    "chat": (True, "chatting --store {store}"),
    "compact": (True, "live --keep 1 --store {store}"),
    "copy": (True, "{store} {folder}/copy.db"),
    "demo": (True, "--kills 0 --store {folder}/demo.db"),
    "deny": (True, "waiting {approval} --by Ada --yes --store {store}"),
    "doctor": (False, "--appends 1 {store}"),  # It removes the session of its trials.
    "effects": (False, "unknown --store {store}"),
    "import": (True, "{folder}/messages.json --store {store}"),
    "keys": (False, "list --store {store}"),
    "ls": (False, "--store {store}"),
    "migrate": (False, "{store}"),
    "release": (True, "leased --force --store {store}"),
    "replay": (False, "replayed os:getcwd --store {store}"),
    "show": (False, "live --store {store}"),
    "stats": (False, "--store {store}"),
    "tail": (False, "live --store {store}"),
    "verify": (False, "--store {store}"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_that_a_replayed_agent_calls_reaches_a_store(name: str, tmp_path: Path) -> None:
    path = tmp_path / "live" / "agents.db"
    path.parent.mkdir()
    live = Live(SqliteBackend(path), address=str(path))
    drive(live.fill())
    (tmp_path / "messages.json").write_text('[{"role": "user", "content": "Hello."}]')
    writes, words = COMMAND_LINES[name]

    def call() -> Any:
        given = words.format(store=path, folder=tmp_path, approval=live.approval.id).split()
        return CliRunner().invoke(main, [name, *given], "Hello.\n", env={"OPENAI_API_KEY": None})

    def agent(session: perdure.Session) -> None:
        call()
        drive(live.agent(session))

    before = live.contents(), sorted(tmp_path.iterdir())
    replay = perdure.replay(live.replayed, agent)
    assert (live.contents(), sorted(tmp_path.iterdir())) == before
    assert replay.refused
    call()
    assert ((live.contents(), sorted(tmp_path.iterdir())) != before) == writes
    drive(live.close())


# Other ways out of the process.


class Outside:
    """A program of another process, whose start and end are seen."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self) -> None:
        subprocess.run([sys.executable, "-S", "-c", f"open({str(self.path)!r}, 'w')"], check=True)

    def reached(self) -> bool:
        found = self.path.exists()
        self.path.unlink(missing_ok=True)
        return found


@pytest.fixture
def outside(tmp_path: Path) -> Outside:
    return Outside(tmp_path / "reached")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """A pool whose thread is running before any replay."""
    with ThreadPoolExecutor(1) as found:
        found.submit(int).result()
        yield found


def touch(path: str) -> None:
    Path(path).touch()


def spawned(outside: Outside, _pool: Any) -> None:
    process = multiprocessing.get_context("spawn").Process(target=touch, args=(str(outside.path),))
    process.start()
    process.join()


def forked(outside: Outside, _pool: Any) -> None:
    process = multiprocessing.get_context("fork").Process(target=touch, args=(str(outside.path),))
    process.start()
    process.join()


def posix_spawned(outside: Outside, _pool: Any) -> None:
    code = f"open({str(outside.path)!r}, 'w')"
    pid = os.posix_spawn(sys.executable, [sys.executable, "-S", "-c", code], {})
    os.waitpid(pid, 0)


def in_shell(outside: Outside, _pool: Any) -> None:
    os.system(f"touch {outside.path}")  # noqa: S605 - one of the ways out


def in_raw_thread(outside: Outside, _pool: Any) -> None:
    done = threading.Event()

    def work() -> None:
        with suppress(ReplayBlockedError):
            outside.run()
        done.set()

    _thread.start_new_thread(work, ())
    assert done.wait(60)


def in_timer(outside: Outside, _pool: Any) -> None:
    def work() -> None:
        with suppress(ReplayBlockedError):
            outside.run()

    timer = threading.Timer(0.001, work)
    timer.start()
    timer.join()


def in_fresh_context(outside: Outside, _pool: Any) -> None:
    contextvars.Context().run(outside.run)


def in_fresh_context_of_a_thread(outside: Outside, _pool: Any) -> None:
    def work() -> None:
        with suppress(ReplayBlockedError):
            contextvars.Context().run(outside.run)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def in_loop(outside: Outside, _pool: Any) -> None:
    async def work() -> None:
        context = contextvars.Context()
        await asyncio.get_running_loop().create_task(asyncio.sleep(0), context=context)
        context.run(outside.run)

    asyncio.run(work())


def in_pool(outside: Outside, pool: ThreadPoolExecutor) -> None:
    pool.submit(outside.run).result()


def in_pool_with_fresh_context(outside: Outside, pool: ThreadPoolExecutor) -> None:
    pool.submit(contextvars.Context().run, outside.run).result()


def killing(outside: Outside, _pool: Any) -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: outside.path.touch())
    try:
        os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


def killing_thread(outside: Outside, _pool: Any) -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: outside.path.touch())
    try:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


WAYS_OUT = [
    *(spawned, forked, posix_spawned, in_shell, in_raw_thread, in_timer, in_fresh_context),
    *(in_fresh_context_of_a_thread, in_loop, in_pool, in_pool_with_fresh_context, killing),
    killing_thread,
]


@pytest.fixture
def session() -> Iterator[perdure.Session]:
    with perdure.open("memory:") as store:
        yield store.session("s")


@pytest.mark.parametrize("leave", WAYS_OUT)
def test_ways_out_of_the_process_are_blocked_and_only_in_a_replay(
    session: perdure.Session, outside: Outside, pool: ThreadPoolExecutor, leave: Any
) -> None:
    def agent(_session: perdure.Session) -> None:
        with suppress(ReplayBlockedError):
            leave(outside, pool)

    replay = perdure.replay(session, agent)
    assert not outside.reached()
    assert replay.refused
    assert not replay.identical
    leave(outside, pool)
    assert outside.reached()


async def to_executor(outside: Outside) -> None:
    await asyncio.get_running_loop().run_in_executor(None, outside.run)


async def to_thread(outside: Outside) -> None:
    await asyncio.to_thread(outside.run)


async def in_context(outside: Outside) -> None:
    contextvars.Context().run(outside.run)


async def in_callback(outside: Outside) -> None:
    done = asyncio.get_running_loop().create_future()

    def call() -> None:
        try:
            outside.run()
        except ReplayBlockedError as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    asyncio.get_running_loop().call_soon(call)
    await done


async def in_task(outside: Outside) -> None:
    await asyncio.create_task(in_context(outside))


async def in_task_with_a_context_of_its_own(outside: Outside) -> None:
    loop, context = asyncio.get_running_loop(), contextvars.Context()
    await loop.create_task(in_context(outside), context=context)


WAYS_OUT_OF_LOOPS = [
    *(to_executor, to_thread, in_context, in_callback, in_task, in_task_with_a_context_of_its_own)
]


@pytest.mark.parametrize("leave", WAYS_OUT_OF_LOOPS)
def test_ways_out_of_an_event_loop_are_blocked_and_only_for_the_agent(
    outside: Outside, leave: Any
) -> None:
    async def work() -> None:
        await to_executor(outside)  # Its thread is running from now on.
        assert outside.reached()
        inside, over = asyncio.Event(), asyncio.Event()

        async def beside() -> None:
            await inside.wait()
            await leave(outside)
            over.set()

        async def agent(_session: perdure.AsyncSession) -> None:
            with suppress(ReplayBlockedError):
                await leave(outside)
            assert not outside.reached()
            inside.set()
            await over.wait()

        async with perdure.open_async("memory:") as store:
            task = asyncio.create_task(beside())
            replay = await perdure.replay(await store.session("s"), agent)
            await task
        assert replay.error is None
        assert replay.refused
        assert outside.reached()

    asyncio.run(work())


def test_a_pool_serves_others_while_a_replayed_agent_uses_it(
    session: perdure.Session, outside: Outside
) -> None:
    with ThreadPoolExecutor(1) as pool:  # Its only thread is started by the agent.

        def agent(_session: perdure.Session) -> None:
            with suppress(ReplayBlockedError):
                pool.submit(outside.run).result()
            assert not outside.reached()
            other = threading.Thread(target=lambda: pool.submit(outside.run).result())
            with guard.suspended():  # Started by other code than the agent.
                other.start()
            other.join()

        assert perdure.replay(session, agent).refused
        assert outside.reached()
        assert isinstance(pool.submit(int), concurrent.futures.Future)


def test_what_an_agent_leaves_running_stays_blocked(
    session: perdure.Session, outside: Outside
) -> None:
    over, tried = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def later() -> None:
        assert over.wait(60)
        for attempt in (outside.run, lambda: session.note("later")):
            try:
                attempt()
            except ReplayBlockedError as error:
                errors.append(error)
        tried.set()

    perdure.replay(session, lambda _: threading.Thread(target=later).start())
    over.set()
    assert tried.wait(60)
    assert len(errors) == 2
    assert not outside.reached()
    assert session.refresh() == 0


def test_a_token_counter_is_blocked_though_the_store_reads_for_it(
    session: perdure.Session, outside: Outside
) -> None:
    class Counting:
        name = "outside"

        def count(self, _message: object) -> int:
            outside.run()
            return 1

    def agent(session: perdure.Session) -> None:
        with session.turn("Hello."):
            session.messages(max_tokens=100, counter=Counting())

    agent(session)
    assert outside.reached()
    replay = perdure.replay(session, agent)
    assert replay.refused == ("subprocess.Popen",)
    assert not outside.reached()


def test_a_store_may_use_the_network_to_read_what_is_replayed() -> None:
    class Remote(MemoryBackend):
        def read(self, *args: Any, **options: Any) -> Any:
            socket.getaddrinfo("127.0.0.1", 80)
            return super().read(*args, **options)

    def agent(session: perdure.Session) -> int:
        with session.turn("Hello."):
            return len(session.messages())

    with perdure.open(Remote()) as store:
        session = store.session("s")
        agent(session)
        replay = perdure.replay(session, agent)
    assert (replay.check().returned, replay.refused) == (1, ())


def test_a_replay_inside_a_replay_is_refused(session: perdure.Session) -> None:
    def agent(session: perdure.Session) -> None:
        with suppress(ReplayBlockedError):
            perdure.replay(session, lambda _: None)

    assert perdure.replay(session, agent).refused == ("a replay inside a replay",)


def test_a_replayed_session_can_not_be_branched(session: perdure.Session) -> None:
    def agent(session: perdure.Session) -> None:
        session.note("before")
        with suppress(ReplayBlockedError):
            session.branch("other")

    session.note("before")
    replay = perdure.replay(session, agent)
    assert (replay.identical, replay.refused) == (False, ("branching session 's'",))


def test_a_fork_while_another_thread_begins_a_replay_can_begin_one() -> None:
    held = threading.Event()

    def hold() -> None:
        with guard._install_lock:
            held.set()
            time.sleep(0.2)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        with guard.guarded():
            os._exit(0)
    thread.join()
    assert os.waitpid(pid, 0)[1] == 0
