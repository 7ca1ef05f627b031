"""Redis keeps the contract, in both colours; here is what is special to it."""

from collections.abc import Callable

import pytest

from perdure.backends.protocol import AsyncBackend, Backend
from perdure.backends.redis.backend import RedisBackend
from perdure.backends.redis.backend_async import AsyncRedisBackend
from perdure.testing import AsyncBackendContract, BackendContract
from tests.backends.redis.cluster import Cluster


class TestRedis(BackendContract):
    @pytest.fixture
    def open_backend(self, redis_store: str) -> Callable[[], Backend]:
        return lambda: RedisBackend(redis_store)


class TestRedisCluster(BackendContract):
    @pytest.fixture
    def open_backend(self, redis_cluster: Cluster) -> Callable[[], Backend]:
        address = redis_cluster.address()
        return lambda: RedisBackend(address)


class TestAsyncRedisCluster(AsyncBackendContract):
    @pytest.fixture
    def open_backend(self, redis_cluster: Cluster) -> Callable[[], AsyncBackend]:
        address = redis_cluster.address(replicas=1)
        return lambda: AsyncRedisBackend(address)


class TestAsyncRedis(AsyncBackendContract):
    @pytest.fixture
    def open_backend(self, redis_store: str) -> Callable[[], AsyncBackend]:
        return lambda: AsyncRedisBackend(redis_store)
