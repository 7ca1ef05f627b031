"""Structural deltas between JSON trees. Pure.

A delta is a list of edits, each `[path, "=", new]`, `[path, "-"]` or
`[path, "~", start, removed, added]`; the last one splices a list or a text. A delta is used only
after applying it reproduced the new tree byte for byte: a bug in the diff cannot corrupt a value.
"""

from typing import Any, NamedTuple

from perdure.journal.codec import decode_tree, encode_tree

CACHED_VALUES_MAX = 256  # values; bounds the bookkeeping where values are tiny

CACHED_BYTES_MAX = 8 * 2**20  # bytes; enough for the few documents that a session works on


class CachedValue(NamedTuple):
    """A complete value, as of the position of one of its versions."""

    position: int
    data: bytes


class ValueCache:
    """The few documents that a session works on; the oldest are evicted beyond the limits.

    Readers and the writer of a session share it. Each item holds the position of its version, so
    an outdated item is never returned and does no harm.
    """

    def __init__(self) -> None:
        self._values: dict[str, CachedValue] = {}
        self._bytes = 0

    def get(self, key: str, position: int) -> bytes | None:
        """Return the complete value if it is cached as of exactly this position."""
        cached = self._values.get(key)
        return cached.data if cached is not None and cached.position == position else None

    def put(self, key: str, cached: CachedValue) -> None:
        """Cache a value, and evict the oldest beyond the limits of bytes or values."""
        replaced = self._values.pop(key, None)
        self._values[key] = cached
        self._bytes += len(cached.data) - (len(replaced.data) if replaced else 0)
        while self._bytes > CACHED_BYTES_MAX or len(self._values) > CACHED_VALUES_MAX:
            oldest = next(iter(tuple(self._values)))
            if oldest == key:
                break
            self._bytes -= len(self._values.pop(oldest).data)


# deltas; an upper bound for what reading a value costs beyond its complete version
DELTA_CHAIN_MAX = 16

DELTA_BYTES_MIN = 256  # bytes; below this, a delta's overhead exceeds its savings

TEXT_SPLICE_MIN = 64  # characters; shorter texts are replaced whole


Edit = list[Any]


class ValueState(NamedTuple):
    """The state of a key: its version, and the positions of its complete version and its deltas."""

    version: int
    chain: tuple[int, ...]
    deleted: bool = False

    @property
    def position(self) -> int:
        """The position of the newest version."""
        return self.chain[-1]


def make_delta(old: bytes, new: bytes) -> list[Edit] | None:
    """Return edits that turn one encoded tree into the other, or None if no delta pays off."""
    if len(new) < DELTA_BYTES_MIN:
        return None
    after = decode_tree(new)
    # Equal parts are skipped at first, for a tenth of the time. What is equal and still differs, as
    # 1 and 1.0 do, shows when the delta is tried.
    for diff in (_diff_unequal, _diff):
        edits: list[Edit] = []
        before = decode_tree(old)
        diff(before, after, [], edits)
        if len(encode_tree(edits)) * 2 > len(new):
            return None
        if encode_tree(_apply(before, edits)) == new:
            return edits
    return None


def apply_delta(old: bytes, edits: list[Edit]) -> bytes:
    """Apply edits to an encoded tree and return the result, encoded."""
    return encode_tree(_apply(decode_tree(old), edits))


def _apply(tree: Any, edits: list[Edit]) -> Any:
    holder = [tree]  # A list, so that an empty path can replace the root.
    for path, operation, *arguments in edits:
        target: Any = holder
        last: Any = 0
        for step in path:
            target, last = target[last], step
        if operation == "=":
            target[last] = arguments[0]
        elif operation == "-":
            del target[last]
        else:
            start, removed, added = arguments
            whole = target[last]
            target[last] = whole[:start] + added + whole[start + removed :]
    return holder[0]


def _diff_unequal(old: Any, new: Any, path: list[Any], edits: list[Edit]) -> None:
    """As `_diff`, without looking into equal parts."""
    kind = type(new)
    if kind is dict and type(old) is dict:
        edits.extend([[*path, key], "-"] for key in old if key not in new)
        for key, item in new.items():
            if key not in old:
                edits.append([[*path, key], "=", item])
            elif old[key] != item:
                _diff_unequal(old[key], item, [*path, key], edits)
    elif kind is list and type(old) is list and len(old) == len(new):
        for index, item in enumerate(new):
            if old[index] != item:
                _diff_unequal(old[index], item, [*path, index], edits)
    else:
        _diff(old, new, path, edits)


def _diff(old: Any, new: Any, path: list[Any], edits: list[Edit]) -> None:
    kind = type(new)
    if type(old) is not kind:
        edits.append([path, "=", new])
    elif kind is dict:
        _diff_dicts(old, new, path, edits)
    elif kind is list:
        _diff_lists(old, new, path, edits)
    elif kind is str and len(new) >= TEXT_SPLICE_MIN:
        if old != new:
            edits.append([path, "~", *_splice(old, new)])
    elif not _is_same_json(old, new):
        edits.append([path, "=", new])


def _diff_dicts(old: Any, new: Any, path: list[Any], edits: list[Edit]) -> None:
    edits.extend([[*path, key], "-"] for key in old if key not in new)
    for key, item in new.items():
        if key in old:
            _diff(old[key], item, [*path, key], edits)
        else:
            edits.append([[*path, key], "=", item])


def _diff_lists(old: Any, new: Any, path: list[Any], edits: list[Edit]) -> None:
    if len(old) == len(new):
        for index, item in enumerate(new):
            _diff(old[index], item, [*path, index], edits)
    else:
        edits.append([path, "~", *_splice(old, new)])


def _splice(old: Any, new: Any) -> tuple[int, int, Any]:
    """Return where two lists or texts differ: start, removed length, and added items."""
    shorter = min(len(old), len(new))
    if type(new) is str:
        start = _common_prefix(old, new, shorter)
        tail = _common_prefix(old[::-1], new[::-1], shorter - start)
        return start, len(old) - start - tail, new[start : len(new) - tail]
    start = 0
    while start < shorter and _is_same_json(old[start], new[start]):
        start += 1
    tail = 0
    while tail < shorter - start and _is_same_json(old[-1 - tail], new[-1 - tail]):
        tail += 1
    return start, len(old) - start - tail, new[start : len(new) - tail]


def _common_prefix(old: str, new: str, most: int) -> int:
    """Return the length of the common prefix, by binary search: comparing slices is fast."""
    least = 0
    while least < most:
        middle = (least + most + 1) // 2
        if old[least:middle] == new[least:middle]:
            least = middle
        else:
            most = middle - 1
    return least


def _is_same_json(old: Any, new: Any) -> bool:
    """Whether two values are equal as JSON: 1, 1.0 and true differ, as do 0.0 and -0.0."""
    kind = type(new)
    if type(old) is not kind:
        return False
    if kind is str or kind is int:
        return bool(old == new)
    return encode_tree(old) == encode_tree(new)
