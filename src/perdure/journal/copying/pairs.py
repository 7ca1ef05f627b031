"""Pair each session to copy with the target's session of the same name. Pure.

Both stores list by name in the same order, so the two listings are merged, and only one page of
each is held in memory.
"""

from collections import deque
from collections.abc import Collection
from typing import NamedTuple

from perdure.backends.protocol import Head
from perdure.errors import DamagedError
from perdure.journal.copying import requests
from perdure.journal.copying.requests import CopySteps, Side

PAGE = 256  # heads per request


class Selection(NamedTuple):
    """The sessions to copy: those with these ids, or all that have the prefix and the labels."""

    prefix: str = ""
    labels: tuple[str, ...] = ()
    sessions: tuple[str, ...] = ()


class StreamPair(NamedTuple):
    """The head of a source stream, and of the target's stream of the same name, if any."""

    head: Head
    target: Head | None


class HeadListing:
    """The heads of one store, one by one; an unreadable head is returned as its error."""

    def __init__(self, side: Side, prefix: str, labels: Collection[str] = ()) -> None:
        self._side = side
        self._prefix = prefix
        self._labels = labels
        self._after = ""
        self._ended = False
        self._waiting: deque[Head | DamagedError] = deque()

    def next(self) -> CopySteps[Head | DamagedError | None]:
        """Return the next head or its error, or None at the end."""
        while not self._waiting and not self._ended:
            yield from self._page()
        return self._waiting.popleft() if self._waiting else None

    def _page(self) -> CopySteps[None]:
        page = yield from requests.heads(
            self._side, prefix=self._prefix, after=self._after, labels=self._labels, limit=PAGE
        )
        self._waiting.extend(page.heads)
        if page.heads:
            self._after = page.heads[-1].stream
        if page.damage is None:
            self._ended = len(page.heads) < PAGE
            return
        self._waiting.append(page.damage)
        # A damaged head is skipped. If the list itself cannot be read, it ends here.
        if page.damage.stream <= self._after or not page.damage.stream.startswith(self._prefix):
            self._ended = True
        else:
            self._after = page.damage.stream


class StreamPairs:
    """The selected sessions, in order."""

    def __init__(self, selection: Selection) -> None:
        self._named = deque(dict.fromkeys(selection.sessions)) if selection.sessions else None
        self._source = HeadListing("source", selection.prefix, selection.labels)
        self._target = HeadListing("target", selection.prefix)
        self._target_head: Head | DamagedError | None = None
        self._started = False
        self.missing: list[str] = []
        """Selected ids that the source does not have."""

    def next(self) -> CopySteps[StreamPair | DamagedError | None]:
        """Return the next pair, the error of an unreadable one, or None at the end."""
        if self._named is not None:
            return (yield from self._next_named(self._named))
        head = yield from self._source.next()
        if head is None or isinstance(head, DamagedError):
            return head
        target = yield from self._find_target(head.stream)
        return target if isinstance(target, DamagedError) else StreamPair(head, target)

    def _next_named(self, names: deque[str]) -> CopySteps[StreamPair | DamagedError | None]:
        while names:
            name = names.popleft()
            try:
                head = yield from requests.head("source", name)
                if head is None and (yield from requests.read("source", name, after=0, limit=1)):
                    head = yield from requests.head(
                        "source", name
                    )  # It may have been created since.
                    if head is None:
                        return DamagedError(name, 0, "it has entries and no head")
                if head is not None:
                    return StreamPair(head, (yield from requests.head("target", name)))
            except DamagedError as error:
                return error
            self.missing.append(name)
        return None

    def _find_target(self, name: str) -> CopySteps[Head | DamagedError | None]:
        """Advance the target's listing to a name; return its head or error, or None."""
        while not self._started or (
            self._target_head is not None and self._target_head.stream < name
        ):
            self._started = True
            self._target_head = yield from self._target.next()
        head = self._target_head
        return head if head is not None and head.stream == name else None
