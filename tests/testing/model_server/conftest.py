"""A server and a client of the real package, closed after each test."""

from collections.abc import Iterator

import openai
import pytest

from perdure.testing import ModelServer
from tests.testing.model_server.serving import client_of


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture
def client(server: ModelServer) -> Iterator[openai.OpenAI]:
    with client_of(server) as client:
        yield client
