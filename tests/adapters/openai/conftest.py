"""A server, a client of the real package and a session in memory, for each test."""

from collections.abc import Iterator

import openai
import pytest

import perdure
from perdure.adapters.openai import wrap
from perdure.testing import ModelServer


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(strict=True) as server:
        yield server


@pytest.fixture
def bare(server: ModelServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url, api_key="test", max_retries=0) as client:
        yield client


@pytest.fixture
def session() -> Iterator[perdure.Session]:
    with perdure.open("memory:") as store:
        yield store.session("s")


@pytest.fixture
def client(bare: openai.OpenAI, session: perdure.Session) -> openai.OpenAI:
    return wrap(bare, session)
