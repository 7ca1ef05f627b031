"""Clients of the real package, and one that only sees bytes."""

import json
import urllib.request
from typing import Any

import openai
from openai.types.chat import ChatCompletionMessageParam

from perdure.testing import ModelServer

USER: ChatCompletionMessageParam = {"role": "user", "content": "hello"}


def client_of(server: ModelServer, **more: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url, api_key="test", **more)


def async_client_of(server: ModelServer, **more: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=server.url, api_key="test", **more)


def user(text: str) -> ChatCompletionMessageParam:
    return {"role": "user", "content": text}


def post(url: str, body: Any) -> bytes:
    """Call without the package, to see the bytes."""
    headers = {"authorization": "Bearer test", "content-type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310 - ours.
    with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310 - ours.
        data = response.read()
    assert isinstance(data, bytes)
    return data
