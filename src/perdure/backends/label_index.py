"""An index of streams in memory: their names, in order, by label and by the values of fields.

In: names and labels of streams that changed. Out: slices of sorted lists, found by bisection, so
that a page of a listing costs the same however many streams there are.

Editing: a signal handler may raise between any two steps of `update`. So a stream stays in the set
of changed ones until its lists are right, and each step can be repeated.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterator
from typing import Any

from perdure.backends.fields import FIELD_MARK, FieldOrder
from perdure.backends.protocol import DELETED, StreamFilter

ALL = 0  # in place of a label: all streams

LIVE = 1  # in place of a label: the streams that are not deleted

_GONE = frozenset({DELETED})


class LabelIndex:
    """Sorted names of streams. `labels_of` returns the labels of a stream, None if it is gone."""

    def __init__(self, labels_of: Callable[[str], frozenset[str] | None]) -> None:
        self.changed: set[str] = set()
        """Streams to index again, before the next listing."""
        self._labels_of = labels_of
        self._indexed: dict[str, set[str | int]] = {}
        self._names: dict[str | int, list[str]] = {}
        self._values: dict[str, list[tuple[str, str]]] = {}

    def names(self, choice: StreamFilter, after: str = "") -> Iterator[str]:
        """Yield names of streams that may match, in order: by the rarest label, or all."""
        self._update()
        keys: Collection[str | int] = choice.labels or {LIVE if choice.only_live else ALL}
        names = min((self._names.get(key, []) for key in keys), key=len)
        start = max(bisect_right(names, after), bisect_left(names, choice.prefix))
        for number in range(start, len(names)):
            if not names[number].startswith(choice.prefix):
                return
            yield names[number]

    def ordered(self, order: FieldOrder) -> Iterator[str]:
        """Yield the names of streams in the order of a field."""
        self._update()
        values = self._values.get(order.field, [])
        first = bisect_left(values, (order.low, ""))
        last = bisect_left(values, (order.high, "")) if order.high else len(values)
        if order.after is not None and order.reverse:
            last = min(last, bisect_left(values, order.after))
        elif order.after is not None:
            first = max(first, bisect_right(values, order.after))
        numbers = range(first, last)
        for number in reversed(numbers) if order.reverse else numbers:
            yield values[number][1]

    def _update(self) -> None:
        for name in [*self.changed]:
            labels = self._labels_of(name)
            new: set[str | int] = set(labels or ())
            if labels is not None:
                new |= {ALL} if labels == _GONE else {ALL, LIVE}
            old = self._indexed.get(name, set())
            self._indexed[name] = old | new  # What an interruption leaves is removed next time.
            for label in old - new:
                self._remove(label, name)
            for label in new:
                self._add(label, name)
            self._indexed[name] = new
            if not new:
                del self._indexed[name]
            self.changed.discard(name)

    def _add(self, label: str | int, name: str) -> None:
        _insert(self._names.setdefault(label, []), name)
        if isinstance(label, str) and FIELD_MARK in label:
            field, _, value = label.partition(FIELD_MARK)
            _insert(self._values.setdefault(field, []), (value, name))

    def _remove(self, label: str | int, name: str) -> None:
        _delete(self._names, label, name)
        if isinstance(label, str) and FIELD_MARK in label:
            field, _, value = label.partition(FIELD_MARK)
            _delete(self._values, field, (value, name))


def _insert(items: list[Any], item: Any) -> None:
    at = bisect_left(items, item)
    if at == len(items) or items[at] != item:
        insort(items, item)


def _delete(lists: dict[Any, list[Any]], key: str | int, item: Any) -> None:
    items = lists.get(key, [])
    at = bisect_left(items, item)
    if at < len(items) and items[at] == item:
        del items[at]
    if not items:
        lists.pop(key, None)
