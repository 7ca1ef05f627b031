"""Random text: unique among threads, processes, and clones that Python knows nothing of."""

import ctypes
import json
import os
import threading
from collections.abc import Callable
from unittest import mock

import pytest

import perdure
from perdure.journal import ids
from perdure.journal.records import LeaseTaken

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")

COUNT = 600


def fork_below_python() -> int:
    """Fork without the hooks that Python runs in a child: a clone that nobody is told of."""
    return int(ctypes.PyDLL(None).fork())


def drawn_in_both(fork: Callable[[], int], draw: Callable[[], list[str]]) -> tuple[list[str], ...]:
    """Return what a process drew after it was cloned, and what its clone drew."""
    reader, writer = os.pipe()
    child = fork()
    if child == 0:
        try:
            os.write(writer, json.dumps(draw()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    own = draw()
    with os.fdopen(reader) as said:
        theirs = json.loads(said.read())
    os.waitpid(child, 0)
    return own, theirs


def test_random_text_is_22_letters_of_the_url_alphabet() -> None:
    text = ids.random_text()
    assert len(text) == 22
    assert text.replace("-", "").replace("_", "").isalnum()


def test_texts_that_are_drawn_together_differ() -> None:
    texts = ids.random_texts(COUNT)
    assert len({*texts}) == COUNT
    assert {*map(len, texts)} == {22}
    assert "".join(texts).replace("-", "").replace("_", "").isalnum()


def test_an_append_draws_twice_and_nothing_in_advance() -> None:
    """Once for the ids of all its records, once for all their salts."""
    session = perdure.open("memory:").session("s")
    session.append({"role": "user", "content": "first"})
    three = [{"role": "user", "content": text} for text in "abc"]
    with mock.patch.object(ids, "_random_bytes", wraps=ids._random_bytes) as draw:
        session.append(*three)
        assert [call.args for call in draw.call_args_list] == [(54,), (54,)]
    assert len({record.id for record in session.records()}) == 4


def test_no_two_threads_draw_the_same() -> None:
    drawn: list[str] = []

    def draw() -> None:
        drawn.extend([ids.random_text() for _ in range(COUNT)])

    threads = [threading.Thread(target=draw) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(drawn)) == len(drawn) == 8 * COUNT


@needs_fork
@pytest.mark.parametrize("fork", [os.fork, fork_below_python])
def test_a_clone_draws_other_text_than_its_parent(fork: Callable[[], int]) -> None:
    ids.random_text()
    own, theirs = drawn_in_both(fork, lambda: [ids.random_text() for _ in range(COUNT)])
    assert len({*own, *theirs}) == 2 * COUNT


def identities() -> list[str]:
    """Use a new session; return what other systems and the rules of fencing rely on."""
    session = perdure.open("memory:").session("s")
    keys: list[str] = []

    def pay() -> None:
        keys.append(perdure.current_effect().key)

    with session.lease(), session.turn("Pay.") as turn:
        session.tool(pay)()
    records = [*session.records()]
    leases = [r.content.owner for r in records if isinstance(r.content, LeaseTaken)]
    assert len(leases) == 1
    return [*keys, *leases, turn.id, session._replica.history.stream.id, *(r.id for r in records)]


@needs_fork
def test_a_clone_below_python_gives_its_calls_other_keys_and_identities() -> None:
    identities()
    own, theirs = drawn_in_both(fork_below_python, identities)
    assert len(own) == len(theirs) > 8
    assert not {*own} & {*theirs}


@pytest.mark.parametrize("error", [AttributeError, PermissionError])
def test_a_system_without_getrandom_draws_from_urandom(error: type[Exception]) -> None:
    with mock.patch("os.getrandom", side_effect=error, create=True):
        assert ids._kernel_generator() is os.urandom
