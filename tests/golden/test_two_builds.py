"""P27: two builds of perdure on one store, one of which knows more fields and kinds.

The newer build is a copy of the source, patched: `note` has another field, there are a kind that
may be skipped and one that may not, and with WITNESS a header has another field. It runs in a
process of its own. The older build is this one.
"""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import perdure
from perdure.errors import ConflictError, DamagedError, VersionError

SOURCE = Path(perdure.__file__).parent

# What the newer build has more, as (file, old text, new text).
PATCHES = (
    ("journal/records.py", '    topic: str = ""\n', '    topic: str = ""\n    mood: str = ""\n'),
    (
        "journal/records.py",
        "class Snapshot(Content",
        """class Clock(Content, frozen=True, kw_only=True):
    kind: ClassVar[str] = "~clock"
    drift: float


class Review(Content, frozen=True, kw_only=True):
    kind: ClassVar[str] = "review"
    stars: int


class Snapshot(Content""",
    ),
    (
        "journal/kinds.py",
        "KINDS: dict[str, type[Content]] = {",
        """from perdure.journal.records import Clock, Review

KINDS: dict[str, type[Content]] = {"~clock": Clock, "review": Review} | {""",
    ),
    (
        "journal/chain.py",
        "    records: tuple[RecordHeader, ...]\n",
        "    records: tuple[RecordHeader, ...]\n    witness: str = ''\n",
    ),
    (
        "journal/chain.py",
        "    records: tuple[KeyedRecordHeader, ...]\n",
        "    records: tuple[KeyedRecordHeader, ...]\n    witness: str = ''\n",
    ),
    (
        "journal/chain.py",
        "    header = _encode((*fields, records))\n",
        """    import os
    more = ("w",) if os.environ.get("WITNESS") else ()
    header = _encode((*fields, records, *more))
""",
    ),
    (
        "journal/chain.py",
        "_encode(_without_empty_keys(header)) != entry.header",
        """_encode(_without_empty_keys(header)) not in (
        entry.header, entry.header[:-1] + b',""]')""",
    ),
)

PRELUDE = """
import sys
import perdure
from perdure.core.plans import Plan
from perdure.journal.kinds import KINDS

def said(text):
    return {"role": "user", "content": text}

def write(session, kind, **fields):
    record_id, content = session._replica.new_id(), KINDS[kind](**fields)
    session._handle.write(Plan("note", "", lambda batch: batch.add_content(record_id, content)))

store = perdure.open(sys.argv[1])
"""

Newer = Callable[..., str]


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Newer:
    """Return what runs code with the newer build, and returns what it prints."""
    root = tmp_path_factory.mktemp("newer")
    shutil.copytree(SOURCE, root / "perdure", ignore=shutil.ignore_patterns("__pycache__"))
    for name, old, new in PATCHES:
        path = root / "perdure" / name
        text = path.read_text(encoding="utf-8")
        assert text.count(old) >= 1, (name, old)
        path.write_text(text.replace(old, new, 1), encoding="utf-8")

    def run(address: str, code: str, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", f"{PRELUDE}\n{code}\nstore.close()\n", address],
            env={**os.environ, "PYTHONPATH": str(root), **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(params=["sqlite", "files"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{request.param}:{tmp_path / 'store'}"


def said(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def contents(session: perdure.Session) -> list[str]:
    return [message["content"] for message in session.messages()]


def test_the_older_build_reads_what_it_may_and_refuses_the_rest(newer: Newer, address: str) -> None:
    names = ("plain", "skipped", "field", "kind")
    with perdure.open(address) as store:
        open_handles = {name: store.session(name) for name in names}
        for session in open_handles.values():
            session.append(said("older"))
        newer(
            address,
            """
for name in ("plain", "skipped", "field", "kind"):
    store.session(name).append(said("newer"))
write(store.session("plain"), "note", data="nothing that is new")
write(store.session("skipped"), "~clock", drift=0.5)
write(store.session("field"), "note", data=1, mood="fine")
write(store.session("kind"), "review", stars=5)
assert store.verify().ok
""",
        )
        for name in ("plain", "skipped"):
            with pytest.raises(ConflictError):  # As after a message of any other process.
                open_handles[name].append(said("older again"))
            for session in (open_handles[name], store.session(name)):
                session.refresh()
                session.append(said("older again"))
                session.verify()
            assert contents(session) == ["older", "newer", "older again", "older again"]
        kinds = [record.kind for record in store.session("skipped").records()]
        assert kinds == ["message", "message", "~clock", "message", "message"]
        for name, reason in (("field", "a field 'mood'"), ("kind", "a record kind 'review'")):
            _refused(store, open_handles[name], reason)
        problems = store.verify().problems
        assert [type(problem) for problem in problems] == [VersionError, VersionError]
        assert {info.id for info in store.sessions()} == {*names}
    output = newer(
        address,
        """
assert store.verify().ok
for name in ("plain", "skipped", "field", "kind"):
    session = store.session(name)
    session.append(said("at last"))
    print(name, len(session.messages()), session.record(3).kind)
print(store.session("field").record(3).content.mood, store.session("kind").record(3).content.stars)
""",
    )
    assert output.splitlines() == [
        *("plain 5 note", "skipped 5 ~clock", "field 3 note", "kind 3 review", "fine 5")
    ]


def _refused(store: perdure.Store, handle: perdure.Session, reason: str) -> None:
    """A session that must not be read further: typed, never damage, and nothing is written."""
    for call in (
        lambda: store.session(handle.id),
        lambda: handle.append(said("must not be written")),
        handle.refresh,
    ):
        with pytest.raises(VersionError, match=reason):
            call()
    assert contents(handle) == ["older"], "what was read before can still be read"
    damage: list[DamagedError] = []
    with pytest.raises(VersionError, match=reason):
        list(store.records(handle.id, on_damage=damage.append))
    assert damage == []


def test_a_header_with_another_field_is_refused_and_not_called_damage(
    newer: Newer, tmp_path: Path
) -> None:
    address = f"sqlite:{tmp_path / 'store'}"
    with perdure.open(address) as store:
        handle = store.session("s")
        handle.append(said("older"))
        store.session("other").append(said("older"))
        newer(address, "store.session('s').append(said('newer'))", WITNESS="1")
        _refused(store, handle, "a header with further fields")
        assert [type(problem) for problem in store.verify().problems] == [VersionError]
        store.session("other").append(said("goes on"))
    output = newer(address, "print(store.verify().ok, len(store.session('s').messages()))")
    assert output == "True 2\n"


def test_both_builds_write_to_one_session_at_once(newer: Newer, tmp_path: Path) -> None:
    address = f"sqlite:{tmp_path / 'store'}"
    code = """
session = store.session("s")
session.append(said("newer"))
for number in range(15):
    session.note(f"newer {number}")
    write(session, "~clock", drift=number)
"""
    other = threading.Thread(target=newer, args=(address, code))
    with perdure.open(address) as store:
        session = store.session("s")
        other.start()
        while not session.position:  # It has begun.
            session.refresh()
        for number in range(15):
            session.note(f"older {number}")
        other.join()
        session.refresh()
        notes = [record.content.data for record in session.records(kinds=["note"])]  # type: ignore[attr-defined]
        for build in ("older", "newer"):
            assert [note for note in notes if build in note] == [f"{build} {n}" for n in range(15)]
        assert store.verify().ok
    code = "print(len([*store.session('s').records(kinds=['~clock'])]), store.verify().ok)"
    assert newer(address, code) == "15 True\n"
