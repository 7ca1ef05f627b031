"""Many sessions in one store: opening, listing a page and appending, from 1,000 to a million.

Each size has a store of its own, and the sizes take turns, so that whatever else the machine does
hits all of them alike. Beside its sessions a store has half as many deleted ones, which come first
by id, and a few that have a label or a prefix for themselves and changed before all others. Its
sessions are described by three fields: ten have the same customer, a third the same state, and the
amount differs.
"""

import random
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import perdure
from benchmarks.report import Line, Part, Progress, table
from perdure.backends.addresses import open_backend
from perdure.backends.protocol import DELETED, ORDER, RECENT, Append, Backend
from perdure.core.state.fields import encode_value, labels_of
from perdure.journal import chain, codec
from perdure.journal.chain import EMPTY_CHAIN, PendingRecord, StreamIdentity
from perdure.journal.cipher import PlainCipher
from perdure.journal.ids import random_text
from perdure.journal.records import Content, Deleted, FieldsChanged, LabelsChanged, Message

SIZES = (1_000, 10_000, 100_000, 1_000_000)
AT_ONCE = 2_000  # Sessions in one append while a store is filled.
PAGE = 50
TENANTS = 3  # So few that even the smallest store has a whole page of each.
VIP_EVERY = 3
DELETED_EVERY = 2  # For so many sessions there is a deleted one.
OLD = 200
STATES = 3
CUSTOMER_SESSIONS = 10  # Sessions of one customer, which follow each other by number.
TIMES_MAX = 2.0  # So much slower the largest may be than the smallest.
NOISE = 0.002  # Seconds; scattered pages and a busy machine make so much of a difference.
COLD = ", cold"  # For the first time at a place: of a large store its pages come from the disk.

SAID = [
    {"role": "user", "content": "Draft a claims escalation checklist for a water damage claim."},
    {"role": "assistant", "content": "1. Confirm the policy. 2. Assign an adjuster within a day."},
]


def name_of(number: int) -> str:
    """Return the id of a session; those of one tenant share a prefix."""
    return f"tenant-{number % TENANTS:02}/claim-{number:07}"


def customer_of(number: int) -> str:
    """Return the customer of a session."""
    return f"c-{number // CUSTOMER_SESSIONS}"


def fill(backend: Backend, size: int, say: Callable[[str], object] = len) -> None:
    """Store so many sessions of two messages, as real entries, unless they are there."""
    last = name_of(size - 1)
    if any(head.stream == last for head in backend.streams(prefix=last, limit=1)):
        return
    appends, made = _appends(size), 0
    while chunk := list(islice(appends, AT_ONCE)):
        backend.append(chunk)
        made += len(chunk)
        if made % (50 * AT_ONCE) == 0:
            say(f"{made:,} sessions are made")


def _appends(size: int) -> Iterator[Append]:
    """Yield the appends that make a store, in their order in time."""
    for number in range(OLD):
        yield _append(f"old/claim-{number:07}", number, "legacy")
    for number in range(size // DELETED_EVERY):
        yield _append(f"archive/claim-{number:07}", number, DELETED)
    for number in range(size):
        labels = ["vip"] if number % VIP_EVERY == 0 else []
        amount = number * 7919 % size  # Each value once, in another order than that of the ids.
        fields: dict[str, str | int] = {
            "customer": customer_of(number),
            "state": number % STATES,
            "amount": amount,
        }
        yield _append(name_of(number), number, *labels, fields=fields)


def _append(
    name: str, number: int, *labels: str, fields: dict[str, str | int] | None = None
) -> Append:
    contents: list[Content] = [Message(message=message) for message in SAID]
    if DELETED in labels:
        contents = [Deleted(reason="retention")]
    elif labels:
        contents += [LabelsChanged(add=labels)]
    if fields is not None:
        contents += [FieldsChanged(fields=fields)]
    texts = {field: encode_value(value, field) for field, value in (fields or {}).items()}
    drafts = [
        PendingRecord(f".{random_text()}", content, codec.encode(content)) for content in contents
    ]
    at = chain.timestamp(1.7e9 + number)
    stream = StreamIdentity(name, random_text())
    entry, _ = chain.link_entry(stream, EMPTY_CHAIN, drafts, time=at, cipher=PlainCipher())
    return Append(name, [entry], labels_of(texts).union(labels))


class Subject:
    """A store of one size, and what is measured of it."""

    def __init__(self, address: str, size: int) -> None:
        self.size = size
        self._address = address
        self._store = perdure.open(address)
        self._draw = random.Random(size)
        self._new = 0
        self._run = random_text()

    def _any(self) -> str:
        return name_of(self._draw.randrange(self.size))

    def measures(self) -> Iterator[tuple[str, float]]:
        """Yield what each operation took, once."""
        store = self._store
        yield "open the store", _timed(lambda: perdure.open(self._address).close())
        name = self._any()
        yield "resume a session", _timed(lambda: store.resume(name))
        tenant = f"tenant-{self._draw.randrange(TENANTS):02}/"
        yield f"list {PAGE} by prefix", _timed(lambda: _page(store, prefix=tenant))
        yield f"list {PAGE} by label", _timed(lambda: _page(store, labels=["vip"]))
        start = self._any()
        yield f"list {PAGE} after one{COLD}", _timed(lambda: _page(store, after=start))
        yield f"list {PAGE} after one", _timed(lambda: _page(store, after=start))
        yield f"list {PAGE} after many deleted ones", _timed(lambda: _page(store))
        yield from self._by_fields(store)
        if RECENT in store.guarantees().capabilities:
            yield f"list {PAGE} most recent", _timed(lambda: _page(store, recent=True))
            found = _timed(lambda: _page(store, recent=True, labels=["vip"]))
            yield f"list {PAGE} most recent by label", found
            found = _timed(lambda: _page(store, recent=True, labels=["legacy"]))
            yield f"list {PAGE} most recent by label, {OLD} old ones", found
            found = _timed(lambda: _page(store, recent=True, prefix="old/"))
            yield f"list {PAGE} most recent by prefix, {OLD} old ones", found
        session = store.resume(self._any())
        yield "append", _timed(lambda: session.append(SAID[0]))
        self._new += 1
        new = store.session(f"new/{self._run}-{self._new}")
        yield "append to a new one", _timed(lambda: new.append(SAID[0]))

    def _by_fields(self, store: perdure.Store) -> Iterator[tuple[str, float]]:
        customer = customer_of(self._draw.randrange(self.size))
        questions: dict[str, dict[str, object]] = {
            "of one customer": {"where": {"customer": customer}},
            f"of one customer and a state of {STATES}": {
                "where": {"customer": customer, "state": self._draw.randrange(STATES)}
            },
            f"in a state of {STATES}": {"where": {"state": 1}},
        }
        if ORDER in store.guarantees().capabilities:
            questions |= {
                "by amount, the highest first": {"order": "-amount"},
                "in a range of amounts": {"where": {"amount": (self.size // 2, None)}},
                "of one customer, by amount": {"where": {"customer": customer}, "order": "amount"},
                f"in a state of {STATES}, by amount": {"where": {"state": 1}, "order": "amount"},
            }
        if RECENT in store.guarantees().capabilities:
            questions |= {
                "of one customer, most recent": {
                    "where": {"customer": customer},
                    "order": "-changed",
                },
                f"in a state of {STATES}, most recent": {
                    "where": {"state": 1},
                    "order": "-changed",
                },
            }
        for what, chosen in questions.items():
            yield f"list {PAGE} {what}", _timed(lambda: _page(store, **chosen))  # noqa: B023 - called at once

    def close(self) -> None:
        self._store.close()


def _page(store: perdure.Store, **chosen: object) -> None:
    found = list(islice(store.sessions(**chosen), PAGE))  # type: ignore[arg-type]
    if not found:
        message = "nothing was listed"
        raise AssertionError(message)


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(folder: Path, *, largest: int, repeats: int, url: str | None) -> Part:
    """Fill stores up to the largest size, and measure them in turns."""
    sizes = [size for size in SIZES if size < largest] + [largest]
    address = url or f"sqlite:{folder}/{{size}}.db"
    if "{size}" not in address:
        message = "the address needs {size} in it, such as postgresql://…?schema=bench_{size}"
        raise SystemExit(message)
    progress = Progress("sessions", len(sizes) + repeats)
    subjects = []
    for size in sizes:
        backend = open_backend(address.format(size=size))
        seconds = _timed(lambda: fill(backend, size, print))  # noqa: B023 - called at once
        backend.close()
        subjects.append(Subject(address.format(size=size), size))
        progress.step(f"{size:,} sessions in {seconds:,.1f} s")
    found: dict[str, dict[int, list[float]]] = {}
    for number in range(repeats):
        for subject in subjects:
            for what, seconds in subject.measures():
                found.setdefault(what, {}).setdefault(subject.size, []).append(seconds)
        progress.step(f"round {number + 1}")
    for subject in subjects:
        subject.close()
    return _part(address, sizes, found)


def _part(address: str, sizes: list[int], found: dict[str, dict[int, list[float]]]) -> Part:
    medians = {
        what: {size: statistics.median(times) for size, times in by_size.items()}
        for what, by_size in found.items()
    }
    rows = [
        [what, *(f"{1e3 * by_size[size]:.2f}" for size in sizes), f"{_times(by_size, sizes):.2f}×"]
        for what, by_size in medians.items()
    ]
    head = ["ms, median", *(f"{size:,}" for size in sizes), "largest to smallest"]
    lines = []
    for what, by_size in medians.items():
        if what.endswith(COLD):
            continue
        small, large = by_size[sizes[0]], by_size[sizes[-1]]
        lines.append(
            Line(
                f"{what}, {sizes[-1]:,} sessions against {sizes[0]:,}",
                f"{1e3 * large:.2f} ms against {1e3 * small:.2f} ms",
                f"at most {TIMES_MAX:.0f}×, or {1e3 * NOISE:.0f} ms more",
                holds=large <= max(TIMES_MAX * small, small + NOISE),
            )
        )
    scheme = address.partition(":")[0]
    data = {"scheme": scheme, "sizes": sizes, "seconds": medians}
    return Part("sessions", [table(head, rows)], lines, data)


def _times(by_size: dict[int, float], sizes: list[int]) -> float:
    return by_size[sizes[-1]] / by_size[sizes[0]]
