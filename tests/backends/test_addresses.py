"""Addresses, good and bad, and what the public names promise."""

import copy
import pickle
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import errors
from perdure.backends.addresses import split_accept
from perdure.errors import PerdureError, UnavailableError, UnsupportedError, UsageError
from tests.support import contents, said


def test_a_path_or_a_sqlite_address_opens_a_file(tmp_path: Path) -> None:
    path = tmp_path / "agents.db"
    perdure.open(str(path)).session("s").append(said("a"))
    for address in (path, str(path), f"sqlite:{path}"):
        with perdure.open(address) as store:
            assert contents(store.session("s")) == ["a"]
            assert store.guarantees().survives == "power loss"
            assert str(path) in repr(store)


def test_memory_stores_are_separate_and_say_that_nothing_survives() -> None:
    one, two = perdure.open("memory:"), perdure.open("memory:")
    one.session("s").append(said("a"))
    assert list(two.sessions()) == []
    assert one.guarantees().survives == "nothing"


@pytest.mark.parametrize("address", ["mysql://host/db", "nonsense:x", "S3://bucket"])
def test_an_unknown_scheme_is_told_what_is_known(address: str) -> None:
    with pytest.raises(UsageError, match="sqlite: and plain paths"):
        perdure.open(address)


@pytest.mark.parametrize(
    ("address", "hint"),
    [
        (None, "an address must be a str, a path or a backend, not NoneType"),
        (7, "not int"),
        (b"agents.db", "not bytes"),
        (":memory:", "a store in memory is 'memory:'"),
        ("sqlite::memory:", "a store in memory is 'memory:'"),
        ("memory", "a store in memory is 'memory:'"),
        ("sqlite://agents.db", "write 'sqlite:agents.db'"),
        ("files:///state", "write 'files:state'"),
        ("~/agents.db", "expanduser"),
        ("file:agents.db", "'sqlite:path'"),
        ("s3://bucket/agents", "object stores are not supported"),
        ("redis://host/agents", "the database of a Redis store must be a number"),
        ("valkey:agents", "the address of the Redis store cannot be parsed"),
        ("agents.db?acept=network-filesystem", "unknown option '?acept=network-filesystem'"),
        ("sqlite:agents.db?accept", "unknown option '?accept'"),
        ("sqlite:agents.db?accept=tmpfs&sync=off", "unknown option '?sync=off'"),
        ("files:state?acept=x", "a files: address can only have '?accept=…'"),
    ],
)
def test_an_address_that_means_something_else_is_told_what_to_write(
    address: Any, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for opening in (perdure.open, perdure.open_async):
        with pytest.raises(UsageError, match=re.escape(hint)):
            opening(address)
    assert list(tmp_path.iterdir()) == []


SECRET = "sEcReT99"  # noqa: S105 - it is looked for where it must not be


@pytest.mark.parametrize(
    "address",
    [
        f"host=127.0.0.1 password={SECRET}",
        f"dbname=app user=u\npassword = {SECRET}",
        f"sslpassword={SECRET}",
        f"sqlite:password={SECRET}",
        f"agents.db?user=u&password={SECRET}",
        f'"postgresql://u:{SECRET}@127.0.0.1:1/db"',
        f"'postgresql://u:{SECRET}@127.0.0.1:1/db",
        f"\u201cpostgresql://u:{SECRET}@127.0.0.1:1/db\u201d",
        f" postgresql://u:{SECRET}@127.0.0.1:1/db",
        f"postgresql://u:{SECRET}@127.0.0.1:1/db\n",
        f"\ufeffpostgresql://u:{SECRET}@127.0.0.1:1/db",
        f"postgresql//u:{SECRET}@127.0.0.1:1/db",
        f"postgres;//u:{SECRET}@127.0.0.1:1/db",
        f"postgresql%3A//u:{SECRET}@127.0.0.1:1/db",
        f"sqlite:postgresql://u:{SECRET}@127.0.0.1:1/db",
        f"files:postgresql://u:{SECRET}@127.0.0.1:1/db",
        f"memory:postgresql://u:{SECRET}@127.0.0.1:1/db",
        f"sqlite:rediss://u:{SECRET}@127.0.0.1:1/0",
        f"redis//u:{SECRET}@127.0.0.1:1/0",
        f"'valkey://u:{SECRET}@127.0.0.1:1/0",
        f"sqlite://u:{SECRET}@127.0.0.1:1/db",
        f"//u:{SECRET}/@127.0.0.1:1/db",
        f"u:{SECRET}@127.0.0.1:1/db",
        f"DATABASE_URL=postgresql://u:{SECRET}@127.0.0.1:1/db",
    ],
)
def test_what_was_meant_for_a_server_becomes_no_file_and_is_not_repeated(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for use in (
        perdure.open,
        perdure.open_async,
        lambda one: perdure.copy(one, "memory:"),
        lambda one: perdure.copy("memory:", one),
    ):
        with pytest.raises(UsageError, match="write 'postgresql://user@host/database'") as caught:
            use(address)
        assert SECRET not in f"{caught.value!r} {caught.value.__cause__!r}"
        assert caught.value.__context__ is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("address", ['"agents.db"', "agents.db\n", "sqlite: agents.db"])
def test_white_space_and_quotes_around_an_address_are_no_part_of_a_name(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"begins or ends with .* pass a Path"):
        perdure.open(address)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name",
    [
        "my agents.db",
        "it's mine.db",
        'of "ada"\'s.db',
        "me@home.db",
        "2026-01-01T10:30.db",
        "postgresql.db",
        "postgres/agents.db",
        "runs/user=42/agents.db",
        "hosts=3.db",
        "a//b.db",
        "a@b/c:d@e.db",
        "100%.db",
    ],
)
def test_the_name_of_a_file_is_not_taken_for_anything_else(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    for address in (name, f"sqlite:{name}"):
        perdure.open(address).close()
    assert Path(name).is_file()


def test_a_path_is_never_refused_for_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("'quoted'", " spaced ", "host=here password=x", "u:x@host", "memory"):
        perdure.open(Path(name)).close()
        assert Path(name).is_file()


@pytest.mark.parametrize(
    ("query", "rest", "words"),
    [
        ("accept=a", "", ["a"]),
        ("accept=a,b", "", ["a", "b"]),
        ("accept=a&accept=b", "", ["a", "b"]),
        ("accept=a%2Cb", "", ["a", "b"]),
        ("accept=a,%20b&accept=", "", ["a", "b"]),
        ("schema=s&accept=a&migrate=no&accept=b", "?schema=s&migrate=no", ["a", "b"]),
        ("accept=a&schema=s", "?schema=s", ["a"]),
        ("schema=accept=a", "?schema=accept=a", []),
    ],
)
def test_what_an_address_accepts_may_be_written_as_in_any_query(
    query: str, rest: str, words: list[str]
) -> None:
    for base in ("postgresql://h/db", "sqlite:agents.db", "agents.db"):
        assert split_accept(f"{base}?{query}") == (f"{base}{rest}", frozenset(words))
    assert split_accept("agents&accept=a.db") == ("agents&accept=a.db", frozenset())


def test_types_must_name_classes() -> None:
    given: Any
    for given in (5, "dict"):
        with pytest.raises(UsageError, match="types must be"):
            perdure.open("memory:", types=given)
    given = [dict]
    with pytest.raises(UsageError, match="'dict' is no dataclass"):
        perdure.open("memory:", types=given)


def test_an_address_without_a_name_is_refused() -> None:
    with pytest.raises(UsageError, match="path is empty"):
        perdure.open("sqlite:")
    with pytest.raises(UsageError, match="path is empty"):
        perdure.open("")
    with pytest.raises(UsageError, match="cannot have a name"):
        perdure.open("memory:x")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "apsw", None)
    for name in [
        name for name in sys.modules if name.startswith("perdure.backends.sqlite.backend")
    ]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UnsupportedError, match="pip install apsw"):
        perdure.open(tmp_path / "agents.db")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="nowhere"):
        perdure.open(tmp_path / "nowhere" / "agents.db")


EXAMPLES: list[PerdureError | errors.ToolFailureError] = [
    errors.UsageError("reason", "$.path"),
    errors.ContextWindowError("s", 9_000, 8_000, "tokens"),
    errors.InFlightError("s", "charge", "direct:1"),
    errors.UnknownOutcomeError("s", "charge", ".effect", "key", "The process died."),
    errors.EffectError("s", "charge", "TimeoutError", "no answer"),
    errors.ApprovalDeniedError("s", "charge", "ApprovalDenied", "It was denied by ada."),
    errors.ApprovalPendingError("s", "charge", ".a", "sqlite:agents.db", (".a", ".b")),
    errors.ApprovalError("s", ".a", "denied", "by 'ada'"),
    errors.NotFoundError("session 's'", "hint"),
    errors.CompactedError("s", 3, 9),
    errors.ErasedError("s", 3, "k1"),
    errors.SealedError("memory:", "it is encrypted", "give keys="),
    errors.MissingKeyError("memory:", "it was opened without keys", "give keys=", "k1"),
    errors.WrongKeyError("memory:", "the key is another one", "give that one", "k1"),
    errors.SummaryError("s", "the text is empty"),
    errors.ConflictError("s", 1, 2, "reason"),
    errors.LeaseHeldError("s", 3, "worker-1", 30.0, 12),
    errors.FencedError("s", 3, 4, "worker-2"),
    errors.ReplayBlockedError("socket.connect"),
    errors.ReplayDivergenceError("s", "position 7", "x", "y"),
    errors.InUseError("s", ("a", "b")),
    errors.DivergenceError("s", "id", "x", "y"),
    errors.UnavailableError("store", "reason"),
    errors.UnsupportedError("capability", "hint"),
    errors.VersionError("what", "2", "1"),
    errors.DamagedError("s", 0, "reason"),
    errors.ChainError("s", 3, "reason"),
    errors.HistoryReplacedError("s", 5, 3),
    errors.PayloadError("s", 3, "reason"),
    errors.UnstorableError("the entry is too large"),
    errors.UnstoredResultError("s", "tool", "tuple", 7),
    errors.ToolFailureError("the card was declined", {"code": 51}),
    errors.AgentLimitError("s", "turn", "max_steps", 3),
    errors.StoreMissingError("store", "reason"),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_says_what_happened_and_survives_copying(error: Exception) -> None:
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):  # noqa: S301
        assert (type(twin), str(twin), vars(twin)) == (type(error), str(error), vars(error))
    assert len(str(error)) > 10


def test_every_error_has_an_example_and_one_root() -> None:
    types = {found for found in vars(errors).values() if isinstance(found, type)}
    classes = {found for found in types if issubclass(found, BaseException)}
    assert {type(error) for error in EXAMPLES} == classes - {PerdureError}
    # A tool raises ToolFailureError, perdure does not: `except PerdureError` must not catch it.
    ours = {found for found in classes if issubclass(found, PerdureError)}
    assert classes - ours == {errors.ToolFailureError}
