"""Generate the sync modules from their async sources.

    python scripts/generate_sync.py            write them
    python scripts/generate_sync.py --check    fail if a file differs from what would be written

`aio/` is written by hand and `sync/` is the output: `await` is removed, `AsyncSession` becomes
`Session`, and ruff sorts the imports and formats the result. Code that really differs between
threads and tasks is written twice by hand, with the same names on both sides. To change a generated
file, edit its source and run this script.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

HEADER = "# Generated from {} by scripts/generate_sync.py: do not edit.\n"


class Folder(NamedTuple):
    """Every module of `source` gives one in `target`, except those written twice by hand.

    A module for event loops alone is excepted too.
    """

    source: str
    target: str
    by_hand: frozenset[str]


FOLDERS = (
    Folder(
        "src/perdure/aio",
        "src/perdure/sync",
        frozenset({"__init__.py", "concurrency.py", "group_commit.py", "result_dispatch.py"}),
    ),
    Folder(
        "tests/aio",
        "tests/sync",
        frozenset(
            {
                "__init__.py",
                "conftest.py",
                "test_group_commit.py",
                "test_handle.py",
                "test_lease.py",
                "test_interrupts.py",
                "test_loops.py",
                "test_session.py",
                "test_watch.py",
            }
        ),
    ),
    Folder(
        "src/perdure/adapters/openai/aio",
        "src/perdure/adapters/openai/sync",
        frozenset({"__init__.py"}),
    ),
)
# Single files: source → generated file.
POSTGRES = "src/perdure/backends/postgres"
FILES: dict[str, str] = {
    f"{POSTGRES}/{name}_async.py": f"{POSTGRES}/{name}.py"
    for name in ("backend", "listing", "operations", "pool")
}
REDIS = "src/perdure/backends/redis"
FILES |= {
    f"{REDIS}/{name}_async.py": f"{REDIS}/{name}.py"
    for name in ("backend", "check", "listing", "operations", "pool")
}

# Applied in this order to the whole text: code, docstrings and comments.
REPLACEMENTS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        # Sentences that are true of an event loop only.
        (r"\n    The call itself blocks:[^\"]*are awaited\.\n", ""),
        (r"\bTasks of one loop may share\b", "Threads may share"),
        (r"(?<!and )\b([Tt])asks (may|that) share\b", r"\1hreads \2 share"),
        (r"for code in an event loop\b", "for blocking code"),
        (r"; return its task\b", "; return its future"),
        (r": one coroutine less\b", ": one call less"),
        # Names.
        (r"\bperdure\.(adapters\.openai\.)?aio\b", r"perdure.\1sync"),
        (r"\b(?!is_async\b)(\w+)_async\b", r"\1"),
        (r"\bopen_async_backend\b", "open_backend"),
        (r"\bfrom asyncio import Task\b", "from concurrent.futures import Future"),
        (r"\bTask\[", "Future["),
        (r"\bStopAsyncIteration\b", "StopIteration"),
        (r"\basynccontextmanager\b", "contextmanager"),
        (r"\bpush_async_callback\b", "callback"),
        (r"\bAsync(?=[A-Z])", ""),
        # A blocking backend needs no threads of its own.
        (r"\bThreadedBackend\((\w+(?:\(\))?)\)", r"\1"),
        # A thread cannot be cancelled, so it has nothing to shield.
        (r"\bshielded\(([\w.]+), (\w+)\)", r"\1(\2)"),
        (r"(?:    shielded,\n|, shielded\b)", ""),
        # Overloads tell async functions from plain ones; the implementation is for plain ones.
        (r"    @overload\n    async def [^@]*?: \.\.\.\n", ""),
        (r"(\n    async def [^\n]*:)  # type: ignore\[misc\]", r"\1"),
        (r"# type: ignore\[call-overload\]", "# type: ignore[call-arg]"),
        # Syntax. A coroutine's result is a function's result.
        (r"\b(?:Coroutine\[Any, Any, |Awaitable\[)((?:[^\[\]]|\[[^\[\]]*\])*)\]", r"\1"),
        (r"\basync (def|with|for)\b", r"\1"),
        (r"\(await ([\w.]+\((?:[^()]|\([^()]*\))*\))\)(?=\.)", r"\1"),
        (r"\bawait ", ""),
        (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
        (r"\ba(iter|next|close)\b(?=\()", r"\1"),
        (r"\[(\w+) for \1 in ((?:(?! if )[^\[\]\n])+)\]", r"list(\2)"),
        (r"(?m)^( *)for (\w+) in ([^\n]+):\n +yield \2$", r"\1yield from \3"),
        # Rules of ruff that only async code breaks, or that have another number for sync code.
        (r"  # noqa: ASYNC\d+[^\n]*", ""),
        (r"(# noqa: [^\n]*), ASYNC\d+\b", r"\1"),
        (r"\bPERF401\b", "PERF402"),
    )
]


def files() -> Iterator[tuple[Path, Path]]:
    """Yield every source with the file that is generated from it."""
    for folder in FOLDERS:
        for source in sorted((ROOT / folder.source).glob("*.py")):
            if source.name not in folder.by_hand:
                yield source, ROOT / folder.target / source.name
    for source_name, target in FILES.items():
        yield ROOT / source_name, ROOT / target


def stale_files() -> Iterator[Path]:
    """Yield the files in generated folders that have no source."""
    for folder in FOLDERS:
        for target in sorted((ROOT / folder.target).glob("*.py")):
            if (
                target.name not in folder.by_hand
                and not (ROOT / folder.source / target.name).exists()
            ):
                yield target


def convert(source: Path, target: Path) -> str:
    """Return the text of a generated file."""
    text = source.read_text("utf-8")
    for pattern, replacement in REPLACEMENTS:
        text = pattern.sub(replacement, text)
    text = _ruff(
        ["check", "--fix", "--exit-zero", "--quiet", "--select", "F401,I001"], text, target
    )
    # Signatures that are shorter without `Async` go on one line.
    text = _ruff(["format", "--config", "format.skip-magic-trailing-comma=true"], text, target)
    return HEADER.format(f"{source.parent.name}/{source.name}") + text


def _ruff(command: list[str], text: str, target: Path) -> str:
    """Return a text as ruff changes it, under the rules for its file."""
    ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(target), "-"]
    done = subprocess.run(
        ruff, cwd=ROOT, input=text, capture_output=True, text=True, encoding="utf-8", check=False
    )
    if done.returncode != 0:
        raise SystemExit(
            f"ruff cannot read what {target.relative_to(ROOT)} would be: {done.stderr}"
        )
    return done.stdout


def check() -> list[str]:
    """Return one line for every file that is not as it would be written."""
    problems = [f"{path.relative_to(ROOT)} has no source" for path in stale_files()]
    for source, target in files():
        if not target.exists():
            problems.append(f"{target.relative_to(ROOT)} is missing")
        elif target.read_text("utf-8") != convert(source, target):
            problems.append(f"{target.relative_to(ROOT)} differs from {source.relative_to(ROOT)}")
    return problems


def write() -> None:
    """Write every generated file that is missing or differs, and delete the stale ones."""
    for path in stale_files():
        path.unlink()
        print(f"deleted {path.relative_to(ROOT)}")
    for source, target in files():
        text = convert(source, target)
        if not target.exists() or target.read_text("utf-8") != text:
            target.write_text(text, "utf-8")
            print(f"wrote {target.relative_to(ROOT)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if files differ")
    if not parser.parse_args().check:
        write()
        return 0
    problems = check()
    for problem in problems:
        print(problem)
    if problems:
        print("run python scripts/generate_sync.py")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
