"""Branching against deleting, creating and using, in every order of their requests.

Each order ends with the same questions: what was acknowledged is there and whole, what was
refused left nothing that stands in the way, and no order looks like damage.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from perdure import lifecycle, writing
from perdure.backends.memory import MemoryBackend
from perdure.errors import (
    DamagedError,
    InUseError,
    NotFoundError,
)
from perdure.replica import Replica, Settings
from perdure.steps import Steps
from perdure.store import Store
from tests.core.schedules import NEVER, Actor, copied, run, schedules, settings

SAID = [{"role": "user", "content": text} for text in ("one", "two", "three")]
BRANCHED_AT = 2


class World(NamedTuple):
    """A store with sessions in it, and the handle that somebody has on one of them."""

    backend: MemoryBackend
    settings: Settings
    source: Replica

    @property
    def store(self) -> Store:
        return Store(self.backend, self.settings)


def say(name: str, settings: Settings, *messages: dict[str, Any]) -> Steps[int]:
    """Open a session and append to it, as a program does that knows nothing of the others."""
    replica = yield from lifecycle.opened(name, settings, must_exist=False)
    (answer,) = yield from replica.write([writing.say(replica, messages or SAID[:1])])
    if isinstance(answer, int):
        return answer
    raise answer


def one_parent() -> World:
    """A session `parent` with three messages, open in the hands of the one who will branch it."""
    backend, with_settings = MemoryBackend(), settings()
    run(backend, say("parent", with_settings, *SAID))
    source = run(backend, lifecycle.opened("parent", with_settings, must_exist=True))
    return World(backend, with_settings, source)


def grandparent() -> World:
    """The same, but the handle is on a branch, and the past before the branch is the parent's."""
    world = one_parent()
    run(world.backend, lifecycle.branch(world.source, "middle", at=None))
    run(world.backend, say("middle", world.settings, {"role": "user", "content": "four"}))
    middle = run(world.backend, lifecycle.opened("middle", world.settings, must_exist=True))
    return world._replace(source=middle)


Play = Callable[[World], Steps[Any]]


def branches(world: World) -> Steps[Any]:
    return lifecycle.branch(world.source, "child", at=BRANCHED_AT)


def deletes(world: World) -> Steps[None]:
    return lifecycle.delete("parent", world.settings, reason="")


def deletes_both(world: World) -> Steps[None]:
    yield from lifecycle.delete("middle", world.settings, reason="")
    yield from lifecycle.delete("parent", world.settings, reason="")


def recreates(world: World) -> Steps[None]:
    yield from lifecycle.delete("parent", world.settings, reason="")
    for text in ("new one", "new two", "new three"):
        yield from say("parent", world.settings, {"role": "user", "content": text})


def uses_child(world: World) -> Steps[int]:
    """Open the branch if it is there, and say something in it."""
    replica = yield from lifecycle.opened("child", world.settings, must_exist=True)
    (answer,) = yield from replica.write([writing.say(replica, SAID[2:])])
    if isinstance(answer, int):
        return answer
    raise answer


def creates_child(world: World) -> Steps[None]:
    """Begin a session under the name that the branch is to have."""
    replica = yield from lifecycle.opened("child", world.settings, must_exist=False)
    for message in SAID[:BRANCHED_AT]:
        (answer,) = yield from replica.write([writing.say(replica, [message])])
        if not isinstance(answer, int):
            raise answer


def staged(
    world: Callable[[], World], plays: Sequence[Play], *, lives: Sequence[int] = ()
) -> Iterator[tuple[str, World, Sequence[Actor]]]:
    """Yield every order of some plays in a world, with the world as it was left."""
    template = world()
    current = template

    def scene() -> Sequence[Actor]:
        nonlocal current
        # The replica that a branch is made from is only read, so the copies can share it.
        current = template._replace(backend=copied(template.backend))
        return [
            Actor(current.backend, play(current), lives=life)
            for play, life in zip(plays, lives or [NEVER] * len(plays), strict=True)
        ]

    for order, actors in schedules(scene):
        yield order, current, actors


def check(order: str, world: World, branch: Actor, others: Sequence[Actor]) -> None:
    """Ask whether everything acknowledged is there, and whether the rest can be cleared away."""
    for actor in (branch, *others):
        assert not isinstance(actor.error, DamagedError), f"{order}: {actor.error!r}"
    store = world.store
    if branch.acknowledged:
        child = store.resume("child")
        assert child.messages()[:BRANCHED_AT] == SAID[:BRANCHED_AT], order
        child.verify()
        assert not others[0].acknowledged, f"{order}: a session with a living branch was deleted"
        store.resume("parent").verify()
    elif branch.done:
        assert "child" not in names(store), f"{order}: a branch that was refused is there"
    check_clearing(order, world)


def check_clearing(order: str, world: World) -> None:
    """Delete all that is shown, twice over: whatever is left unfinished must not stand in the way.

    In the first round a session may still be needed by one that is deleted after it.
    """
    store = world.store
    for _ in range(3):
        for name in names(store):
            try:
                store.delete(name)
            except (InUseError, NotFoundError):
                pass
            except DamagedError as error:
                raise AssertionError(f"{order}: {name} can not be deleted") from error
    assert names(store) == [], f"{order}: it can not be cleared"
    fresh = store.session("parent")
    fresh.append({"role": "user", "content": "a new life"})
    fresh.branch("another").verify()


def names(store: Store) -> list[str]:
    return [head.stream for head in store.sessions()]


@pytest.mark.parametrize(
    ("world", "other"),
    [(one_parent, deletes), (one_parent, recreates), (grandparent, deletes_both)],
)
def test_no_order_of_branching_and_deleting_loses_a_branch_or_leaves_a_wreck(
    world: Callable[[], World], other: Play
) -> None:
    ends = set()
    for order, left, (branch, deletion) in staged(world, [branches, other]):
        check(order, left, branch, [deletion])
        ends.add((branch.acknowledged, deletion.acknowledged))
    assert ends == {(True, False), (False, True)}, "each is seen to win"
