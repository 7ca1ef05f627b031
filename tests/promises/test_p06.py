"""P6 and P7, seeded samples: damage is never returned as data, and the rest can be read."""

import json
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

import perdure
from perdure.backends import protocol
from perdure.errors import DamagedError
from perdure.journal import chain
from tests.promises import p06_damage as damage
from tests.promises import p06_store as stores
from tests.promises.p06_mutations import Mutation
from tests.promises.promise import Trial, sample

pytestmark = pytest.mark.durability

SECONDS = 2.0


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    with damage.scratch() as found:
        yield found


@pytest.fixture(scope="module")
def clean(directory: Path) -> damage.Clean:
    return damage.Clean(directory)


@pytest.fixture(scope="module")
def killed(directory: Path) -> damage.Killed:
    return damage.Killed(directory)


def require(trial: Trial) -> None:
    assert not trial.failure, f"{trial.what}: {trial.failure}"


def for_a_while(seconds: float = SECONDS) -> Iterator[int]:
    end = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end or number <= 10:  # A sample that tried nothing proves nothing.
        yield number
        number += 1


def drawn(clean: damage.Clean, draw: random.Random) -> Mutation:
    return clean.bytes[draw.randrange(len(clean.bytes))]


@pytest.mark.slow
def test_a_sample_of_everything_holds() -> None:
    sample(damage.PROMISE, seed=6, seconds=SECONDS + 3, least=10)


def test_a_damaged_page_takes_the_time_of_no_session_that_can_be_read(clean: damage.Clean) -> None:
    """A listing reads many headers at once; one that SQLite cannot read spoils no other."""
    unread = set()
    starts = range(0, len(clean.content), 4096)
    for start in (page + offset for page in starts for offset in (9, 11, 13, 15)):
        content = bytearray(clean.content)
        content[start] ^= 1
        for file in clean.path.parent.glob("store.db*"):
            file.unlink()
        clean.path.write_bytes(content)
        answers = stores.read_all(clean.path, clean.names)
        assert not stores.faults(answers, clean.answers), start
        listed = answers.get("sessions")
        for head in listed if isinstance(listed, list) else ():
            if head.changed is None:
                unread.add(head.id)
                assert isinstance(answers[f"{head.id}: resume"], DamagedError), (start, head.id)
    assert unread


@pytest.mark.slow
def test_rows_that_are_moved_altered_or_lost_are_found(clean: damage.Clean) -> None:
    mutations = clean.row_mutations()
    random.Random(1).shuffle(mutations)
    for number in for_a_while():
        require(clean.trial(mutations[number % len(mutations)]))


@pytest.mark.slow
def test_rows_of_one_kind_are_all_tried(clean: damage.Clean) -> None:
    """Heads and labels altered, and values exchanged for those of another session."""
    kinds = ("head ", "label ")
    for mutation in clean.row_mutations():
        if mutation.what.startswith(kinds) or _at_one_position(mutation):
            require(clean.trial(mutation))


def _at_one_position(mutation: Mutation) -> bool:
    """Whether a value was replaced by the one that another stream has at the same position."""
    return re.fullmatch(r"copy \d+/2 over \d+/2", mutation.what) is not None


@pytest.mark.slow
def test_an_altered_id_is_found(clean: damage.Clean) -> None:
    """A header whose id was altered still parses: only the chain tells."""
    for row in clean.entries:
        header = row.header.encode()
        for _, own, *_ in json.loads(header)[8]:
            at = clean.content.find(header) + header.index(own.encode())
            require(clean.trial(clean.bytes[3 * (at + 1)]))


@pytest.mark.slow
def test_one_bad_bit_in_an_entry_costs_that_entry_alone(clean: damage.Clean) -> None:
    draw = random.Random(2)
    for _ in for_a_while():
        mutation = drawn(clean, draw)
        while mutation.damages is None:
            mutation = drawn(clean, draw)
        require(clean.trial(mutation))


@pytest.mark.slow
def test_a_damaged_log_is_found_or_looks_like_a_crash(killed: damage.Killed) -> None:
    draw = random.Random(3)
    for _ in for_a_while():
        require(killed.wal_trial(killed.wal[draw.randrange(len(killed.wal))]))


def test_a_damaged_index_of_the_log_makes_no_difference(killed: damage.Killed) -> None:
    draw = random.Random(4)
    for _ in range(20):
        require(killed.shm_trial(killed.shm[draw.randrange(len(killed.shm))]))


def test_the_store_holds_what_the_trials_are_about(clean: damage.Clean) -> None:
    """The twin: undamaged, nothing is raised, and there is something of each kind to damage."""
    assert len(clean.content) == 17 * 4096
    assert stores.silent(clean.answers)
    clean.path.write_bytes(clean.content)
    assert not stores.faults(stores.read_all(clean.path, clean.names), clean.answers)
    kinds = {record.kind for name in clean.names for record in clean.answers[f"{name}: records"]}
    assert kinds >= {
        "message",
        "value",
        "turn.begun",
        "labels",
        "branched",
        "branch.kept",
        "snapshot",
    }
    assert clean.answers["gamma: verify"].records == 2
    assert clean.answers["alpha: verify"].snapshots
    assert len(clean.answers["labelled"]) == 2


def test_every_mutation_is_tried_once() -> None:
    for total in (7, 100, 2**10):
        assert sorted(damage.scattered(total, seed=total)) == list(range(total))


def test_the_killed_store_has_states_that_differ(killed: damage.Killed) -> None:
    last = killed.answers()
    assert not [key for key in last if not damage._same(last, killed.states[-1], key)]
    for one, two in zip(killed.states, killed.states[1:], strict=False):
        assert stores.faults(two, one), "an append shows"


def test_plain_sqlite_returns_wrong_rows_without_a_word(clean: damage.Clean) -> None:
    """The baseline: what perdure finds, SQLite alone does not."""
    draw = random.Random(5)
    anywhere = [draw.randrange(len(clean.content)) for _ in range(300)]
    silent = sum(damage.plain_is_silent(clean.content, at, clean.path) for at in anywhere)
    assert silent / len(anywhere) > 0.15, "free pages count as well"
    inside = draw.sample(sorted(clean.bytes._owners), 100)
    silent = sum(damage.plain_is_silent(clean.content, at, clean.path) for at in inside)
    assert silent / len(inside) > 0.9


def test_a_reader_that_does_not_check_bodies_is_found(clean: damage.Clean) -> None:
    """The twin: with every digest of a body taken for right, flipped bits come through."""
    draw = random.Random(6)
    failures = 0
    with mock.patch.object(chain, "verify_entry", _unchecked):
        for _ in range(40):
            mutation = drawn(clean, draw)
            while mutation.damages is None:
                mutation = drawn(clean, draw)
            failures += bool(clean.trial(mutation).failure)
    assert failures > 5


def _unchecked(name: str, entry: protocol.Entry, *_: object) -> chain.VerifiedEntry:
    header, digest, start = chain._decode(entry.header), chain.entry_digest(entry), 0
    facts = chain.EntryFacts(entry, header, digest, name)
    records = []
    for position, record in enumerate(header.records, entry.position):
        body = (entry.body or b"")[start : start + record.length]
        records.append(chain.VerifiedRecord(facts, position, record, body))
        start += record.length
    return chain.VerifiedEntry(entry, header, digest, records)


def test_a_session_with_a_damaged_end_does_not_open_but_can_be_salvaged(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with perdure.open(path) as store:
        session = store.session("a")
        for number in range(3):
            session.append({"role": "user", "content": "", "n": number})
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"n":2', b'"n":3'))
    with perdure.open(path) as store:
        with pytest.raises(DamagedError) as caught:
            store.session("a")
        assert caught.value.position == 3
        damaged: list[DamagedError] = []
        records = list(store.records("a", on_damage=damaged.append))
    assert [record.position for record in records] == [1, 2]
    assert [error.position for error in damaged] == [3]
