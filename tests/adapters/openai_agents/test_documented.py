"""What the page on the Agents SDK shows runs, and prints what it says."""

import asyncio
import io
import re
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import openai
import pytest
from agents import OpenAIResponsesModel

from perdure.testing import ModelServer

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "openai-agents-sdk.md"
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_page_s_blocks_print_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    printed = ""
    for language, text in BLOCK.findall(PAGE.read_text("utf-8")):
        if language == "python":
            out = io.StringIO()
            with redirect_stdout(out):
                exec(compile(text, str(PAGE), "exec"), namespace)  # noqa: S102 - our own page
            printed = out.getvalue()
            namespace["make_model"] = models(namespace["server"])
        else:
            assert printed == text

    async def careful() -> None:
        async with namespace["perdure"].open_async("other.db") as store:
            await namespace["careful"](store)

    asyncio.run(careful())
    assert namespace["charged"] == [500, -20, 500]
    namespace["server"].close()


def models(server: ModelServer) -> Callable[[], Any]:
    """Make models that keep no connection open, as the page does not close them."""
    headers = {"Connection": "close"}
    return lambda: OpenAIResponsesModel(
        "gpt-4o",
        openai.AsyncOpenAI(
            base_url=server.url, api_key="test", max_retries=0, default_headers=headers
        ),
    )
