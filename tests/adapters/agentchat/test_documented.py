"""What the page on AgentChat shows runs, and what its table says is tried."""

import gc
import io
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from autogen_ext.models.openai import OpenAIChatCompletionClient

from perdure.testing import ModelServer
from tests.adapters.agentchat import restored
from tests.adapters.agentchat.scripts import TASKS
from tests.adapters.agentchat.teams import MODEL, TEAMS

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "how-to" / "autogen-agentchat.md"
EXAMPLE = ROOT / "examples" / "agentchat_claims.py"
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
                exec(compile(text, str(PAGE), "exec"), namespace)  # noqa: S102 - our own page.
            printed = out.getvalue()
            namespace["client"] = clients(namespace["server"])
        else:
            assert printed == text
    namespace["server"].close()
    assert len({key for _, key in namespace["charged"]}) == len(namespace["charged"])
    namespace.clear()
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        gc.collect()  # One that failed stays open, and would be told to a later test.


def clients(server: ModelServer) -> Callable[[], Any]:
    """Make clients that keep no connection open, as the page does not close them."""
    return lambda: OpenAIChatCompletionClient(
        model=MODEL,
        base_url=server.url,
        api_key="test",
        max_retries=0,
        default_headers={"Connection": "close"},
    )


def test_every_case_of_the_table_is_one_of_the_teams() -> None:
    cases = {row.case for row in restored.ROWS if row.case}
    assert cases <= {*TEAMS}


def example(server: ModelServer, folder: Path, *prompts: str) -> str:
    environment = {**os.environ, "OPENAI_API_KEY": "test", "OPENAI_BASE_URL": server.url}
    done = subprocess.run(
        [sys.executable, EXAMPLE, *prompts],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout if done.returncode == 0 else done.stderr


def test_the_example_remembers_the_checklist_after_a_restart(
    server: ModelServer, tmp_path: Path
) -> None:
    assert "Messages persisted: 2" in example(server, tmp_path, TASKS[0])
    assert "Messages persisted: 4" in example(server, tmp_path, TASKS[1])
    sent = [one["content"] for one in server.requests[-1].body["messages"] if one["role"] == "user"]
    assert sent == TASKS


def test_the_example_goes_on_with_a_run_that_failed(server: ModelServer, tmp_path: Path) -> None:
    server.fault(status=401)
    assert "401" in example(server, tmp_path, TASKS[0])
    told = example(server, tmp_path, TASKS[1])
    assert f"Going on with: {TASKS[0]}" in told
    assert "Messages persisted: 4" in told
