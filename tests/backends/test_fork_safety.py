"""Forks while other threads hold what a child needs."""

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable

import pytest

import perdure
from perdure.aio import group_commit
from perdure.backends import fork_safety, offload
from perdure.backends.interrupt_safety import WakeSignal
from perdure.backends.watchers import Watchers
from perdure.sync import concurrency
from tests.support import said

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def forked(work: Callable[[], object]) -> int:
    """Return how a child ended that did some work; one that hangs is ended."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def while_held(lock: "threading.Lock | threading.RLock") -> threading.Thread:
    """Have another thread hold a lock, for a moment; return when it does."""
    held = threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            threading.Event().wait(0.1)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(20)
    return thread


def test_a_lock_that_another_thread_holds_is_free_in_a_child_and_in_its_parent() -> None:
    lock = fork_safety.fork_safe_lock()

    def take() -> None:
        assert lock.acquire(timeout=1)
        lock.release()

    thread = while_held(lock)
    assert forked(take) == 0
    thread.join()
    take()


def test_a_fork_in_the_midst_of_what_a_lock_keeps_does_not_wait_for_itself() -> None:
    with contextlib.ExitStack() as held:
        for lock in (group_commit._loop_switch_lock, offload._start_lock, concurrency._start_lock):
            held.enter_context(lock)
        assert forked(lambda: None) == 0


def test_a_child_writes_in_a_loop_though_another_thread_began_to() -> None:
    async def write() -> None:
        async with perdure.open_async("memory:") as store:
            await (await store.session("a")).append(said("one"))

    thread = while_held(group_commit._loop_switch_lock)
    assert forked(lambda: asyncio.run(write())) == 0
    thread.join()


def test_a_child_closes_a_session_in_which_another_thread_begins_something() -> None:
    with perdure.open("memory:") as store:
        session = store.session("a")
        session.append(said("one"))
        began, start = threading.Event(), threading.Thread.start

        def slow(thread: threading.Thread) -> None:
            if thread.name == "perdure":
                began.set()
                threading.Event().wait(0.2)
            start(thread)

        def begin() -> None:
            session._handle.background.start(lambda: None)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(threading.Thread, "start", slow)
            beginning = threading.Thread(target=begin)
            start(beginning)
            assert began.wait(20)
            assert forked(session.close) == 0
            beginning.join()


def test_a_child_lets_go_of_what_waits_in_its_parent() -> None:
    watchers, signal = Watchers(), WakeSignal()
    watchers.add("s", signal)
    thread = while_held(watchers._lock)
    assert forked(lambda: watchers.remove("s", signal)) == 0
    thread.join()
    watchers.remove("s", signal)
    watchers.remove("s", signal)  # As a child does that waits itself by now.
    assert not watchers.streams()
