"""The faults are real where they say so, and nowhere else."""

import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from perdure.backends.memory import MemoryBackend
from perdure.backends.protocol import Backend
from perdure.errors import UnavailableError
from perdure.testing import Crash, CrashAt, Flaky, Slow, Torn
from perdure.testing.contract.samples import append_all, append_of, entries


def test_a_crash_before_the_append_leaves_nothing() -> None:
    inner = MemoryBackend()
    backend = CrashAt(inner, "append.before", nth=2)
    assert append_all(backend, append_of("s", 1, 1)) == ["stored"]
    with pytest.raises(Crash):
        backend.append([append_of("s", 2, 2)])
    assert list(inner.read("s")) == entries(1, 1)
    assert append_all(backend, append_of("s", 2, 2)) == ["stored"], "only the nth call dies"


def test_a_crash_after_the_append_leaves_it_stored() -> None:
    inner = MemoryBackend()
    backend = CrashAt(inner, "append.after")
    with pytest.raises(Crash):
        backend.append([append_of("s", 1, 2)])
    assert list(inner.read("s")) == entries(1, 2)


def test_a_crash_is_no_exception_that_a_program_would_catch() -> None:
    assert not issubclass(Crash, Exception)


@pytest.mark.parametrize("after_commit", [False, True])
def test_a_flaky_store_fails_before_or_after_the_commit(*, after_commit: bool) -> None:
    inner = MemoryBackend()
    backend = Flaky(inner, fail=lambda call: call == 1, after_commit=after_commit)
    with pytest.raises(UnavailableError):
        backend.append([append_of("s", 1, 1)])
    assert list(inner.read("s")) == (entries(1, 1) if after_commit else [])
    assert append_all(backend, append_of("s", 1, 1)) == ["stored"]
    assert list(inner.read("s")) == entries(1, 1)


def _failures(seed: int, fail: float) -> list[int]:
    backend = Flaky(MemoryBackend(), fail=fail, seed=seed)
    failed = []
    for number in range(100):
        try:
            backend.append([append_of(str(number), 1, 1)])
        except UnavailableError:
            failed.append(number)
    return failed


def test_a_flaky_store_fails_as_often_as_asked_and_the_same_way_again() -> None:
    assert _failures(1, 0.0) == []
    assert len(_failures(1, 1.0)) == 100
    assert 10 < len(_failures(1, 0.3)) < 50
    assert _failures(1, 0.3) == _failures(1, 0.3) != _failures(2, 0.3)


def test_a_slow_store_waits_and_then_does_what_it_should() -> None:
    backend = Slow(MemoryBackend(), 0.02)
    begin = time.monotonic()
    append_all(backend, append_of("s", 1, 2))
    assert list(backend.read("s")) == entries(1, 2)
    assert len(list(backend.streams())) == 1
    backend.drop("s", before=2)
    assert time.monotonic() - begin >= 0.08


def test_a_torn_append_keeps_the_first_entries_and_can_be_completed() -> None:
    inner = MemoryBackend()
    backend = Torn(inner, keep=2, nth=2)
    append_all(backend, append_of("s", 1, 1))
    with pytest.raises(UnavailableError):
        backend.append([append_of("s", 2, 5), append_of("t", 1, 1)])
    assert list(inner.read("s")) == entries(1, 3)
    assert list(inner.read("t")) == entries(1, 1)
    assert append_all(backend, append_of("s", 2, 5)) == ["stored"]
    assert list(inner.read("s")) == entries(1, 5)


def test_a_tear_before_the_first_entry_stores_nothing() -> None:
    inner = MemoryBackend()
    with pytest.raises(UnavailableError):
        Torn(inner, keep=0).append([append_of("s", 1, 2)])
    assert list(inner.streams()) == []


@pytest.mark.parametrize(
    "wrap",
    [
        lambda backend: CrashAt(backend, "append.before"),
        lambda backend: Flaky(backend, fail=0.5),
        lambda backend: Slow(backend, 0),
        lambda backend: Torn(backend, keep=1),
    ],
    ids=["CrashAt", "Flaky", "Slow", "Torn"],
)
def test_a_wrapper_forwards_what_the_store_declares(wrap: Callable[[Backend], Backend]) -> None:
    inner = MemoryBackend()
    inner.capabilities = frozenset({"watch"})
    wrapped = wrap(inner)
    assert (wrapped.name, wrapped.guarantees) == (inner.name, inner.guarantees)
    assert wrapped.capabilities == {"watch"}
    wrapped.close()
    wrapped.close()


def test_the_faults_need_no_pytest() -> None:
    program = "import sys, perdure.testing; sys.exit('pytest' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
