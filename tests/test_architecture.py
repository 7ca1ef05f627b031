"""ARCHITECTURE.md, checked: the order of the packages, forbidden imports, sizes, import weight."""

import ast
import inspect
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import perdure
from perdure.aio import group_commit as aio_group_commit
from perdure.backends import protocol
from perdure.sync import group_commit as sync_group_commit

SOURCE = Path(perdure.__file__).parent

# From the bottom up: a package imports only from rows above its own.
ORDER = [
    {"errors", "events", "keys", "safe_text"},
    {"backends"},
    {"formats"},
    {"journal"},
    {"core"},
    {"aio", "sync"},
    {"__init__", "logging", "models", "types"},
    {"adapters", "cli", "testing", "__main__"},
]
# Packages that share a row and still must not import each other.
APART = [{"aio", "sync"}, {"adapters", "cli"}, {"adapters", "testing"}]

# Prefix of the importing module → modules that it must not import.
IO = ("asyncio", "apsw", "contextvars", "os", "pathlib", "psycopg", "select", "signal", "socket")
THREADS = ("concurrent", "multiprocessing", "subprocess", "threading", "time")
FORBIDDEN = {
    "": ("pickle", "marshal", "shelve", "dill", "cloudpickle"),
    "formats": (*IO, *THREADS),
    "journal": (*IO, *THREADS),
    "core": (*IO, *THREADS),
    "aio": ("threading",),
    "sync": ("asyncio",),
    "cli": ("asyncio",),
}
# Only the command line draws on a terminal.
for _package in {package for row in ORDER for package in row} - {"cli"}:
    FORBIDDEN[_package] = (*FORBIDDEN.get(_package, ()), "rich", "click")
# Modules that need what their package must not import, with the reason.
ALLOWED = {
    ("aio.concurrency", "threading"): "a blocking function runs in a thread beside the loop",
    ("cli.replay", "asyncio"): "it runs an async agent of the user's",
    ("core.effects.calls", "contextvars"): "the current effect belongs to a thread or a task",
    ("core.replay.guard", "concurrent"): "items of a thread pool carry the guard of the agent",
    ("core.replay.guard", "contextvars"): "the guard follows the context of the agent",
    ("core.replay.guard", "threading"): "it blocks threads that start during a replay",
    ("core.replay.served_calls", "threading"): "tools of one turn may run in several threads",
    ("core.turn_context", "contextvars"): "the current turn belongs to a thread or a task",
    ("core.turn_context", "threading"): "the current turn belongs to a thread or a task",
    ("journal.ids", "os"): "ids come from the random generator of the system",
}

LARGE_MODULE = 600
LARGE_FUNCTION = 60


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


def package_of(module: str) -> str:
    return module.partition(".")[0]


def imports(path: Path, *, lazy: bool = True) -> Iterator[str]:
    """Yield the modules that a file imports, all of them or only when it is imported itself."""
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree) if lazy else tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner.removeprefix("perdure.") in MODULES else node.module


def own_imports(path: Path, *, lazy: bool = True) -> Iterator[str]:
    """Yield the modules of perdure that a file imports, without the prefix."""
    for name in imports(path, lazy=lazy):
        if name == "perdure" or name.startswith("perdure."):
            yield name.removeprefix("perdure").removeprefix(".") or "__init__"


def test_the_order_names_every_package() -> None:
    listed = [name for row in ORDER for name in row]
    assert len(listed) == len(set(listed))
    assert {package_of(name) for name in MODULES} == {*listed}


def test_imports_point_down_the_order() -> None:
    row = {name: number for number, names in enumerate(ORDER) for name in names}
    upward = [
        f"{module} imports {name}"
        for module, path in MODULES.items()
        for name in own_imports(path)
        if row[package_of(name)] > row[package_of(module)]
        and (module, package_of(name)) != ("__init__", "adapters")
    ]
    assert upward == []


def test_packages_of_one_row_stay_apart() -> None:
    mixed = [
        f"{module} imports {name}"
        for module, path in MODULES.items()
        for name in own_imports(path)
        for pair in APART
        if {package_of(module), package_of(name)} == pair
    ]
    assert mixed == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = defaultdict(set)
    for module, path in MODULES.items():
        graph[module] |= {name for name in own_imports(path, lazy=False) if name != module}
    del graph["__init__"]
    assert len([*TopologicalSorter(graph).static_order()]) >= len(graph)


def test_no_package_imports_what_it_must_not_know() -> None:
    found = [
        f"{module} imports {name}"
        for prefix, forbidden in FORBIDDEN.items()
        for module, path in MODULES.items()
        if not prefix or package_of(module) == prefix
        for name in imports(path)
        if name.partition(".")[0] in forbidden and (module, name.partition(".")[0]) not in ALLOWED
    ]
    assert found == []


def test_every_exception_to_the_rule_is_needed() -> None:
    used = {
        (module, name.partition(".")[0])
        for module in {module for module, _ in ALLOWED}
        for name in imports(MODULES[module])
    }
    assert {*ALLOWED} <= used


def test_adapters_use_what_everybody_can_use() -> None:
    """They are the proof that the public names suffice."""
    public = {*perdure._SUBMODULES, "errors", "__init__"}
    private = [
        f"{module} imports {name}"
        for module, path in MODULES.items()
        if package_of(module) == "adapters"
        for name in own_imports(path)
        if package_of(name) not in public
    ]
    assert private == ["adapters.openai imports core.effects.catalogue"]  # A type, for a hint.


def test_nothing_evaluates_text_as_code() -> None:
    calls = [
        f"{module}: {node.func.id}"
        for module, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in {"eval", "exec", "compile", "__import__"}
    ]
    assert calls == []


PAIRS = [
    (sync_group_commit.GroupCommitter, aio_group_commit.AsyncGroupCommitter),
    (protocol.Backend, protocol.AsyncBackend),
    (protocol.RecencyCapability, protocol.AsyncRecencyCapability),
    (protocol.WatchCapability, protocol.AsyncWatchCapability),
]


@pytest.mark.parametrize(("sync", "async_"), PAIRS, ids=[pair[0].__name__ for pair in PAIRS])
def test_pairs_written_by_hand_have_the_same_methods(sync: type, async_: type) -> None:
    assert _public_methods(sync) == _public_methods(async_)


def _public_methods(cls: type) -> dict[str, list[str]]:
    return {
        name: [*inspect.signature(value).parameters]
        for name, value in vars(cls).items()
        if inspect.isfunction(value) and not name.startswith("_")
    }


def test_modules_and_functions_are_short_enough_to_read() -> None:
    too_large = []
    for module, path in MODULES.items():
        text = path.read_text("utf-8")
        if text.count("\n") > LARGE_MODULE:
            too_large.append(f"{module}: {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno
                if lines > LARGE_FUNCTION:
                    too_large.append(f"{module}: {node.name} has {lines} lines")
    assert too_large == []


def test_a_class_name_is_used_once() -> None:
    """Sync and async classes have different names; a private name may be used again."""
    where = defaultdict(set)
    for module, path in MODULES.items():
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where[node.name].add(module)
    several = {name: found for name, found in where.items() if len(found) > 1}
    assert several == {}


def test_importing_perdure_brings_little() -> None:
    code = (
        "import sys, perdure; session = perdure.open('memory:').session('s');"
        "session.append({'role': 'user', 'content': ''});"
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"asyncio", "apsw", "click", "sqlite3", "logging", "hypothesis", "pytest"} & {*found}
    assert {"perdure", "msgspec"} <= {*found}


def test_opening_a_store_does_not_wait_for_heavy_modules() -> None:
    """What takes longer to import than perdure is imported by the call that needs it."""
    heavy = {"asyncio", "concurrent", "dataclasses", "inspect", "json", "logging"}
    light = {"errors", "events", "backends", "formats", "journal", "core", "sync"}
    asynchronous = (
        "backends.connection_slots",
        "backends.offload",
        "backends.postgres",
        "backends.redis",
    )
    found = [
        f"{module} imports {name}"
        for module, path in MODULES.items()
        if package_of(module) in light and not module.startswith(asynchronous)
        for name in imports(path, lazy=False)
        if name.partition(".")[0] in heavy
    ]
    assert found == []


def test_every_public_name_is_there() -> None:
    for name in perdure.__all__:
        assert getattr(perdure, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = perdure.nonsense
    assert len(perdure.__all__) <= 60
