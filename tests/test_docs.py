"""What the documentation says is true: its code runs, its links lead somewhere, it is complete."""

import contextlib
import inspect
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

import perdure
from perdure import errors
from perdure.cli.__main__ import main
from tests.adapters import restored

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FORMAT = ROOT / "docs" / "reference" / "format.md"
NOT_RUN = re.compile(r"<!-- not run: (.*) -->")


class Block(NamedTuple):
    """A fenced block: its language, the number of its first line, its text, why it is not run."""

    language: str
    line: int
    text: str
    not_run: str | None


def blocks(page: Path) -> Iterator[Block]:
    lines = page.read_text("utf-8").splitlines()
    start, language = None, ""
    for number, line in enumerate(lines):
        if start is None and line.startswith("```"):
            start, language = number, line[3:]
        elif start is not None and line == "```":
            mark = NOT_RUN.fullmatch(lines[start - 1])
            text = "\n".join(lines[start + 1 : number]) + "\n"
            yield Block(language, start + 2, text, mark[1] if mark else None)
            start = None
    assert start is None, f"{page.name}: a block is not closed"


def python(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.language == "python"]


def execute(page: Path, found: list[Block]) -> dict[str, Any]:
    """Run blocks in one namespace; a traceback names the page and the line."""
    namespace: dict[str, Any] = {"__name__": "docs"}
    for block in found:
        code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
        with contextlib.redirect_stdout(io.StringIO()):
            exec(code, namespace)  # noqa: S102 - our own documentation.
    return namespace


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


# Printed between two blocks, to know which of them printed what.
BORDER = "--- the next block ---"


def as_script(page: Path) -> str:
    """Return a page as the script that its reader pastes: each line of code has its own number."""
    lines = [""] * len(page.read_text("utf-8").splitlines())
    for block in python(page):
        if block.not_run is None:
            lines[block.line - 2] = f"print({BORDER!r})"  # In place of the fence.
            code = block.text.splitlines()
            lines[block.line - 1 : block.line - 1 + len(code)] = code
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("page", [page for page in PAGES if python(page)], ids=named)
def test_every_page_runs_when_it_is_pasted_on_its_own(
    page: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    environment = {**os.environ}
    if "DATABASE_URL" in page.read_text("utf-8"):
        environment["DATABASE_URL"] = request.getfixturevalue("postgres_store")
    if "REDIS_URL" in page.read_text("utf-8"):
        environment["REDIS_URL"] = request.getfixturevalue("redis_store")
    script = tmp_path / "page.py"
    script.write_text(as_script(page), "utf-8")
    work = tmp_path / "work"
    work.mkdir()
    done = subprocess.run(
        [sys.executable, "-I", script],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{page.name}: {done.stderr}"
    printed = iter(done.stdout.split(f"{BORDER}\n")[1:])
    left = ""
    for block in blocks(page):
        if block.language == "python" and block.not_run is None:
            left += next(printed)
        elif block.language == "text" and left:
            assert left == block.text, f"{page.name}, line {block.line}"
            left = ""
    assert left == "", f"{page.name} prints what the page does not show"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_block_names_its_language_and_says_why_it_is_not_run(page: Path) -> None:
    for block in blocks(page):
        assert block.language, f"{page.name}, line {block.line}: which language?"
        assert block.not_run != ""


@pytest.mark.skipif(os.name != "posix", reason="the example kills itself with SIGKILL")
def test_the_example_that_kills_itself_is_resumed(tmp_path: Path) -> None:
    (example,) = [block for block in python(ROOT / "README.md") if block.not_run is not None]
    script = tmp_path / "resume.py"
    script.write_text(example.text, "utf-8")
    first, second, third = (
        subprocess.run(
            [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        for _ in range(3)
    )
    assert first.returncode == -signal.SIGKILL
    assert second.returncode == 0, second.stderr
    assert second.stdout.startswith("2 messages, plan {'step': 1}, last {'role': 'assistant'")
    assert "2. Check the limit of authority." in second.stdout
    assert third.stdout.startswith("3 messages, plan {'step': 2}")
    assert "continued" not in third.stdout


def command_block(kind: str) -> str:
    text = (ROOT / "README.md").read_text("utf-8")
    found = re.findall(rf"<!-- command: {kind} -->\n```bash\n(.+)\n```\n", text)
    assert len(found) == 1
    return str(found[0])


def test_the_test_command_of_the_readme_is_the_one_that_is_run() -> None:
    assert command_block("test") == (ROOT / ".ci" / "run").read_text("utf-8").splitlines()[-1]


def test_the_run_command_of_the_readme_is_the_demo() -> None:
    assert command_block("run").endswith(".venv/bin/perdure demo")


def links(page: Path) -> Iterator[str]:
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"`[^`\n]*`", "", text)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:", target):
            yield target


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_within_the_repository_leads_somewhere(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {link}"


def test_links_are_found_at_all() -> None:
    assert "CHANGELOG.md" in set(links(ROOT / "README.md"))
    assert "invariants" in anchors(ROOT / "ARCHITECTURE.md")


TABLES = pytest.mark.parametrize("table", restored.tables(), ids=lambda table: table.page.stem)


@TABLES
def test_a_page_has_the_table_that_the_frameworks_tests_make(table: restored.Table) -> None:
    assert table.shown() == table.text(), "run: python -m tests.adapters.restored"


@TABLES
def test_every_row_of_such_a_table_names_a_test(table: restored.Table) -> None:
    known = table.functions()
    assert [row.test for row in table.rows if row.function not in known] == []


# Raised between a backend and the core, as a kind of a public error.
INTERNAL_ERRORS = {"StoreMissingError", "UnstorableError"}

# Kinds of a public error, for callers that tell them apart.
DETAILED_ERRORS = {"ErasedError", "MissingKeyError", "WrongKeyError"}


def test_every_error_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "reference" / "errors.md").read_text("utf-8")
    for name, error in inspect.getmembers(errors, inspect.isclass):
        if issubclass(error, perdure.PerdureError):
            assert f"| `{name}`" in text
            assert (
                getattr(perdure, name, None) is error or name in INTERNAL_ERRORS | DETAILED_ERRORS
            )


def test_every_kind_of_record_is_in_the_format() -> None:
    from perdure.journal.kinds import KINDS

    text = FORMAT.read_text("utf-8")
    for kind, content in KINDS.items():
        (row,) = re.findall(rf"^\| `{re.escape(kind)}` \| (.+?) \|", text, re.MULTILINE)
        if kind == "part":  # Its payload is bytes.
            assert row == "none"
            continue
        fields = [re.sub(r" \(.*\)", "", field) for field in row.split(", ")]
        assert [*COMMON, *fields] == list(content.__struct_fields__)
        documented = dict(re.findall(r"(\w+) \(([^)]*)\)", row))
        encoded = {
            field.name: _text_of_default(field)
            for field in msgspec.structs.fields(content)
            if not field.required and field.name not in COMMON
        }
        assert documented == encoded, kind


def _text_of_default(field: msgspec.structs.FieldInfo) -> str:
    default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    return msgspec.json.encode(default).decode().removesuffix(".0")


COMMON = ("v", "origin", "trust", "sources", "about", "parts")


def test_every_common_field_is_in_the_format() -> None:
    text = FORMAT.read_text("utf-8")
    assert all(f"| {field} | " in text for field in COMMON)


def test_every_field_of_a_header_is_in_the_format_in_its_order() -> None:
    from perdure.journal.chain import Header, RecordHeader

    text = FORMAT.read_text("utf-8")
    for fields in (Header.__struct_fields__, RecordHeader.__struct_fields__):
        rows = "".join(rf"\| {number} \| {name} \|.*\n" for number, name in enumerate(fields))
        assert re.search(rows, text)


def test_the_figures_of_the_format_are_those_of_the_code() -> None:
    from perdure.backends.protocol import HEADER_MAX
    from perdure.core.state.conversation import ConversationState
    from perdure.core.state.session_state import STATE_VERSION, SessionState
    from perdure.core.state.values import DELTA_CHAIN_MAX
    from perdure.journal import chain

    text = FORMAT.read_text("utf-8")
    assert f"the version of the rules, {STATE_VERSION}." in text
    assert f"A header has at most {HEADER_MAX // 2**20} MiB" in text
    assert f"at most {chain.RECORDS_MAX:,} records" in text
    assert (
        f"bodies of {chain.BODY_MAX // 2**20} MiB; perdure writes {chain.ENTRY_MAX // 2**20} MiB"
        in text
    )
    for fact in SessionState().facts():
        assert f"- `{fact}`:" in text
    (items,) = re.findall(r"^`conversation` is an array of\n\n((?:[- ] .*\n)+)", text, re.MULTILINE)
    assert len(re.findall("^- ", items, re.MULTILINE)) == len(ConversationState._fields)
    assert f"At most {DELTA_CHAIN_MAX} deltas follow" in text


def test_every_tag_of_a_scalar_is_in_the_format() -> None:
    from perdure.journal import scalars

    tags = re.findall(r"^\| `(\$\w+)` \|", FORMAT.read_text("utf-8"), re.MULTILINE)
    assert {*tags} == {*scalars._UNPACK, "$type", "$large", "$object"}


def test_strings_of_headers_are_written_as_the_format_says() -> None:
    named = {8: rb"\b", 9: rb"\t", 10: rb"\n", 12: rb"\f", 13: rb"\r", 34: rb"\"", 92: rb"\\"}
    for code in (*range(0x300), 0x2028, 0xFFFF, 0x1F4A7, 0x10FFFF):
        other = b"\\u%04x" % code if code < 32 else chr(code).encode()
        expected = b'"%b"' % named.get(code, other)
        assert msgspec.json.encode(chr(code)) == expected, code
        assert json.dumps(chr(code), ensure_ascii=False).encode() == expected, code


def test_every_table_of_a_store_is_in_the_format(tmp_path: Path) -> None:
    import apsw

    perdure.open(tmp_path / "store.db").close()
    db = apsw.Connection(str(tmp_path / "store.db"))
    tables = [
        str(row[0]) for row in db.execute("select name from sqlite_schema where type='table'")
    ]
    rows = dict(re.findall(r"^\| `(\w+)` \| (`.+) \|$", FORMAT.read_text("utf-8"), re.MULTILINE))
    assert {"entry", "head", "label"} <= set(tables)
    for table in tables:
        columns = [str(row[1]) for row in db.execute(f"pragma table_info({table})")]
        assert [
            name for name in columns if name != "rowid" and f"`{name}`" not in rows[table]
        ] == []
    db.close()


@pytest.mark.parametrize(
    ("cls", "page"),
    [(perdure.Session, "session"), (perdure.Turn, "session"), (perdure.Store, "store")],
)
def test_every_public_method_is_in_the_reference(cls: type, page: str) -> None:
    text = (ROOT / "docs" / "reference" / f"{page}.md").read_text("utf-8")
    name = cls.__name__.lower()
    public = [found for found in dir(cls) if not found.startswith("_")]
    assert [found for found in public if f"{name}.{found}" not in text] == []


# The objects that an application holds in an event loop, by the names in the documentation.
ASYNC_OBJECTS = {
    "store": "store.AsyncStore",
    "session": "session.AsyncSession",
    "turn": "turn.AsyncTurn",
    "agent": "agent.AsyncAgent",
    "tool": "tools.AsyncTool",
    "model": "tools.AsyncModel",
    "stream": "stream.AsyncStream",
    "session.values": "values.AsyncValues",
    "session.effects": "effects.AsyncEffects",
    "session.approvals": "approvals.AsyncApprovals",
    "session.batch()": "batch.AsyncBatch",
    "turn.batch()": "batch.AsyncTurnBatch",
    "store.batch()": "batch.AsyncStoreBatch",
    "session.lease()": "lease.AsyncLease",
    "session.view()": "view.AsyncView",
}
NOT_FOR_CALLERS = {
    "make",
    "require_read",
    "completes",
    "open",
    "end",
}  # Other modules of perdure use them.


def async_table() -> Iterator[str]:
    """Yield the rows of the table of what is awaited: for each object, its methods by kind."""
    for name, place in ASYNC_OBJECTS.items():
        module, _, class_name = place.partition(".")
        cls = getattr(import_module(f"perdure.aio.{module}"), class_name)
        ways: dict[str, list[str]] = {"await": [], "async for": [], "": []}
        for method in dir(cls):
            if method == "__call__":
                ways["await"].append(f"`{name}(...)`")
            elif not method.startswith("_") and method not in NOT_FOR_CALLERS:
                found = inspect.getattr_static(cls, method)
                way = "await" if inspect.iscoroutinefunction(found) else ""
                returned = str(getattr(found, "__annotations__", {}).get("return"))
                way = "async for" if "AsyncIterator[" in returned else way
                ways[way].append(f"`{method}`")
        if hasattr(cls, "__anext__"):
            ways["async for"].append("itself")
        entered = ", `async with`" if hasattr(cls, "__aenter__") else ""
        cells = [", ".join(methods) for methods in ways.values()]
        yield f"| `{name}`{entered} | {' | '.join(cells)} |"


def test_the_page_about_asyncio_has_every_method() -> None:
    text = (ROOT / "docs" / "how-to" / "use-with-asyncio.md").read_text("utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert rows == [*async_table()]


def test_every_command_is_mentioned() -> None:
    text = "".join(page.read_text("utf-8") for page in PAGES)
    assert main.commands
    for command in main.commands:
        assert f"perdure {command}" in text


def test_it_is_said_which_commands_have_no_json() -> None:
    without = [
        f"`{name}`"
        for name, command in main.commands.items()
        if not any("--json" in parameter.opts for parameter in command.params)
    ]
    *first, last = without
    said_so = f"{', '.join(first)} and {last}"
    for page in ("README.md", "docs/reference/cli.md"):
        assert said_so in (ROOT / page).read_text("utf-8"), page


def test_the_index_and_the_navigation_lead_to_every_page() -> None:
    index = {*links(ROOT / "docs" / "index.md")}
    navigation = {*re.findall(r"\S+\.md", (ROOT / "mkdocs.yml").read_text("utf-8"))}
    folders = ("tutorials", "how-to", "reference", "explanation")
    pages = {f"{name}/{page.name}" for name in folders for page in (ROOT / "docs" / name).glob("*")}
    assert pages
    assert pages - index == set()
    assert pages - navigation == set()


def test_every_decision_is_dated_and_listed() -> None:
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    for page in (ROOT / "docs" / "decisions").glob("*.md"):
        text = page.read_text("utf-8")
        assert f"(decisions/{page.name})" in index
        assert re.search(r"^\d{4}-\d\d-\d\d$", text, re.MULTILINE)
        for part in ("Context", "Choice", "Cost", "Alternatives"):
            assert f"\n## {part}\n" in text


def test_the_readme_has_less_than_200_lines() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) < 200


def test_the_architecture_fits_in_120_lines() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text("utf-8").splitlines()) <= 120


def test_the_architecture_names_functions_that_exist() -> None:
    source = "".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    found = set(re.findall(r"`(?:[\w]+\.)+([a-z_]+)`", text)) - {"py"}
    assert {"append", "append_messages", "write", "link_entry", "decide"} <= found
    defined = set(
        re.findall(r"\b(?:def|class) (\w+)|^ +(\w+): ClassVar|^(\w+) =", source, re.MULTILINE)
    )
    names = {name for groups in defined for name in groups}
    modules = {path.stem for path in (ROOT / "src" / "perdure").glob("*.py")}
    assert found - names - modules == set()


def test_the_backend_of_the_documentation_keeps_the_contract(tmp_path: Path) -> None:
    page = ROOT / "docs" / "reference" / "backend-contract.md"
    wanted = [block.text for block in python(page) if "class " in block.text]
    test = tmp_path / "test_documented.py"
    test.write_text("\n".join(wanted), "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


# The reader of format.md, against what perdure writes.

Read = Callable[[Path, str], tuple[list[tuple[int, str, str, Any]], str]]


@pytest.fixture
def read() -> Read:
    (reader,) = [block for block in python(FORMAT) if "def read(" in block.text]
    lines = sum(bool(line.strip()) for line in reader.text.splitlines())
    assert f"## A reader in {lines} lines\n" in FORMAT.read_text("utf-8")
    imported = re.findall(r"^(?:import|from) (\w+)", reader.text, re.MULTILINE)
    assert set(imported) <= sys.stdlib_module_names
    found: Read = execute(FORMAT, [reader])["read"]
    return found


def said(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def agree(read: Read, path: Path, session: perdure.Session) -> list[int]:
    """Check that both read the same, and return the positions."""
    records, digest = read(path, session.id)
    assert digest == session.verify().digest
    shown = [(record.position, record.kind, record.id) for record in session.records()]
    assert [record[:3] for record in records] == shown
    return [record[0] for record in records]


def test_the_reader_agrees_about_branches_and_snapshots(read: Read, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with perdure.open(path) as store:
        session = store.session("parent")
        session.append(said("1"), said("2"), said("3"))
        branch = session.branch("branch", at=2)  # Within a batch.
        branch.append(said("4"))
        twig = branch.branch("twig")
        twig.set("plan", {"step": 1})
        for number in range(300):
            session.note(number)
        assert agree(read, path, branch) == [1, 2, 3, 4, 5, 6]
        assert agree(read, path, twig)[:4] == [1, 2, 3, 4]
        assert len(agree(read, path, session)) > 300


def test_the_reader_agrees_about_deletion(read: Read, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with perdure.open(path) as store:
        store.session("s").append(said("1"), said("2"))
        store.delete("s")
        again = store.session("s")
        again.append(said("3"))
        assert agree(read, path, again) == [3, 4]


def test_the_reader_agrees_about_callers_ids_and_erased_records(read: Read, tmp_path: Path) -> None:
    import json

    import apsw

    path = tmp_path / "store.db"
    with perdure.open(path) as store:
        session = store.session("s")
        session.append(said("one"), said("two"), said("three"), id="mine")
        assert agree(read, path, session) == [1, 2, 3]
    records, _ = read(path, "s")
    assert records[0][2] == "mine"
    db = apsw.Connection(str(path))
    ((header, body),) = db.execute("select header, body from entry").fetchall()
    first, second, _ = (item[2] for item in json.loads(str(header))[8])
    erased = str(body)[:first] + " " * second + str(body)[first + second :]
    db.execute("update entry set body = ?", (erased,))
    db.close()
    assert [record[3] is None for record in read(path, "s")[0]] == [False, True, False]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("select 1", None),
        ("update entry set body = replace(body, 'two', 'too') where position = 2", "altered body"),
        (
            "update entry set header = replace(header, 'plain', 'plaim') where position = 2",
            "broken link",
        ),
        ("delete from entry where position = 2", "broken link"),
        ("delete from entry where position = 3", "the end is missing"),
        ("update head set digest = digest || '0'", "the end is missing"),
        ("delete from entry", "no entries"),
    ],
)
def test_the_reader_finds_what_was_changed(
    read: Read, tmp_path: Path, change: str, complaint: str | None
) -> None:
    import apsw

    path = tmp_path / "store.db"
    with perdure.open(path) as store:
        session = store.session("s")
        for text in ("one", "two", "three"):
            session.append(said(text))
    db = apsw.Connection(str(path))
    db.execute(change).fetchall()
    db.close()
    if complaint is None:
        assert len(read(path, "s")[0]) == 3
    else:
        with pytest.raises(ValueError, match=complaint):
            read(path, "s")
