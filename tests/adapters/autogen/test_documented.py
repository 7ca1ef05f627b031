"""What the page on the classic API shows runs, and what its table says is tried."""

import io
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import autogen
import pytest

import perdure
from perdure.adapters.autogen import persist
from perdure.testing import ModelServer
from tests.adapters.autogen import restored
from tests.adapters.autogen.conftest import Cast
from tests.adapters.autogen.test_kills import CHATS, EFFECTS
from tests.adapters.autogen.test_persist import CHECKLIST, REFINE, said, sent

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "how-to" / "autogen-classic-and-ag2.md"
EXAMPLE = ROOT / "examples" / "autogen_claims.py"
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
            namespace["print"] = lambda *words, out=out: print(*words, file=out)
            with redirect_stdout(io.StringIO()):
                exec(compile(text, str(PAGE), "exec"), namespace)  # noqa: S102 - our own page.
            printed = out.getvalue()
        else:
            assert printed == text
    namespace["server"].close()
    assert len(namespace["paid"]) == 1


def test_every_case_of_the_table_is_one_of_the_chats() -> None:
    cases = {row.case for row in restored.ROWS if row.case}
    assert cases <= {*CHATS, *(f"{name}-{effect}" for name in CHATS for effect in EFFECTS)}


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


@pytest.mark.timeout(600)  # Two processes import the framework, which takes long on busy machines.
def test_the_example_remembers_the_checklist_after_a_restart(
    server: ModelServer, tmp_path: Path
) -> None:
    """The first process does not come to its end, the second does, and goes on."""
    server.fault(status=401)
    assert "AuthenticationError" in example(server, tmp_path, CHECKLIST)
    told = example(server, tmp_path, REFINE)
    assert "Going on with the chat that user_proxy started with assistant." in told
    assert "Messages persisted: 4" in told
    assert [text for role, text in sent(server) if role == "user"] == [CHECKLIST, REFINE]


def test_what_was_imported_goes_on_from_both_sides(
    cast: Cast, server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    user, assistant = cast.pair()
    user.initiate_chat(assistant, message=CHECKLIST)  # As the tutorial does, without perdure.
    kept = {"assistant": assistant.chat_messages[user], "user": user.chat_messages[assistant]}
    for side, messages in kept.items():
        Path(f"{side}.json").write_text(json.dumps(messages))
        words = ["-m", "perdure", "import", "--autogen", f"{side}.json", "--store", "s.db"]
        subprocess.run([sys.executable, *words], check=True, capture_output=True)
        user, assistant = cast.pair()
        with perdure.open("s.db") as store, persist(store.session(side), user, assistant):
            assert assistant.chat_messages[user] == kept["assistant"]
            assert user.chat_messages[assistant] == kept["user"]
            user.initiate_chat(assistant, message=REFINE)
        assert [role for role, _ in sent(server)] == ["system", "user", "assistant", "user"]
        assert [text for _, text in said(user, assistant)][:1] == [CHECKLIST]
    assert autogen.__version__
