"""The index: every id that a caller ever used is known, at a bounded cost, or its loss is said."""

import asyncio
import contextlib
import itertools
import random
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec
import pytest

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.backends.offload import ThreadedBackend
from perdure.backends.protocol import Append, Backend, Entry, Outcome
from perdure.core import index
from perdure.core.index import count_to_merge, page_of
from perdure.core.state import session_state
from perdure.core.state.session_state import IndexRun, SessionState
from perdure.errors import ChainError, DamagedError, DivergenceError
from perdure.journal import codec
from perdure.journal.records import IndexPage, Snapshot
from perdure.testing import Crash, CrashAt, Torn
from perdure.testing.faults import BackendWrapper
from tests.support import forgotten, said

MANY = {f"many-{number}": number for number in range(1, 1_000)}
BACK = (1, 255, 256, 257, 511, 512, 513, 1_023, 1_024, 1_025, 1_279, 1_280, 1_281)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make snapshots frequent and pages small, so that few records make many runs and merges."""
    monkeypatch.setattr(session_state, "SNAPSHOT_EVERY", 8)
    monkeypatch.setattr(index, "PAGE_ROWS", 4)


class Counting(BackendWrapper):
    """Counts the entries that are read."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.entries = 0

    def read(self, stream: str, **options: Any) -> Iterator[Entry]:
        for entry in super().read(stream, **options):
            self.entries += 1
            yield entry


class Till:
    """A tool that must not run twice, and how often it ran for each amount."""

    def __init__(self) -> None:
        self.runs: dict[int, int] = {}

    def charge(self, amount: int) -> str:
        self.runs[amount] = self.runs.get(amount, 0) + 1
        return f"charged {amount}"


def notes(session: perdure.Session, count: int, start: int = 0) -> dict[str, int]:
    return {f"n-{n}": session.note(n, id=f"n-{n}") for n in range(start, start + count)}


def pages(session: perdure.Session) -> dict[int, IndexPage]:
    found = {record.position: record.content for record in session.records()}
    return {place: page for place, page in found.items() if isinstance(page, IndexPage)}


def runs(session: perdure.Session) -> tuple[IndexRun, ...]:
    return session._replica.state.index


# What is known, and for how long.


def test_ids_of_turns_records_and_keys_are_known_beyond_every_former_limit() -> None:
    backend, till, total = MemoryBackend(), Till(), max(BACK) + 20
    session = perdure.open(backend).session("s")
    places = []
    for number in range(total):
        with session.turn(f"Charge {number}.", id=f"t-{number}"):
            session.tool(till.charge).keyed(f"k-{number}")(number)
        places.append(session.append(said("Done.", "assistant"), id=f"m-{number}"))
    for handle in (session, perdure.open(backend).session("s")):
        before = handle.position
        for number in (total - back for back in BACK):
            with handle.turn(f"Charge {number}.", id=f"t-{number}") as turn:
                assert turn.ended
            assert handle.append(said("Done.", "assistant"), id=f"m-{number}") == places[number]
        assert handle.position == before
    with session.turn("Again."):
        for number in (total - back for back in BACK):
            assert session.tool(till.charge).keyed(f"k-{number}")(number) == f"charged {number}"
    assert set(till.runs.values()) == {1}
    assert forgotten(perdure.open(backend).session("s")) == []


def test_another_content_or_kind_under_an_old_id_is_refused(small: None) -> None:
    session = perdure.open(MemoryBackend()).session("s")
    session.append(said("one"), id="m")
    with session.turn("Charge.", id="t"):
        session.tool(Till().charge).keyed("k")(1)
    notes(session, 40)
    assert session.append(said("one"), id="m") == 1
    before = session.position
    with pytest.raises(DivergenceError, match="'m'"):
        session.append(said("two"), id="m")
    with pytest.raises(DivergenceError, match=r"'m' .*a record.*a turn"):
        session.turn("one", id="m").__enter__()
    with pytest.raises(DivergenceError, match=r"'t' .*a turn.*a record"):
        session.note("one", id="t")
    with pytest.raises(DivergenceError, match="'t'"):
        session.turn("Charge twice.", id="t").__enter__()
    assert session.position == before
    with session.turn("Again."), pytest.raises(DivergenceError, match="k"):
        session.tool(Till().charge).keyed("k")(2)


def test_a_result_that_its_message_holds_is_served_through_the_index(small: None) -> None:
    session, long = perdure.open(MemoryBackend()).session("s"), "x" * 5_000
    count: list[int] = []

    def fetch() -> str:
        count.append(1)
        return long

    with session.turn("Fetch."):
        session.tool(fetch, name="fetch").keyed("k")()
    notes(session, 40)
    with session.turn("Again."):
        assert session.tool(fetch, name="fetch").keyed("k")() == long
    assert count == [1]


def test_an_unknown_outcome_is_known_before_and_after_it_is_reconciled(small: None) -> None:
    session = perdure.open(MemoryBackend()).session("s")

    def stop() -> None:
        raise KeyboardInterrupt

    tool = session.tool(stop).keyed("k")
    with pytest.raises(KeyboardInterrupt), session.turn("Stop."):
        tool()
    for start in (0, 40):
        notes(session, 40, start)
        with session.turn("Again."), pytest.raises(perdure.UnknownOutcomeError):
            tool()
    (unknown,) = session.effects.unknown()
    session.effects.reconcile(unknown.id, perdure.Happened("stopped"))
    for start in (80, 120):
        notes(session, 40, start)
        with session.turn("Again."):
            assert tool() == "stopped"
    session.verify()


def test_ids_with_equal_digests_are_told_apart(
    small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "digest_id", lambda key: bytes([len(key)] * 8))
    backend = MemoryBackend()
    session = perdure.open(backend).session("s")
    places = notes(session, 60)
    for handle in (session, perdure.open(backend).session("s")):
        assert {key: handle.note(int(key[2:]), id=key) for key in places} == places
    assert session.note("new", id="n-x") > max(places.values())
    session.verify()


class World:
    """Random calls with ids, each with the answer that every repetition must get."""

    def __init__(self, store: perdure.Store, seed: int) -> None:
        self.store = store
        self.draw = random.Random(seed)
        self.till = Till()
        self.session = store.session("s-0")
        self.answers: dict[tuple[str, int], object] = {}
        self.branches = 0

    def step(self) -> None:
        name = self.draw.choice(["call"] * 6 + ["repeat"] * 4 + ["reopen", "branch", "other"])
        getattr(self, name)()

    def call(self) -> None:
        number = len(self.answers)
        kind = self.draw.choice(["note", "append", "several", "batch", "turn", "key"])
        self.answers[kind, number] = self.do(kind, number)

    def do(self, kind: str, number: int) -> object:
        session = self.session
        if kind == "note":
            return session.note({"n": number}, id=f"id-{number}")
        if kind == "append":
            return session.append(said(f"{number}"), id=f"id-{number}")
        if kind == "several":
            return session.append(said(f"{number}"), said("b"), said("c"), id=f"id-{number}")
        if kind == "batch":
            with session.batch(id=f"id-{number}") as batch:
                batch.append(said(f"{number}"))
                batch.note(number, id=f"in-{number}")
            return batch.positions
        if kind == "key":
            with session.turn("A turn of its own."):
                return session.tool(self.till.charge).keyed(f"key-{number}")(number)
        with session.turn(f"Turn {number}.", id=f"id-{number}") as turn:
            if not turn.ended:
                session.tool(self.till.charge)(number)
        return turn.branch_point

    def repeat(self) -> None:
        if self.answers:
            self.check(self.draw.choice([*self.answers]))

    def check(self, key: tuple[str, int]) -> None:
        before = len(self.session)
        assert self.do(*key) == self.answers[key], key
        assert len(self.session) == before + (key[0] == "key"), key

    def reopen(self) -> None:
        self.session = self.store.session(self.session.id)

    def branch(self) -> None:
        self.branches += 1
        self.session = self.session.branch(f"s-{self.branches}")

    def other(self) -> None:
        """Write through another handle, which may make a run that this one has to learn of."""
        other = self.store.session(self.session.id)
        for _ in range(self.draw.randrange(12)):
            number = len(self.answers)
            self.answers["note", number] = other.note({"n": number}, id=f"id-{number}")
        self.session.refresh()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("address", ["memory:", "sqlite:{}/store.db", "files:{}/store", "postgres"])
def test_every_id_ever_used_is_known_at_any_later_time(
    address: str, seed: int, small: None, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if address == "postgres":
        address = request.getfixturevalue("postgres_store")
    with perdure.open(address.format(tmp_path)) as store:
        world = World(store, seed)
        for _ in range(120):
            world.step()
        for key in world.answers:
            world.check(key)
        world.reopen()
        for key in world.answers:
            world.check(key)
        assert set(world.till.runs.values()) == {1}
        assert len(runs(world.session)) <= index.RUNS_MAX
        assert forgotten(store.session(world.session.id)) == []
        world.session.verify()


def test_a_forgetful_index_is_seen(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    session = perdure.open(MemoryBackend()).session("s")
    places = notes(session, 40)
    assert forgotten(session) == []
    monkeypatch.setattr(index.CachedPage, "positions", lambda *_: [])
    assert len(forgotten(session)) > 30
    assert session.note(0, id="n-0") != places["n-0"]


# What it costs.


def test_a_look_up_reads_a_page_of_each_run_and_a_warm_one_only_the_record(small: None) -> None:
    backend = MemoryBackend()
    places = notes(perdure.open(backend).session("s"), 170)
    counting = Counting(backend)
    session = perdure.open(counting).session("s")
    assert len(runs(session)) == index.RUNS_MAX
    for most in (index.RUNS_MAX + 1, 1):
        reads: list[int] = []
        for key, place in places.items():
            counting.entries = 0
            assert session.note(int(key[2:]), id=key) == place
            reads.append(counting.entries)
        assert max(reads) <= most
    notes(session, 8, 170)
    counting.entries = 0  # A handle need not read the pages that it writes.
    assert session.note(0, id="n-0") == places["n-0"]
    assert counting.entries == 1


def test_without_a_run_nothing_is_read() -> None:
    counting = Counting(MemoryBackend())
    session = perdure.open(counting).session("s")
    counting.entries = 0
    notes(session, session_state.SNAPSHOT_EVERY - 1)
    assert runs(session) == ()
    assert counting.entries == 0


def test_a_cache_keeps_the_pages_that_were_used_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "CACHE_PAGES", 2)
    cache = index.IndexCache()
    one, two = cache.put(1, bytes(16)), cache.put(2, bytes(32))
    assert cache.get(1) is one
    assert cache.get(2) is two
    three = cache.put(3, bytes(48))
    assert [cache.get(place) for place in (1, 2, 3)] == [None, two, three]


def test_threads_may_share_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "CACHE_PAGES", 2)
    cache, interval = index.IndexCache(), sys.getswitchinterval()

    def use(seed: int) -> bool:
        draw, right = random.Random(seed), True
        for _ in range(30_000):
            place = draw.randrange(4)
            page = cache.get(place) or cache.put(place, bytes(16 * place))
            right = right and len(page.rows) == 16 * place
        return right

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(use, range(4)))
        cache.put(9, bytes(16))
        assert len(cache._pages) <= index.CACHE_PAGES
    finally:
        sys.setswitchinterval(interval)


def written(flushes: int, size: Callable[[int], int]) -> tuple[float, list[int]]:
    """Return how often a row is written, on average, and the runs that are there at the end."""
    found: list[int] = []
    rows = new_rows = 0
    for number in range(flushes):
        new = size(number)
        merged = count_to_merge(found, new)
        found[len(found) - merged :] = [new + sum(found[len(found) - merged :])]
        rows, new_rows = rows + found[-1], new_rows + new
        totals = accumulate(reversed(found))  # Older runs are full: they are not merged any more.
        assert sum(total <= index.RUN_ROWS_MAX for total in totals) <= index.RUNS_MAX
        assert max(found) <= index.RUN_ROWS_MAX
    return rows / new_rows, found


def test_runs_are_few_and_rows_are_seldom_written_again() -> None:
    assert written(40, lambda _: 50)[0] < 5
    often, found = written(2_000, lambda _: 50)
    assert often < 18
    assert len(found) <= index.RUNS_MAX
    draw = random.Random(1)
    assert written(2_000, lambda _: draw.randrange(1, 200))[0] < 30


def test_a_full_run_is_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "RUN_ROWS_MAX", 1_000)
    often, found = written(1_000, lambda _: 50)
    assert often < 10
    assert len(found) < 50_000 / 500 + index.RUNS_MAX


def test_a_snapshot_does_not_grow_with_the_ids() -> None:
    session = perdure.open(MemoryBackend()).session("s")
    till = Till()
    for number in range(1_000):
        with session.turn(f"Charge {number}.", id=f"turn-{number}-of-this-long-session"):
            session.tool(till.charge).keyed(f"invoice-{number}")(number)
    contents = (record.content for record in session.records())
    sizes = [len(codec.encode(content)) for content in contents if isinstance(content, Snapshot)]
    assert len(sizes) > 15
    assert max(sizes) < 2_000


# What is stored.


def test_rows_are_sorted_and_lie_in_the_page_of_their_digest(small: None) -> None:
    session = perdure.open(MemoryBackend()).session("s")
    places = notes(session, 100)
    assert {len(rows) % index.ROW_BYTES for rows in map(_rows, pages(session).values())} == {0}
    known: dict[bytes, int] = {}
    for first, bits, size in runs(session):
        run = [(page, _rows(pages(session)[first + page])) for page in range(1 << bits)]
        rows = [row for _, some in run for row in index.split_rows(some)]
        assert rows == sorted(rows)
        assert len(rows) == size
        for page, some in run:
            assert {page_of(_digest(row), bits) for row in index.split_rows(some)} <= {page}
        known |= {row[:8]: int.from_bytes(row[8:]) for row in rows}
    recent = session._replica.state.recent_ids
    assert known == {
        index.digest_id(key): place for key, place in places.items() if key not in recent
    }


def _digest(row: bytes) -> int:
    return int.from_bytes(row[: index.DIGEST_BYTES])


def _rows(page: IndexPage) -> bytes:
    return index.decode_rows("s", 1, page)


def test_a_turn_takes_one_row_and_pages_are_right_before_a_snapshot(small: None) -> None:
    session = perdure.open(MemoryBackend()).session("s")
    for number in range(20):
        with session.turn("Hello.", id=f"t-{number}"):
            pass
    recent = session._replica.state.recent_ids
    assert sum(run.size for run in runs(session)) + len(recent) == 20
    pairs = itertools.pairwise(record.kind for record in session.records())
    assert {after for before, after in pairs if before == "index"} == {"index", "snapshot"}
    assert len(session.messages()) == len(session) == 20


def test_a_snapshot_that_is_too_large_leaves_no_pages_behind(
    small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = MemoryBackend()
    session = perdure.open(backend).session("s")
    for number in range(40):
        session.set(f"a key with a long name, number {number}", number)
    before = len(pages(session))
    with monkeypatch.context() as patch:
        patch.setattr(codec, "PAYLOAD_MAX", 1_000)
        places = notes(session, 40)
    assert len(pages(session)) == before == 0
    for handle in (session, perdure.open(backend).session("s")):
        assert {key: handle.note(int(key[2:]), id=key) for key in places} == places
    notes(session, 1, 40)
    assert sum(run.size for run in runs(session)) == 41
    session.verify()


def test_a_copy_of_a_branch_and_its_parent_knows_their_ids(small: None, tmp_path: Path) -> None:
    store = perdure.open(tmp_path / "store.db")
    places = notes(store.session("s"), 60)
    branch = store.session("s").branch("b")
    places |= notes(branch, 60, 60)
    store.close()
    assert perdure.copy(tmp_path / "store.db", f"files:{tmp_path / 'copy'}").complete
    with perdure.open(f"files:{tmp_path / 'copy'}") as store:
        branch = store.session("b")
        assert {key: branch.note(int(key[2:]), id=key) for key in places} == places
        assert forgotten(store.session("s")) == []
        branch.verify()


def test_ids_are_known_without_blocking_too(small: None) -> None:
    backend = MemoryBackend()

    async def write() -> dict[str, int]:
        store = perdure.open_async(ThreadedBackend(backend))
        session = await store.session("s")
        return {f"n-{n}": await session.note(n, id=f"n-{n}") for n in range(60)}

    places = asyncio.run(write())
    assert asyncio.run(write()) == places == notes(perdure.open(backend).session("s"), 60)


# What can go wrong.


def test_a_session_that_is_created_again_starts_anew(small: None) -> None:
    store = perdure.open(MemoryBackend())
    notes(store.session("s"), 40)
    store.delete("s")
    session = store.session("s")
    position = session.position
    assert session.note("other", id="n-0") == position + 1
    assert runs(session) == ()
    notes(session, 40, 1)
    assert forgotten(store.session("s")) == []
    session.verify()


def test_a_branch_between_any_two_records_knows_exactly_the_ids_before_it(small: None) -> None:
    store = perdure.open(MemoryBackend())
    session = store.session("s")
    places = notes(session, 40)
    for at in range(1, session.position + 1):
        branch = store.session("s").branch(f"b-{at}", at=at)
        for key, place in places.items():
            before = branch.position
            found = branch.note(int(key[2:]), id=key)
            assert (found == place) if place <= at else (found > before), (at, key)
        assert forgotten(store.session(branch.id)) == []
        branch.verify()


def test_handles_that_flush_at_the_same_time_agree(small: None) -> None:
    backend = MemoryBackend()
    handles = [perdure.open(backend).session("s") for _ in range(3)]
    draw, places = random.Random(1), {}
    for number in range(120):
        places[f"n-{number}"] = draw.choice(handles).note(number, id=f"n-{number}")
    for handle in handles:
        assert {key: handle.note(int(key[2:]), id=key) for key in places} == places
        assert forgotten(handle) == []
        handle.verify()


class _CountingTorn(Torn):
    sent = 0

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        self.sent = self.sent or len(appends[0].entries)
        return super().append(appends)


def test_the_records_of_an_append_are_whole_or_absent_wherever_its_pages_are_torn(
    small: None,
) -> None:
    keep, sent = 0, 1
    while keep <= sent:
        backend = MemoryBackend()
        session = perdure.open(backend).session("s")
        places = notes(session, 42)
        while session._replica.state.since_snapshot + 1 < session_state.SNAPSHOT_EVERY:
            places |= notes(session, 1, len(places))
        torn = _CountingTorn(backend, keep=keep)
        with pytest.raises(Crash):
            perdure.open(CrashAt(torn, "append.before", nth=2)).session("s").note(99, id="n-99")
        sent = torn.sent
        session = perdure.open(backend).session("s")
        before = session.position
        assert {key: session.note(int(key[2:]), id=key) for key in places} == places
        assert (session.note(99, id="n-99") <= before) == (keep > 0)
        assert forgotten(perdure.open(backend).session("s")) == []
        session.verify()
        keep += 1
    assert sent > 8, "each of several pages is an entry of its own"


def damage(backend: MemoryBackend, position: int) -> None:
    stream = backend._streams["s"]
    entries, number = stream.entries, stream.covering(position)
    entry = entries[number]
    body = entry.body or b""
    entries[number] = entry._replace(body=body.replace(b'rows":"', b'rows":"A'))


def test_a_damaged_page_is_reported_and_its_ids_are_never_taken_for_new(small: None) -> None:
    backend = MemoryBackend()
    places = notes(perdure.open(backend).session("s"), 60)
    session = perdure.open(backend).session("s")
    run = runs(session)[0]
    position = run.first + 1
    damage(backend, position)
    refused = {}
    for key, place in places.items():
        try:
            assert session.note(int(key[2:]), id=key) == place
        except DamagedError as error:
            refused[key] = error.position
    assert set(refused.values()) == {position}
    assert {page_of(_digest(index.digest_id(key)), run.bits) for key in refused} == {1}
    with pytest.raises(DamagedError):
        session.verify()
    reports: list[DamagedError] = []
    rest = [record.position for record in session.records(on_damage=reports.append)]
    assert {position, *rest} == {*range(1, session.position + 1)}
    assert [report.position for report in reports] == [position]


def test_a_damaged_page_stops_neither_appends_nor_later_runs(small: None) -> None:
    backend = MemoryBackend()
    notes(perdure.open(backend).session("s"), 60)
    session = perdure.open(backend).session("s")
    run = runs(session)[-1]
    damage(backend, run.first)
    added: dict[str, int] = {}
    for number in range(60, 200):
        session.append(said(f"{number}, without an id"))
        with contextlib.suppress(DamagedError):
            added |= notes(session, 1, number)
    assert run in runs(session)
    assert len(runs(session)) <= index.RUNS_MAX + 1
    assert len(added) > 50
    again: dict[str, int] = {}
    for number in range(60, 200):
        with contextlib.suppress(DamagedError):
            again |= notes(session, 1, number)
    assert again == added


@pytest.mark.parametrize(
    "fault", ["lost", "other", "unsorted", "misplaced", "shifted", "size", "early", "endless"]
)
def test_verify_finds_an_index_that_does_not_match_the_records(
    fault: str, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = index.encode_run

    def faulty(rows: Sequence[bytes], merged: int) -> list[IndexPage]:
        if fault == "lost":
            return real(rows[1:], merged)
        if fault == "other":
            return real(sorted([index.encode_row("other", 1), *rows[1:]]), merged)
        *made, before, last = real(rows, merged)
        if fault == "size":
            return [*made, before, msgspec.structs.replace(last, size=last.size + 1)]
        if fault == "endless":
            return [*made, before, msgspec.structs.replace(last, size=0)]
        if fault == "early":
            return [*made, msgspec.structs.replace(before, size=last.size)]
        if fault == "shifted":
            rest, row = _rows(before)[: -index.ROW_BYTES], _rows(before)[-index.ROW_BYTES :]
            return [*made, _page(before, rest), _page(last, row + _rows(last))]
        made += before, last
        if fault == "misplaced":
            return [_page(page, _rows(last)) for page in made]
        return [_page(page, b"".join(index.split_rows(_rows(page))[::-1])) for page in made]

    session = perdure.open(MemoryBackend()).session("s")
    notes(session, 10)
    session.verify()
    monkeypatch.setattr(index, "encode_run", faulty)
    notes(session, 6, 10)
    with pytest.raises(DamagedError, match="index"):
        session.verify()


def _page(page: IndexPage, rows: bytes) -> IndexPage:
    return msgspec.structs.replace(page, rows=b64encode(rows).decode())


def test_a_page_of_another_run_is_not_read_as_if_it_were_this_one(small: None) -> None:
    session = perdure.open(MemoryBackend()).session("s")
    notes(session, 100)
    past, run, cache = session._replica.history, runs(session)[0], index.IndexCache()
    assert run.bits
    assert session._handle.run(index.read_page(past, cache, run, 1)).rows
    for wrong in (run._replace(first=run.first + 1), run._replace(bits=run.bits - 1)):
        with pytest.raises(ChainError, match="another index run"):
            session._handle.run(index.read_page(past, cache, wrong, 1))
    for cited, merged in ((run, 1), (run._replace(size=run.size + 1), 0)):
        made = session._handle.run(index.make_run(past, cache, [cited], MANY))
        assert made[-1].merged == merged


def test_a_run_that_replaces_more_runs_than_there_are_is_refused() -> None:
    state = SessionState()
    state.apply(1, ".i", IndexPage(rows="", size=1), b"")
    assert state.index == (IndexRun(1, 0, 1),)
    with pytest.raises(LookupError):
        state.apply(2, ".j", IndexPage(rows="", size=1, merged=2), b"")


def test_a_replay_passes_over_pages_and_knows_the_ids_before_them(small: None) -> None:
    session = perdure.open(MemoryBackend()).session("s")

    def agent(session: perdure.Session) -> None:
        for number in range(30):
            with session.turn(f"Charge {number}.", id=f"t-{number}"):
                session.tool(till.charge).keyed(f"k-{number}")(number)
            session.note(0, id="n-0")

    till = Till()
    agent(session)
    assert len(runs(session)) > 1
    replay = perdure.replay(session, agent)
    assert replay.identical, replay.divergence
    assert set(till.runs.values()) == {1}
