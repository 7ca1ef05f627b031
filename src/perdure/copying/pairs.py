"""Which sessions are to be copied, each with what the target has under its name. Pure.

Both stores list by name in the same order, so two listings side by side make the pairs, and nothing
is held in memory but a page of each.
"""

from collections import deque
from collections.abc import Collection
from typing import NamedTuple

from perdure.backend import Head
from perdure.copying import asking as ask
from perdure.copying.asking import CopySteps, Side
from perdure.errors import DamagedError

PAGE = 256


class Selection(NamedTuple):
    """Which sessions are meant: those of these ids, or all that have the prefix and the labels."""

    prefix: str = ""
    labels: tuple[str, ...] = ()
    sessions: tuple[str, ...] = ()


class Pair(NamedTuple):
    """A stream of the source, and what the target has of it."""

    head: Head
    there: Head | None


class Listing:
    """The heads of one store, one by one, and in its place whatever could not be read."""

    def __init__(self, side: Side, prefix: str, labels: Collection[str] = ()) -> None:
        self._side = side
        self._prefix = prefix
        self._labels = labels
        self._after = ""
        self._ended = False
        self._waiting: deque[Head | DamagedError] = deque()

    def next(self) -> CopySteps[Head | DamagedError | None]:
        """Return the next one, None at the end."""
        while not self._waiting and not self._ended:
            yield from self._page()
        return self._waiting.popleft() if self._waiting else None

    def _page(self) -> CopySteps[None]:
        listed = yield from ask.heads(
            self._side, prefix=self._prefix, after=self._after, labels=self._labels, limit=PAGE
        )
        self._waiting.extend(listed.heads)
        if listed.heads:
            self._after = listed.heads[-1].stream
        if listed.damage is None:
            self._ended = len(listed.heads) < PAGE
            return
        self._waiting.append(listed.damage)
        # A damaged head is stepped over. Where the list itself can not be read, it ends here.
        if listed.damage.stream <= self._after or not listed.damage.stream.startswith(self._prefix):
            self._ended = True
        else:
            self._after = listed.damage.stream


class Pairs:
    """The sessions that are meant, in order."""

    def __init__(self, selection: Selection) -> None:
        self._named = deque(dict.fromkeys(selection.sessions)) if selection.sessions else None
        self._source = Listing("source", selection.prefix, selection.labels)
        self._target = Listing("target", selection.prefix)
        self._beside: Head | DamagedError | None = None
        self._begun = False
        self.missing: list[str] = []
        """Ids that were named, and that the source does not have."""

    def next(self) -> CopySteps[Pair | DamagedError | None]:
        """Return the next pair, what could not be read in its place, or None at the end."""
        if self._named is not None:
            return (yield from self._next_named(self._named))
        head = yield from self._source.next()
        if head is None or isinstance(head, DamagedError):
            return head
        there = yield from self._at(head.stream)
        return there if isinstance(there, DamagedError) else Pair(head, there)

    def _next_named(self, names: deque[str]) -> CopySteps[Pair | DamagedError | None]:
        while names:
            name = names.popleft()
            try:
                head = yield from ask.head("source", name)
                if head is None and (yield from ask.read("source", name, after=0, limit=1)):
                    head = yield from ask.head("source", name)  # It may have been begun since.
                    if head is None:
                        return DamagedError(name, 0, "it has entries and no head")
                if head is not None:
                    return Pair(head, (yield from ask.head("target", name)))
            except DamagedError as error:
                return error
            self.missing.append(name)
        return None

    def _at(self, name: str) -> CopySteps[Head | DamagedError | None]:
        """Return what the target lists under a name."""
        while not self._begun or (self._beside is not None and self._beside.stream < name):
            self._begun = True
            self._beside = yield from self._target.next()
        found = self._beside
        return found if found is not None and found.stream == name else None
