"""Writers in other processes go on while a store is copied; in the end nothing is lost."""

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import perdure
from perdure.backends.files.backend import FilesBackend
from perdure.backends.sqlite.backend import SqliteBackend
from tests.journal.copying.stores import foreseen, settled, shown
from tests.journal.copying.writer import DELETED
from tests.support import contents

ROOT = Path(__file__).parents[3]


@contextmanager
def writing(address: str, count: int) -> Iterator[list[str]]:
    """Let processes write while the block runs; afterwards the list has what they were told."""
    said: list[str] = []
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.journal.copying.writer", address, str(number)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(count)
    ]
    try:
        yield said
    finally:
        for one in running:
            out, _ = one.communicate(timeout=60)
            said += out.splitlines()
            assert one.returncode == 0


def expected(said: list[str]) -> dict[str, list[str]]:
    """Return what each session must hold, by what was said of it in order."""
    found: dict[str, list[str]] = {}
    for line in said:
        name, _, text = line.partition(" ")
        if text == DELETED:
            del found[name]
        else:
            found.setdefault(name, []).append(text)
    return found


@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_nothing_is_lost_when_writers_go_on_during_a_copy(tmp_path: Path, kind: str) -> None:
    address = f"{kind}:{tmp_path / 'source'}"
    target = FilesBackend(tmp_path / "copy") if kind == "sqlite" else SqliteBackend(tmp_path / "b")
    perdure.open(address).close()
    moved = 0
    with writing(address, 2) as said:
        start = time.monotonic()
        while moved < 3 and time.monotonic() < start + 60:
            copied = perdure.copy(address, target)
            foreseen(copied)
            moved += copied.records > 0
            require_whole(target)
            time.sleep(0.3)
    assert moved == 3, "the copies must have met writers"
    settled(address, target)
    store = perdure.open(target)
    wanted = expected(said)
    assert sum(map(len, wanted.values())) > 10
    for name, texts in wanted.items():
        held = contents(store.resume(name))
        assert [text for text in held if text in set(texts)] == texts, name
    source = FilesBackend(tmp_path / "source") if kind == "files" else SqliteBackend(address[7:])
    assert shown(target) == shown(source)
    source.close()
    target.close()


def require_whole(target: FilesBackend | SqliteBackend) -> None:
    """A copy that is not over holds states that the source once had."""
    store = perdure.open(target)
    for head in itertools.islice(store.sessions(), 20):
        records = [*store.records(head.id)]
        assert records[-1].position == head.position


def test_a_final_copy_that_meets_a_writer_says_so(tmp_path: Path) -> None:
    address = f"sqlite:{tmp_path / 'source'}"
    perdure.open(address).close()
    with writing(address, 1), closing(SqliteBackend(tmp_path / "b")) as target:
        deadline = time.monotonic() + 60
        copied = perdure.copy(address, target, final=True)
        while not copied.left and time.monotonic() < deadline:
            copied = perdure.copy(address, target, final=True)
        assert copied.left
        assert not copied.complete
        foreseen(copied)
