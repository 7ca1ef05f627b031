"""Branching against deleting, creating and using, in every order of their requests.

Each order ends with the same questions: what was acknowledged is there and whole, what was
refused left nothing that stands in the way, and no order looks like damage.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest

from perdure.backends.memory import MemoryBackend
from perdure.core import lifecycle
from perdure.core import messages as messages_module
from perdure.core.replica import Replica
from perdure.core.settings import Settings
from perdure.errors import (
    ConflictError,
    DamagedError,
    InUseError,
    NotFoundError,
    PerdureError,
    UsageError,
)
from perdure.journal import chain
from perdure.journal.requests import Commit, Steps
from perdure.sync.store import Store
from tests.core.schedules import NEVER, Actor, copied, drawn, run, schedules, settings

SAID = [{"role": "user", "content": text} for text in ("one", "two", "three")]
BRANCHED_AT = 2
LONGEST = 16  # At least as many requests as a branching or a deletion makes.


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
    replica = yield from lifecycle.open_session(name, settings, must_exist=False)
    (answer,) = yield from replica.write(
        [messages_module.append_messages(replica, messages or SAID[:1])]
    )
    if isinstance(answer, PerdureError):
        raise answer
    return answer  # type: ignore[no-any-return] # the answers of a batch have different types


def one_parent() -> World:
    """A session `parent` with three messages, open in the hands of the one who will branch it."""
    backend, with_settings = MemoryBackend(), settings()
    run(backend, say("parent", with_settings, *SAID))
    source = run(backend, lifecycle.open_session("parent", with_settings, must_exist=True))
    return World(backend, with_settings, source)


def grandparent() -> World:
    """The same, but the handle is on a branch, and the past before the branch is the parent's."""
    world = one_parent()
    run(world.backend, lifecycle.create_branch(world.source, "middle", at=None))
    run(world.backend, say("middle", world.settings, {"role": "user", "content": "four"}))
    middle = run(world.backend, lifecycle.open_session("middle", world.settings, must_exist=True))
    return world._replace(source=middle)


Play = Callable[[World], Steps[Any]]


def branches(world: World) -> Steps[Any]:
    return lifecycle.create_branch(world.source, "child", at=BRANCHED_AT)


def deletes(world: World) -> Steps[None]:
    return lifecycle.delete_session("parent", world.settings, reason="")


def deletes_both(world: World) -> Steps[None]:
    yield from lifecycle.delete_session("middle", world.settings, reason="")
    yield from lifecycle.delete_session("parent", world.settings, reason="")


def recreates(world: World) -> Steps[None]:
    yield from lifecycle.delete_session("parent", world.settings, reason="")
    yield from say("parent", world.settings, {"role": "user", "content": "another life"})


def uses_child(world: World) -> Steps[int]:
    """Open the branch if it is there, and say something in it."""
    replica = yield from lifecycle.open_session("child", world.settings, must_exist=True)
    (answer,) = yield from replica.write([messages_module.append_messages(replica, SAID[2:])])
    if isinstance(answer, PerdureError):
        raise answer
    return answer  # type: ignore[no-any-return] # the answers of a batch have different types


def creates_child(world: World) -> Steps[None]:
    """Begin a session under the name that the branch is to have."""
    replica = yield from lifecycle.open_session("child", world.settings, must_exist=False)
    for message in SAID[:BRANCHED_AT]:
        (answer,) = yield from replica.write([messages_module.append_messages(replica, [message])])
        if isinstance(answer, PerdureError):
            raise answer


def clings_to_child(world: World) -> Steps[int]:
    """Hold a handle on the name from before, and when somebody was first, say it once more."""
    replica = run(world.backend, lifecycle.open_session("child", world.settings, must_exist=False))

    def insist() -> Steps[int]:
        plan = messages_module.append_messages(replica, SAID[2:])
        (answer,) = yield from replica.write([plan])
        if isinstance(answer, PerdureError):
            (answer,) = yield from replica.write([plan])
        if isinstance(answer, PerdureError):
            raise answer
        return answer  # type: ignore[no-any-return] # the answers of a batch have different types

    return insist()


class Stage:
    """A world and the plays in it, set up anew for each order."""

    def __init__(
        self, world: Callable[[], World], plays: Sequence[Play], *, lives: Sequence[int] = ()
    ) -> None:
        self._template = world()
        self._plays = plays
        self._lives = lives or [NEVER] * len(plays)
        self._ends: set[str] = set()
        self.world = self._template

    def __call__(self) -> Sequence[Actor]:
        # The replica that a branch is made from is only read, so the copies can share it.
        self.world = self._template._replace(backend=copied(self._template.backend))
        return [
            Actor(self.world.backend, play(self.world), lives=life)
            for play, life in zip(self._plays, self._lives, strict=True)
        ]

    def ends_anew(self, actors: Sequence[Actor]) -> bool:
        """Whether no order before has ended like this one, so that it needs to be looked at."""
        states = [(actor.done, type(actor.error).__name__) for actor in actors]
        end = repr((states, kinds(self.world)))
        anew = end not in self._ends
        self._ends.add(end)
        return anew


def check(order: str, world: World, branch: Actor, deletions: Sequence[Actor]) -> None:
    """Ask whether everything acknowledged is there, and whether the rest can be cleared away."""
    for actor in (branch, *deletions):
        assert not isinstance(actor.error, DamagedError), f"{order}: {actor.error!r}"
    store = world.store
    delete_quietly(store, "parent")
    if branch.acknowledged:
        child = store.resume("child")
        assert child.messages()[:BRANCHED_AT] == SAID[:BRANCHED_AT], order
        child.verify()
        assert not any(deletion.acknowledged for deletion in deletions), order
        store.resume("parent").verify()
    elif branch.done:
        assert "child" not in names(store), f"{order}: a branch that was refused is there"
    check_clearing(order, store)


def check_clearing(order: str, store: Store) -> None:
    """Delete all that is shown: nothing that was left unfinished may stand in the way.

    In a first round a session may still be needed by one that is deleted after it.
    """
    for _ in range(3):
        for name in names(store):
            delete_quietly(store, name)
    assert names(store) == [], f"{order}: it can not be cleared"
    fresh = store.session("parent")
    fresh.append(SAID[0])
    fresh.branch("another").verify()


def delete_quietly(store: Store, name: str) -> None:
    with contextlib.suppress(InUseError, NotFoundError):
        store.delete(name)


def names(store: Store) -> list[str]:
    return [head.id for head in store.sessions()]


@pytest.mark.parametrize(
    ("world", "other"),
    [(one_parent, deletes), (one_parent, recreates), (grandparent, deletes_both)],
)
def test_no_order_of_branching_and_deleting_loses_a_branch_or_leaves_a_wreck(
    world: Callable[[], World], other: Play
) -> None:
    stage = Stage(world, [branches, other])
    ends = set()
    for order, (branch, deletion) in schedules(stage):
        ends.add((branch.acknowledged, deletion.acknowledged))
        if stage.ends_anew([branch, deletion]):
            check(order, stage.world, branch, [deletion])
    assert ends == {(True, False), (False, True)}, "each is seen to win, and one always does"


@pytest.mark.parametrize("other", [deletes, recreates])
def test_a_brancher_that_dies_anywhere_leaves_nothing_that_blocks(other: Play) -> None:
    seen = 0
    for lives in range(LONGEST):
        stage = Stage(one_parent, [branches, other], lives=[lives, NEVER])
        for order, (branch, deletion) in schedules(stage):
            if stage.ends_anew([branch, deletion]):
                check(f"{order} dead after {lives}", stage.world, branch, [deletion])
            seen += not branch.done
    assert seen > LONGEST, "it died in the middle"


def test_a_deleter_that_dies_anywhere_takes_no_branch_with_it() -> None:
    seen = 0
    for lives in range(LONGEST):
        stage = Stage(one_parent, [branches, deletes], lives=[NEVER, lives])
        for order, (branch, deletion) in schedules(stage):
            if stage.ends_anew([branch, deletion]):
                check(f"{order} dead after {lives}", stage.world, branch, [deletion])
            seen += not deletion.done
    assert seen > LONGEST, "it died in the middle"


def test_two_deleters_do_not_open_a_gap_for_each_other() -> None:
    stage = Stage(one_parent, [branches, deletes, deletes])
    for order, (branch, *deletions) in drawn(stage, seed=1, count=1_500):
        assert sum(deletion.acknowledged for deletion in deletions) == (not branch.acknowledged)
        if stage.ends_anew([branch, *deletions]):
            check(order, stage.world, branch, deletions)


def test_what_others_say_in_a_branch_stays_when_its_maker_gives_way() -> None:
    stage = Stage(one_parent, [branches, deletes, uses_child])
    said = 0
    for order, (branch, deletion, user) in drawn(stage, seed=2, count=1_500):
        assert branch.acknowledged != deletion.acknowledged, order
        said += branch.acknowledged and user.acknowledged
        if stage.ends_anew([branch, deletion, user]):
            check_said(order, stage.world.store, [branch, deletion, user])
    assert said, "it was said in a branch"


def test_what_others_say_in_a_branch_stays_when_its_maker_is_dead() -> None:
    """The branch begins in the view of a deletion that has looked, or is about to look."""

    class Begun(Stage):
        def __call__(self) -> Sequence[Actor]:
            actors = super().__call__()
            branch = actors[0]
            while not isinstance(branch.request, Commit) or branch.request.append.begins is False:
                branch.step()
            branch.lives = 1
            return actors

    stage = Begun(one_parent, [branches, deletes, uses_child])
    ends = set()
    for order, (branch, deletion, user) in schedules(stage):
        assert not branch.done
        ends.add((deletion.acknowledged, user.acknowledged))
        if stage.ends_anew([branch, deletion, user]):
            check_said(order, stage.world.store, [branch, deletion, user])
    assert ends == {(True, False), (False, True), (False, False)}


def test_a_handle_from_before_a_branch_took_its_name_writes_only_into_a_complete_one() -> None:
    stage = Stage(one_parent, [branches, deletes, clings_to_child])
    ends = set()
    for order, (branch, deletion, user) in drawn(stage, seed=6, count=2_500):
        ends.add((branch.acknowledged, type(user.error)))
        if stage.ends_anew([branch, deletion, user]):
            check_said(order, stage.world.store, [branch, deletion, user])
    assert {(True, type(None)), (True, NotFoundError), (False, NotFoundError)} <= ends


def check_said(order: str, store: Store, actors: Sequence[Actor]) -> None:
    """Ask whether what the last actor said is there, whatever became of the branch."""
    for actor in actors:
        assert not isinstance(actor.error, DamagedError), f"{order}: {actor.error!r}"
    delete_quietly(store, "parent")
    if actors[-1].acknowledged:
        child = store.resume("child")
        assert child.messages()[-1:] == SAID[2:], order
        child.verify()
    check_clearing(order, store)


def test_of_two_branches_under_one_name_one_comes_to_be() -> None:
    stage = Stage(one_parent, [branches, branches])
    for order, actors in schedules(stage):
        assert sorted(actor.acknowledged for actor in actors) == [False, True], order
        assert all(isinstance(actor.error, UsageError | None) for actor in actors), order
        child = stage.world.store.resume("child")
        assert child.messages() == SAID[:BRANCHED_AT]
        child.verify()
        check_clearing(order, stage.world.store)


def test_a_branch_and_a_new_session_of_the_same_name_do_not_mix() -> None:
    stage = Stage(one_parent, [branches, creates_child])
    ends = set()
    for order, actors in schedules(stage):
        branch, creation = actors
        assert all(
            isinstance(actor.error, UsageError | ConflictError | None) for actor in actors
        ), f"{order}: {[actor.error for actor in actors]}"
        child = stage.world.store.resume("child")
        expected = SAID[:BRANCHED_AT] if branch.acknowledged else []
        expected = expected + (SAID[:BRANCHED_AT] if creation.acknowledged else [])
        assert child.messages() == expected, order
        child.verify()
        ends.add((branch.acknowledged, creation.acknowledged))
        check_clearing(order, stage.world.store)
    assert ends == {(True, False), (False, True), (True, True)}, "in the last it used the branch"


def opens(name: str) -> Play:
    return lambda world: lifecycle.open_session(name, world.settings, must_exist=False)


@pytest.mark.parametrize(
    ("name", "other"),
    [("child", creates_child), ("child", branches), ("parent", deletes), ("parent", recreates)],
)
def test_opening_while_others_begin_branch_or_delete_is_never_damage(
    name: str, other: Play
) -> None:
    stage = Stage(one_parent, [opens(name), other])
    for order, (opening, second) in schedules(stage):
        assert second.acknowledged, f"{order}: {second.error!r}"
        assert isinstance(opening.error, NotFoundError | None), f"{order}: {opening.error!r}"


def deletes_middle(world: World) -> Steps[None]:
    return lifecycle.delete_session("middle", world.settings, reason="")


def test_deleting_a_branch_and_its_parent_in_any_order_leaves_no_keep_behind() -> None:
    stage = Stage(grandparent, [deletes_middle, deletes])
    for order, (first, second) in schedules(stage):
        assert first.acknowledged, f"{order}: {first.error!r}"
        assert isinstance(second.error, InUseError | None), f"{order}: {second.error!r}"
        check_clearing(order, stage.world.store)


def test_a_deleter_of_a_branch_that_dies_anywhere_leaves_its_parent_deletable() -> None:
    for lives in range(LONGEST):
        stage = Stage(grandparent, [deletes_middle], lives=[lives])
        for order, (deletion,) in schedules(stage):
            store = stage.world.store
            if "middle" not in names(store):
                store.session("middle").append(SAID[0])  # A new session, that shares no past.
                store.delete("parent")
                assert store.resume("middle").messages() == SAID[:1], order
            assert deletion.done or lives < LONGEST - 1, "it was followed to the end"


def test_orders_that_are_left_out_end_like_those_that_are_tried() -> None:
    """The reduction is what makes all orders affordable, so it is compared with not reducing."""
    stage = Stage(one_parent, [branches, deletes], lives=[9, NEVER])

    def ends(*, reduced: bool) -> tuple[int, set[tuple[str, ...]]]:
        found, count = set(), 0
        for _, actors in schedules(stage, reduced=reduced):
            count += 1
            states = [f"{actor.done} {type(actor.error).__name__}" for actor in actors]
            found.add((*states, *map(repr, kinds(stage.world))))
        return count, found

    tried, reached = ends(reduced=True)
    all_tried, all_reached = ends(reduced=False)
    assert reached == all_reached
    assert tried * 10 < all_tried, "and it leaves many out"


def kinds(world: World) -> list[tuple[str, list[str], list[str]]]:
    """What is in a store, without ids, salts and digests."""
    return [
        (
            head.stream,
            sorted(head.labels),
            [
                chain.verify_entry(head.stream, entry).header.kind
                for entry in world.backend.read(head.stream)
            ],
        )
        for head in world.backend.streams()
    ]
