"""`store.verify`: everything that is wrong with a store and its sessions, in both colors."""

import asyncio
from pathlib import Path

import apsw
import pytest

import perdure
from perdure.backends.memory import MemoryBackend
from perdure.core.verify import StoreVerifyResult
from perdure.errors import ChainError, VersionError
from perdure.journal import chain
from tests.journal.test_reader import in_header
from tests.support import said


def verified(address: object) -> StoreVerifyResult:
    """Verify in both colors; both must say the same."""

    async def verify() -> StoreVerifyResult:
        async with perdure.open_async(address) as store:  # type: ignore[arg-type]
            return await store.verify()

    if isinstance(address, MemoryBackend):
        return perdure.open(address).verify()
    with perdure.open(address) as store:  # type: ignore[arg-type]
        result = store.verify()
    other = asyncio.run(verify())
    assert [str(problem) for problem in other.problems] == [str(one) for one in result.problems]
    assert other._replace(problems=()) == result._replace(problems=())
    return result


@pytest.fixture(params=["{}/agents.db", "files:{}/state"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    address = str(request.param).format(tmp_path)
    with perdure.open(address) as store:
        for name in ("a", "b", "c"):
            store.session(name).append(said("one"), said("two"))
        store.session("a").branch("d").append(said("what if"))
        store.delete("c")
    return address


def test_an_intact_store_has_no_problems(address: str) -> None:
    result = verified(address)
    assert (result.ok, result.problems, result.compared) == (True, (), True)
    assert (result.sessions, result.store) == (4, perdure.open(address)._backend.name)
    assert result.records > 6


def test_damage_of_two_sessions_is_returned_and_not_raised(tmp_path: Path) -> None:
    path = tmp_path / "agents.db"
    with perdure.open(path) as store:
        for name in ("a", "b", "c"):
            store.session(name).append(said("one"), said("two"))
    db = apsw.Connection(str(path))
    db.execute(
        "update entry set body = 'x' where position = 2 and stream in"
        " (select id from head where name in ('a', 'c'))"
    )
    db.close()
    result = verified(path)
    assert not result.ok
    assert [problem.stream for problem in result.problems] == ["a", "c"]  # type: ignore[attr-defined]
    assert {problem.position for problem in result.problems} == {1}  # type: ignore[attr-defined]


def test_a_session_of_a_newer_version_is_a_problem_too() -> None:
    backend = MemoryBackend()
    perdure.open(backend).session("s").note(1)
    (entry,) = backend._streams["s"].entries
    stream = backend._streams["s"]
    stream.entries[0] = in_header(b"[1,", b"[2,")(entry)
    (problem,) = verified(backend).problems
    assert isinstance(problem, ChainError)  # Its head has another digest: it was altered.
    stream.digest = chain.entry_digest(stream.entries[0])
    (problem,) = verified(backend).problems
    assert isinstance(problem, VersionError)


def test_a_file_that_is_gone_is_found_in_a_directory(tmp_path: Path) -> None:
    address = f"files:{tmp_path}/state"
    with perdure.open(address) as store:
        for name in ("a", "b"):
            store.session(name).note(1)
    next(path for path in tmp_path.rglob("*.jsonl") if b'"a"' in path.read_bytes()).unlink()
    problems = verified(address).problems
    assert "its file is missing" in str(problems[0]) or "missing" in str(problems[0])
    assert {problem.stream for problem in problems} == {"a"}  # type: ignore[attr-defined]
