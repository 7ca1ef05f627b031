"""What the page on LangGraph shows runs."""

import io
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "langgraph.md"
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
        else:
            assert printed == text
