"""Waiters that end while their watchers are busy: the garbage collector may end one anywhere."""

import threading
from collections.abc import Iterator

from perdure.backends.interrupt_safety import WakeSignal
from perdure.backends.watchers import Watchers


def waiter(watchers: Watchers, stream: str, signal: WakeSignal) -> Iterator[None]:
    """Wait as a coroutine of a closed loop does: until it is collected."""
    with watchers.registered(stream, signal):
        yield


class Collecting(WakeSignal):
    """Ends other waits as it is woken, as a collection could."""

    def __init__(self, others: list[Iterator[None]]) -> None:
        super().__init__()
        self._others = others

    def wake(self) -> None:
        super().wake()
        self._others.clear()


def test_waits_that_end_while_others_are_woken_hold_up_nothing() -> None:
    watchers, others = Watchers(), list[Iterator[None]]()
    first, last = Collecting(others), WakeSignal()
    with watchers.registered("a", first):
        for name in ("b", "c"):
            others.append(waiter(watchers, name, WakeSignal()))
            next(others[-1])
        with watchers.registered("z", last):
            thread = threading.Thread(target=watchers.notify_all, daemon=True)
            thread.start()
            thread.join(5)
            assert not thread.is_alive(), "it waits for itself"
            assert first.sleep(0)
            assert last.sleep(0)
            assert [*watchers.waiting] == ["a", "z"]
    assert not watchers.waiting
