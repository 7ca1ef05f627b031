"""Fixtures of servers: started when the first test asks for one, shared by all test processes.

Their drivers are imported by the fixtures: the environments of the frameworks do not have them.
"""

import os
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from tests import on_sealed

if TYPE_CHECKING:
    from tests.backends.redis.cluster import Cluster

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So it is in a run in the background of a shell, and in every process that a test starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)


if find_spec("hypothesis") is not None:
    from hypothesis import HealthCheck, settings

    # A run draws what the run before it drew, and a busy machine is no failure.
    patient = [HealthCheck.too_slow, HealthCheck.data_too_large]
    settings.register_profile(
        "perdure", derandomize=True, deadline=None, suppress_health_check=patient
    )
    settings.load_profile("perdure")


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[str]:
    """The address of a PostgreSQL server for this test run."""
    from tests.backends.postgres import server as postgres

    base = tmp_path_factory.getbasetemp()
    shared = postgres.Shared((base if worker_id == "master" else base.parent) / "postgres")
    yield shared.url
    shared.close()


@pytest.fixture(scope="session")
def postgres_schema(postgres_url: str) -> Iterator[str]:
    """The name of a schema of this test process, made when a store is opened there."""
    from tests.backends.postgres import server as postgres

    schema = postgres.new_schema()
    yield schema
    postgres.drop_schema(postgres_url, schema)


@pytest.fixture
def postgres_store(postgres_url: str, postgres_schema: str) -> str:
    """The address of an empty store: a tenant of its own, which costs nothing to make."""
    from tests.backends.postgres import server as postgres

    return postgres.address(postgres_url, schema=postgres_schema, tenant=postgres.new_schema())


@pytest.fixture
def postgres_empty(postgres_url: str) -> Iterator[str]:
    """The address of a store without tables, in a schema that does not exist yet."""
    from tests.backends.postgres import server as postgres

    schema = postgres.new_schema()
    yield postgres.address(postgres_url, schema=schema)
    postgres.drop_schema(postgres_url, schema)


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Valkey server for this test process."""
    from tests.backends.redis import server as redis

    if redis.OTHER in os.environ:
        yield os.environ[redis.OTHER]
        return
    server = redis.Server(tmp_path_factory.mktemp("valkey"))
    yield server.url
    server.stop()


@pytest.fixture(scope="session")
def redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Cluster"]:
    """A cluster of three primaries and three replicas for this test process."""
    from tests.backends.redis.cluster import Cluster

    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.stop()


@pytest.fixture
def redis_store(redis_url: str) -> str:
    """The address of an empty store: a tenant of its own, which costs nothing to make."""
    from tests.backends.redis import server as redis

    return redis.address(redis_url)


@pytest.fixture(autouse=True)  # pytest leaves out a fixture that only a parametrization names.
def on_backend(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test opens is its own kind of store, an encrypted one, or one on a server."""
    kind = getattr(request, "param", "own")
    if kind == "own":
        yield
        return
    monkeypatch = request.getfixturevalue("monkeypatch")
    if kind == "sealed":
        on_sealed.place(monkeypatch)
        yield
        return
    from tests.on_server import ENGINES, ServerStores

    engine = ENGINES[kind]
    there = ServerStores(engine, request.getfixturevalue(engine.fixture))
    there.place(monkeypatch, request.module)
    yield
    there.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    module, test = metafunc.module.__name__, metafunc.function.__name__
    kinds = ["own"]
    # The environments of the frameworks do not have the drivers.
    if find_spec("psycopg") is not None and find_spec("redis") is not None:
        from tests import on_server

        kinds += on_server.engines(module, test)
    if find_spec("cryptography") is not None and on_sealed.takes_part(module, test):
        kinds.append("sealed")
    if len(kinds) > 1:
        metafunc.parametrize("on_backend", kinds, indirect=True)
