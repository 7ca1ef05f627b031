"""The generated sync modules are what the script writes, and it finds those that differ."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"

SOURCE = '''"""AsyncShop: sells things, for code in an event loop."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from perdure.aio.handle import AsyncHandle


class AsyncShop:
    """A shop. Tasks may share it. Use it with `async with`."""

    def __init__(self, handle: AsyncHandle, pay: Callable[[int], Awaitable[list[int]]]) -> None:
        self._handle = handle
        self._pay = pay

    async def __aenter__(self) -> "AsyncShop":
        await self._pay((await self._handle.price(1)).amount)
        return self

    async def goods(self, timeout: float = 1.0) -> AsyncIterator[str]:  # noqa: ASYNC109 - as it is
        async for item in self._handle.goods(timeout):
            yield item
'''
GENERATED = '''# Generated from aio/shop.py by scripts/generate_sync.py: do not edit.
"""Shop: sells things, for blocking code."""

from collections.abc import Callable, Iterator

from perdure.sync.handle import Handle


class Shop:
    """A shop. Threads may share it. Use it with `with`."""

    def __init__(self, handle: Handle, pay: Callable[[int], list[int]]) -> None:
        self._handle = handle
        self._pay = pay

    def __enter__(self) -> "Shop":
        self._pay(self._handle.price(1).amount)
        return self

    def goods(self, timeout: float = 1.0) -> Iterator[str]:
        yield from self._handle.goods(timeout)
'''


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script, with one folder of its own to work on."""
    monkeypatch.syspath_prepend(SCRIPTS)
    import generate_sync

    for name in ("aio", "sync"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "locks.py").write_text(f"# by hand, {name}\n")
    (tmp_path / "aio" / "shop.py").write_text(SOURCE)
    folder = generate_sync.Folder("aio", "sync", frozenset({"locks.py"}))
    monkeypatch.setattr(generate_sync, "FOLDERS", (folder,))
    monkeypatch.setattr(generate_sync, "FILES", {})
    monkeypatch.setattr(generate_sync, "ROOT", tmp_path)
    return generate_sync


def test_the_generated_files_are_up_to_date() -> None:
    command = [sys.executable, str(SCRIPTS / "generate_sync.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_an_async_module_becomes_a_sync_one(script: ModuleType, tmp_path: Path) -> None:
    script.write()
    assert (tmp_path / "sync" / "shop.py").read_text() == GENERATED
    assert script.check() == []


def test_modules_written_by_hand_are_left_alone(script: ModuleType, tmp_path: Path) -> None:
    script.write()
    assert (tmp_path / "sync" / "locks.py").read_text() == "# by hand, sync\n"


def test_a_missing_file_a_changed_file_and_a_stale_file_are_found(
    script: ModuleType, tmp_path: Path
) -> None:
    assert script.check() == ["sync/shop.py is missing"]
    script.write()
    with (tmp_path / "sync" / "shop.py").open("a") as generated:
        generated.write("\n# edited\n")
    assert script.check() == ["sync/shop.py differs from aio/shop.py"]
    (tmp_path / "sync" / "old.py").write_text("# its source was deleted\n")
    assert script.check() == ["sync/old.py has no source", "sync/shop.py differs from aio/shop.py"]
    script.write()
    assert script.check() == []
    assert not (tmp_path / "sync" / "old.py").exists()
