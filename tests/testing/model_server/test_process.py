"""The server as a process of its own, which ends with its standard input."""

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator

import openai
import pytest

from tests.testing.model_server.serving import USER, post

COMMAND = [sys.executable, "-m", "perdure.testing.model_server", "--context-limit", "50"]


def test_importing_the_tools_for_tests_brings_little() -> None:
    code = "import sys, perdure.testing; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"asyncio", "http.server", "hypothesis", "openai", "pytest", "socketserver"}
    assert heavy & {*found.stdout.split()} == set()
    assert "perdure.testing.faults" in found.stdout.split()


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with subprocess.Popen([*COMMAND, "--until-eof"], stdin=pipe, stdout=pipe, text=True) as process:
        yield process


def test_it_prints_its_address_serves_and_ends_when_its_input_ends(
    process: subprocess.Popen[str],
) -> None:
    assert process.stdout is not None
    assert process.stdin is not None
    url = process.stdout.readline().strip()
    control = url.removesuffix("/v1") + "/test"
    with openai.OpenAI(base_url=url, api_key="test") as client:
        post(f"{control}/faults", {"status": 500})
        assert client.chat.completions.create(model="m", messages=[USER]).choices
        with pytest.raises(openai.BadRequestError, match="maximum context length is 50"):
            client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "a" * 200}]
            )
    with urllib.request.urlopen(f"{control}/requests", timeout=60) as response:  # noqa: S310
        requests = json.load(response)
    assert [request["number"] for request in requests] == [1, 2, 3]
    assert requests[1]["body"]["messages"] == [USER]
    with pytest.raises(urllib.error.HTTPError, match="400"):
        post(f"{control}/faults", {"explode": True})
    with pytest.raises(urllib.error.HTTPError, match="404"):
        post(f"{control}/nonsense", {})
    process.stdin.close()
    assert process.wait(60) == 0
