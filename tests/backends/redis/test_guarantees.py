"""Servers that could lose sessions are refused, or named as weak; errors tell no secret."""

import asyncio
import logging
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

import perdure
from perdure.backends.redis.backend import RedisBackend
from perdure.errors import UnavailableError, UnsupportedError, UsageError, VersionError
from perdure.testing.contract.samples import append_all, append_of, entries, entry, names
from tests.backends.redis.cluster import Cluster
from tests.backends.redis.server import Server, address

SECRET = "sEcReT99"  # noqa: S105 - it is looked for where it must not be

EVICTING = ("allkeys-lru", "volatile-ttl", "allkeys-random")

WEAK = {
    "appendfsync-everysec": {"appendfsync": "everysec"},
    "appendfsync-no": {"appendfsync": "no"},
    "no-appendfsync-on-rewrite": {"no-appendfsync-on-rewrite": "yes"},
    "appendonly-no": {"appendonly": "no"},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose settings may be changed."""
    server = Server(tmp_path_factory.mktemp("valkey"))
    yield server
    server.stop()


@pytest.fixture
def changed(server: Server) -> Iterator[Any]:
    """A function that changes settings until the test has ended."""
    client, before = server.client(), dict[str, str]()

    def change(**settings: str) -> None:
        for key, value in settings.items():
            name = key.replace("_", "-")
            before.setdefault(name, str(client.config_get(name)[name]))
            client.config_set(name, value)

    with client:
        yield change
        for name, value in before.items():
            client.config_set(name, value)


def test_it_says_what_it_is_and_what_survives(redis_store: str) -> None:
    with perdure.open(redis_store) as store:
        found = store.guarantees()
    assert (found.survives, found.shared_by, found.engine) == (
        "power loss",
        "many machines",
        "Valkey",
    )
    checks = {check.name: check.found for check in found.checks}
    assert checks["appendfsync"] == "always"
    assert checks["maxmemory-policy"] == "noeviction"
    assert checks["replicas"] == "none"


@pytest.mark.parametrize("policy", EVICTING)
def test_a_server_that_evicts_is_refused_whatever_is_accepted(
    server: Server, changed: Any, policy: str
) -> None:
    store = server.address()
    perdure.open(store).close()
    changed(maxmemory_policy=policy)
    for extra in ("", "&accept=unchecked-durability,appendfsync-everysec"):
        with pytest.raises(UnsupportedError, match=f"maxmemory-policy {policy}.*noeviction"):
            perdure.open(store + extra)


@pytest.mark.parametrize("word", WEAK)
def test_a_server_that_does_not_sync_is_refused_or_accepted_by_name(
    server: Server, changed: Any, word: str
) -> None:
    changed(**{key.replace("-", "_"): value for key, value in WEAK[word].items()})
    store = server.address()
    with pytest.raises(UnsupportedError, match=rf"\?accept={word}"):
        perdure.open(store)
    other = next(one for one in WEAK if one != word)
    with pytest.raises(UnsupportedError, match=rf"\?accept={word}"):
        perdure.open(f"{store}&accept={other}")
    with perdure.open(f"{store}&accept={word}") as opened:
        found = opened.guarantees()
    assert found.survives == "process death"
    assert [one.name for one in found.accepted] == [word]
    assert [check.verdict for check in found.checks].count("weak") == 1


def limited_user(server: Server, *rules: str) -> str:
    """Make a user with some rights; return the address of an empty store that it opens."""
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "agent", "reset", "on", f">{SECRET}", *rules)
    return address(server.url.replace("://", f"://agent:{SECRET}@"))


def test_settings_that_may_not_be_read_are_accepted_by_name(server: Server) -> None:
    rules = ("~perdure:*", "&perdure:*", "+@all", "-config")
    store = limited_user(server, *rules)
    with pytest.raises(
        UnsupportedError, match=r"CONFIG GET.*\?accept=unchecked-durability"
    ) as caught:
        perdure.open(store)
    assert SECRET not in str(caught.value)
    with perdure.open(f"{store}&accept=unchecked-durability") as opened:
        found = opened.guarantees()
        opened.session("s").append({"role": "user", "content": "hi"})
    assert found.survives == "undeclared"
    assert {check.name: check.verdict for check in found.checks}["appendfsync"] == "unknown"


def test_the_rights_in_the_docs_are_enough(server: Server) -> None:
    page = Path(__file__).parents[3] / "docs" / "how-to" / "deploy-with-redis.md"
    line = next(line for line in page.read_text("utf-8").splitlines() if line.startswith("user "))
    store = limited_user(server, *line.split()[4:])
    backend = RedisBackend(store)
    assert append_all(backend, append_of("s", 1, 3, "l"), append_of("t", 1, 1)) == ["stored"] * 2
    assert append_all(backend, append_of("s", 1, 3, "l")) == ["stored"]
    assert backend.append_together([append_of("t", 2, 2)]).status == "stored"
    assert backend.watch("s", after=3, timeout=0.2) is False
    backend.drop("s", before=3)
    assert names(backend, labels=["l"]) == ["s"]
    assert [head.stream for head in backend.recent()] == ["t", "s"]
    assert list(backend.check()) == []
    assert backend.remove("s", digest=next(backend.streams(prefix="s")).digest)
    backend.close()
    with perdure.open(store) as opened:
        assert opened.guarantees().survives == "power loss"


@pytest.mark.parametrize("command", ["xadd", "zadd", "hset", "evalsha"])
def test_a_right_that_is_missing_is_noticed_before_anything_is_stored(
    server: Server, command: str
) -> None:
    store = limited_user(server, "~perdure:*", "&perdure:*", "+@all", f"-{command}")
    backend = RedisBackend(store)
    with pytest.raises(UnavailableError, match="lacks a permission"):
        append_all(backend, append_of("s", 1, 1))
    backend.close()
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "agent", f"+{command}")
        client.script_flush()
    backend = RedisBackend(store)
    assert names(backend) == []
    assert append_all(backend, append_of("s", 1, 1)) == ["stored"]
    backend.close()


def test_a_wrong_password_is_one_error_without_it(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    store = limited_user(server, "~*", "+@all").replace(SECRET, f"{SECRET}x")
    caplog.set_level(logging.DEBUG)
    for opening in (perdure.open, perdure.open_async):
        with pytest.raises(UnavailableError, match=r"refused the login.*check the user") as caught:
            opening(store)
        error: BaseException | None = caught.value
        while error is not None:
            shown = traceback.TracebackException.from_exception(error, capture_locals=True)
            # The address that was passed is in the frames that got it, and nowhere deeper.
            inner = [one for one in shown.stack if "/backends/redis/" in one.filename]
            inner = [one for one in inner if one.name != "__init__" and "/src/" in one.filename]
            assert inner or error is not caught.value
            assert not any(SECRET in text for one in inner for text in (one.locals or {}).values())
            error = error.__cause__ or error.__context__
        assert SECRET not in repr(caught.value)
    assert SECRET not in caplog.text


def test_an_address_shows_no_password(redis_url: str) -> None:
    from perdure.backends.redis.address import parse_address

    parsed = parse_address(f"rediss://me:{SECRET}@a:1,b:2/0?tenant=t")
    assert SECRET not in repr(parsed) + str(parsed) + parsed.name
    assert parsed.name == "rediss://me@a:1,b:2/0?tenant=t"
    assert parsed.login.reveal() == {"username": "me", "password": SECRET}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("redis://h/0?tenan=t", "has no option 'tenan'"),
        (f"redis://u:a?{SECRET}@h/0", "has an unknown option"),
        (f"redis://u:a/{SECRET}@h/0", "cannot be parsed"),
        (f"redis://u:{SECRET}@@h/0", "cannot be parsed"),
        ("redis://h:99999999/0", "cannot be parsed"),
        ("redis://h/0?replicas=x", "must be 0 to 16"),
        ("redis://h/0?ack=tape", "must be disk or memory"),
        ("redis://h/0?timeout=-1", "must be a positive number"),
        ("redis://h/0?connections=1.5", "must be a positive number"),
        ("redis://h/0?prefix=%7Ba%7D", "may have letters"),
        ("redis://h/0?ssl_ca_certs=x", "needs TLS: write rediss://"),
        ("rediss://h/0?ssl_cert_reqs=maybe", "must be required, optional or none"),
    ],
)
def test_an_address_that_is_wrong_is_told_why(given: str, message: str) -> None:
    for opening in (perdure.open, perdure.open_async):
        with pytest.raises(UsageError, match=message) as caught:
            opening(given)
        assert SECRET not in f"{caught.value!r}{caught.value.__cause__!r}"


def test_no_server_is_an_error_at_once_or_after_the_time_to_wait(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="check that the server is running"):
        perdure.open("redis://127.0.0.1:1/0")
    with pytest.raises(UnavailableError, match="check that the server is running"):
        perdure.open("redis://127.0.0.1:1/0?wait=0.3")
    with pytest.raises(UnavailableError):
        perdure.open(f"redis://{str(tmp_path / 'no.sock').replace('/', '%2F')}/0")


def test_several_hosts_are_a_cluster(server: Server) -> None:
    with pytest.raises(UsageError, match="is no cluster"):
        perdure.open(f"redis://127.0.0.1:{server.port},127.0.0.1:{server.port}/0")


def test_a_cluster_has_one_database(redis_cluster: Cluster) -> None:
    with pytest.raises(UsageError, match="only the database 0"):
        perdure.open(redis_cluster.url.replace("/0", "/1"))


def test_a_newer_layout_is_refused(server: Server) -> None:
    store = server.address()
    backend = RedisBackend(store)
    append_all(backend, append_of("s", 1, 1))
    with server.client() as client:
        client.hset(backend._pool.layout.store_key(), "layout", "2")
    backend.close()
    with pytest.raises(VersionError):
        perdure.open(store)


def test_a_full_server_refuses_appends_whole_and_can_be_read(server: Server, changed: Any) -> None:
    backend = RedisBackend(server.address(timeout=2))
    append_all(backend, append_of("s", 1, 2))
    with server.client() as client:
        used = client.info("memory")["used_memory"]
    changed(maxmemory=str(used // 2))
    for appends in ([append_of("s", 3, 5)], [append_of("s", 3, 3), append_of("t", 1, 1)]):
        with pytest.raises(UnavailableError, match=r"memory is full.*raise its maxmemory"):
            backend.append(appends)
    assert list(backend.read("s")) == entries(1, 2)
    assert names(backend) == ["s"]
    changed(maxmemory="0")
    assert append_all(backend, append_of("s", 3, 5), append_of("t", 1, 1)) == ["stored"] * 2
    assert list(backend.check()) == []
    backend.close()


def test_a_socket_and_tls_are_used_as_the_address_says(tmp_path: Path) -> None:
    path = tmp_path / "v.sock"
    server = Server(tmp_path / "data", unixsocket=str(path))
    try:
        where = f"redis://{str(path).replace('/', '%2F')}/3"
        with perdure.open(where) as store:
            store.session("s").append({"role": "user", "content": "hi"})

        async def count() -> int:
            async with perdure.open_async(where) as store:
                return len(await store.session("s"))

        assert asyncio.run(count()) == 1
        with server.client(db=3) as client:
            assert client.dbsize() > 0
        kind: Any = redis.connection.SSLConnection
        made = list[Any]()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kind, "__init__", lambda *_, **options: made.append(options))
            patch.setattr(kind, "connect", lambda *_: (_ for _ in ()).throw(OSError("no")))
            patch.setattr(kind, "disconnect", lambda *_: None)
            patch.setattr(kind, "__del__", lambda *_: None)
            with pytest.raises(UnavailableError):
                perdure.open("rediss://h:1/0?ssl_ca_certs=ca.pem")
        assert (made[0]["host"], made[0]["ssl_ca_certs"]) == ("h", "ca.pem")
    finally:
        server.stop()


def test_retries_of_the_driver_are_off(redis_store: str) -> None:
    backend = RedisBackend(redis_store)
    append_all(backend, append_of("s", 1, 1))
    ((link,),) = backend._pool._idle.values()
    assert link._link.retry.get_retries() == 0
    assert link._link.retry_on_error == []
    assert entry(1) == next(backend.read("s"))
    backend.close()
