"""Every order in which a few generators of steps can reach one store, each tried once.

A generator stops at each request, so a test decides who goes next. `schedules` goes through all
orders that can make a difference: two neighbouring requests that do not touch the same stream, or
only read it, are tried in one order, because the other one gives the same result.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from perdure.backends.memory import MemoryBackend
from perdure.backends.protocol import Append, Backend
from perdure.core.settings import Settings
from perdure.errors import PerdureError
from perdure.journal.cipher import PlainCipher
from perdure.journal.codec import Codec
from perdure.journal.requests import (
    Commit,
    CommitTogether,
    Compute,
    Drop,
    Heads,
    Keys,
    Read,
    ReloadKeys,
    Request,
    Steps,
    Tail,
    Wait,
)
from perdure.sync.driver import Driver
from perdure.sync.group_commit import GroupCommitter

NEVER = 10_000  # More requests than any actor makes.
LETTERS = "ABCDEF"


def settings() -> Settings:
    """Settings with a frozen clock and ids that count, so that a failing order repeats."""
    numbers = iter(range(1, 10**9))
    return Settings(
        clock=lambda: 0.0,
        tokens=lambda count: [f"t{next(numbers)}" for _ in range(count)],
        cipher=PlainCipher(),
        codec=Codec(None),
    )


def copied(backend: MemoryBackend) -> MemoryBackend:
    """Return a store with the same entries that goes its own way from here."""
    other = MemoryBackend()
    for head in backend.streams():
        entries = list(backend.read(head.stream))
        other.append([Append(head.stream, entries, head.labels)])
    return other


def run(backend: Backend, steps: Steps[Any]) -> Any:
    """Carry out steps to their end."""
    return Driver(backend, GroupCommitter(backend)).run(steps)


class Actor:
    """One generator, driven a request at a time, and stopped for good after `lives` of them."""

    def __init__(self, backend: Backend, steps: Steps[Any], *, lives: int = NEVER) -> None:
        self._driver = Driver(backend, GroupCommitter(backend))
        self._steps = steps
        self.lives = lives
        self.request: Request | None = None
        self.error: PerdureError | None = None
        self.result: Any = None
        self.done = False
        if lives:
            self._advance(lambda: next(steps))

    @property
    def ready(self) -> bool:
        return not self.done and self.lives > 0

    @property
    def acknowledged(self) -> bool:
        return self.done and self.error is None

    def step(self) -> None:
        """Answer the request that waits."""
        assert self.request is not None
        self.lives -= 1
        try:
            answer = self._driver.answer(self.request)
        except PerdureError as error:
            thrown = error
            self._advance(lambda: self._steps.throw(thrown))
        else:
            self._advance(lambda: self._steps.send(answer))

    def fail(self, error: PerdureError) -> None:
        """Answer the request that waits with an error."""
        self._advance(lambda: self._steps.throw(error))

    def finish(self) -> None:
        while self.ready:
            self.step()

    def _advance(self, resume: Callable[[], Request]) -> None:
        try:
            self.request = resume()
        except StopIteration as end:
            self.done, self.result = True, end.value
        except PerdureError as error:
            self.done, self.error = True, error


def independent(one: Request, other: Request) -> bool:
    """Whether the order of two requests can not matter."""
    if isinstance(one, Read | Heads) and isinstance(other, Read | Heads):
        return True
    if isinstance(one, Tail) or isinstance(other, Tail):
        return True  # The store of the scenes has no `tail`, so that it does nothing.
    if isinstance(other, Heads):
        one, other = other, one
    if isinstance(one, Heads):
        return not _name(other).startswith(one.prefix)
    return _name(one) != _name(other)


def _name(request: Request) -> str:
    match request:
        case Commit(append):
            return append.stream
        case CommitTogether():
            raise AssertionError("no scene commits to several sessions together")
        case Read(stream) | Tail(stream) | Drop(stream) | Wait(stream):
            return stream
        case Heads(prefix):
            return prefix
        case Keys(wrapped):
            return _name(wrapped)
        case Compute():
            raise AssertionError("no scene computes for long")
        case ReloadKeys():
            raise AssertionError("no scene rotates keys")


class Choice(NamedTuple):
    """Who went, and who could have gone instead."""

    chosen: int
    open: tuple[int, ...]


Scene = Callable[[], Sequence[Actor]]


def schedules(scene: Scene, *, reduced: bool = True) -> Iterator[tuple[str, Sequence[Actor]]]:
    """Yield the actors of a scene at the end of each order, and that order in letters.

    `scene` must set everything up anew each time it is called.
    """
    stack: list[tuple[int, ...]] = [()]
    while stack:
        prefix = stack.pop()
        actors = scene()
        choices = _play(actors, prefix, reduced=reduced)
        if choices is None:
            continue
        yield "".join(LETTERS[choice.chosen] for choice in choices), actors
        taken = [choice.chosen for choice in choices]
        for depth in range(len(prefix), len(choices)):
            stack.extend(
                (*taken[:depth], other) for other in choices[depth].open if other > taken[depth]
            )


def drawn(scene: Scene, *, seed: int, count: int) -> Iterator[tuple[str, Sequence[Actor]]]:
    """Yield some orders of a scene that has too many, as `schedules` yields all.

    A scheduler that tosses a coin for each request hardly ever lets anyone go far while the others
    wait, so each order has its own odds.
    """
    draw = random.Random(seed)
    for _ in range(count):
        actors, order = scene(), ""
        odds = [draw.random() ** 3 for _ in actors]
        while ready := [number for number, actor in enumerate(actors) if actor.ready]:
            if draw.random() < 0.15:
                odds = [draw.random() ** 3 for _ in actors]
            (chosen,) = draw.choices(ready, [odds[number] + 1e-9 for number in ready])
            actors[chosen].step()
            order += LETTERS[chosen]
        yield order, actors


def _play(actors: Sequence[Actor], prefix: Sequence[int], *, reduced: bool) -> list[Choice] | None:
    """Follow a prefix, then always let the first one go that may; None if another order is equal.

    An order is left out when someone goes right after a later one whose request was independent:
    with the two exchanged, it is an order that is tried already.
    """
    choices: list[Choice] = []
    last: tuple[int, Request] | None = None
    while any(actor.ready for actor in actors):
        allowed = tuple(
            number
            for number, actor in enumerate(actors)
            if actor.ready
            and actor.request is not None
            and not (reduced and _repeats(last, number, actor))
        )
        depth = len(choices)
        if depth < len(prefix) and prefix[depth] not in allowed:
            return None
        if not allowed:
            return None
        chosen = prefix[depth] if depth < len(prefix) else allowed[0]
        request = actors[chosen].request
        assert request is not None
        last = (chosen, request)
        choices.append(Choice(chosen, allowed))
        actors[chosen].step()
    return choices


def _repeats(last: tuple[int, Request] | None, number: int, actor: Actor) -> bool:
    if last is None or actor.request is None:
        return False
    return number < last[0] and independent(last[1], actor.request)
