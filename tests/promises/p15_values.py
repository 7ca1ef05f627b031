"""P15: a value comes back exactly as it was, or the call that gives it raises and writes nothing.

A block of values goes through the codec, through messages and through the versions of one key, and
is read by handles that did not write it. Between them, values that must be refused are tried.
"""

import dataclasses
import random
import tempfile
from collections.abc import Iterator
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import perdure
from perdure.errors import PerdureError, UsageError
from perdure.journal.codec import Codec, decode_tree, encode_tree
from tests.promises.p15_drawing import MORE_TYPES, TYPES, Box, Drawing, Model, Refusal
from tests.promises.promise import Promise, Trial, in_time

BLOCK = 24
SQLITE_EVERY = 8  # Blocks; the others are in memory, which is faster and stores the same bytes.


def same(one: Any, two: Any) -> bool:
    """Equal in every respect that a program could see."""
    if type(one) is not type(two):
        return False
    if isinstance(one, dict):
        return list(one) == list(two) and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, Model | Box):
        return same(one.__dict__, two.__dict__)
    if dataclasses.is_dataclass(one):
        return all(
            same(getattr(one, f.name), getattr(two, f.name)) for f in dataclasses.fields(one)
        )
    if isinstance(one, float):
        return bool(one.hex() == two.hex())
    if isinstance(one, Decimal):
        return bool(one.as_tuple() == two.as_tuple())
    if isinstance(one, datetime):
        return _same_moment(one, two)
    return bool(one == two)


def _same_moment(one: datetime, two: datetime) -> bool:
    naive = one.replace(tzinfo=None) == two.replace(tzinfo=None) and one.fold == two.fold
    return naive and type(one.tzinfo) is type(two.tzinfo) and _zone(one) == _zone(two)


def _zone(moment: datetime) -> Any:
    zone = moment.tzinfo
    if zone is None:
        return None
    if isinstance(zone, ZoneInfo):
        return zone.key
    assert isinstance(zone, timezone)
    return zone.utcoffset(None), zone.tzname(None)


def through_codec(codec: Codec, value: Any) -> str:
    """Say what is wrong with a value that was packed, encoded, decoded and unpacked."""
    back = codec.unpack(decode_tree(encode_tree(codec.pack(value))))
    return "" if same(value, back) else f"{value!r} came back as {back!r}"


class Block:
    """Values on their way through one session."""

    def __init__(self, store: perdure.Store, drawing: Drawing) -> None:
        self._store = store
        self._codec = store._settings.codec
        self._session = store.session("values")
        self._drawing = drawing
        self.values: list[Any] = []

    def write(self) -> Iterator[Trial]:
        """Store values that have nothing in common, then a series of related ones."""
        value = self._drawing.value()
        for number in range(BLOCK):
            yield self._stored(value)
            if number % 2:
                yield self._refused(self._drawing.refusal())
            if number < BLOCK // 3:
                value = self._drawing.value()
            elif number == BLOCK // 3:
                value = {"text": "a document that is long enough for deltas " * 8, "v": value}
            else:
                value = self._drawing.related(value)

    def _stored(self, value: Any) -> Trial:
        failure = through_codec(self._codec, value)
        self._session.append({"role": "user", "content": "", "value": value})
        version = self._session.set("key", value)
        self.values.append(value)
        if version != len(self.values):
            failure += f"; version {version} of {len(self.values)}"
        for back in (self._session.get("key"), (self._session.last_message or {}).get("value")):
            failure += "" if same(value, back) else f"; {value!r} is read as {back!r}"
        return Trial("a value", failure)

    def _refused(self, refusal: Refusal) -> Trial:
        before = self._session.position
        failure = _not_refused(lambda: self._codec.pack(refusal.value), refusal.path)
        inside = refusal.path_in_message
        failure += _not_refused(
            lambda: self._session.append({"role": "user", "content": "", "v": refusal.value}),
            inside,
        )
        failure += _not_refused(lambda: self._session.set("key", refusal.value), refusal.path)
        if self._store.session("values").position != before:
            failure += "; something was written"
        return Trial(f"a refusal at {refusal.path[:60]}", failure)

    def read_again(self) -> Iterator[Trial]:
        """Read everything by a handle that knows nothing but what is stored.

        Only what is wrong is yielded: these values were counted when they were given.
        """
        session = self._store.session("values")
        session.verify()
        messages = [message["value"] for message in session.messages()]
        if len(messages) != len(self.values):
            yield Trial("messages", f"{len(messages)} of {len(self.values)}")
        for number, (value, message) in enumerate(zip(self.values, messages, strict=False)):
            version = session.get("key", version=number + 1)
            if not (same(value, message) and same(value, version)):
                yield Trial("read again", f"{value!r}: {message!r}, {version!r}")


def _not_refused(give: Any, path: str) -> str:
    try:
        give()
    except UsageError as error:
        return "" if error.path == path else f"; refused at {error.path!r}, not at {path!r}"
    except PerdureError as error:
        return f"; refused with {error!r}"
    except Exception as error:  # noqa: BLE001 - an error of another kind is the finding
        return f"; raised {error!r}"
    return "; it was taken"


def blocks(seed: int) -> Iterator[Iterator[Trial]]:
    """Yield the trials of one block after another, for ever; every second one has more types."""
    drawings = [Drawing(random.Random(seed), more=more) for more in (False, True)]
    number = 0
    while True:
        with tempfile.TemporaryDirectory(prefix="perdure-p15-") as name:
            path = Path(name) / "store.db"
            files = f"files:{path.with_name('state')}"
            addresses: dict[int, str | Path] = {0: path, 1: files}
            address = addresses.get(number % SQLITE_EVERY, "memory:")
            more = number // 2 % 2
            with perdure.open(address, types=(TYPES, MORE_TYPES)[more]) as store:
                block = Block(store, drawings[more])
                yield block.write()
                yield block.read_again()
        number += 1


def trials(seed: int, deadline: float) -> Iterator[Trial]:
    """Yield one trial for each value that was given."""
    for block in blocks(seed):
        for trial in block:
            if not in_time(deadline):
                return
            yield trial


PROMISE = Promise("P15", "Values round-trip exactly or append raises", 200_000, trials)
