"""ARCHITECTURE.md, checked: layers, purity, parity of the two colours, weight of imports."""

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import perdure
import perdure.backend
from perdure import (
    commit,
    commit_async,
    handle,
    handle_async,
    session,
    session_async,
    store,
    store_async,
    turn,
    turn_async,
    values,
    values_async,
)
from perdure.approvals import approvals, approvals_async
from perdure.conversations import summaries, summaries_async
from perdure.effects import effects, effects_async, making, making_async, model, model_async
from perdure.leases import lease, lease_async

SOURCE = Path(perdure.__file__).parent

# From the outside in: a module imports only from rows below its own, or from its own row.
LAYERS = [
    {"adapters", "cli", "testing", "logging", "__init__", "__main__"},
    {"copying.moving"},
    {"opening"},
    {"replays.replaying", "replays.replaying_async"},
    {"replays.replay_session_async"},
    {"replays.replay_session"},
    {"store", "store_async"},
    {"session", "session_async"},
    {"values", "values_async", "conversations.summaries", "conversations.summaries_async"},
    {"following", "following_async"},
    {"effects.making", "effects.making_async"},
    {"leases.lease", "leases.lease_async", "seen", "turn", "turn_async"},
    {
        "conversations.stream",
        "conversations.stream_async",
        "effects.toolbox",
        "effects.toolbox_async",
        "effects.model",
        "effects.model_async",
    },
    {
        "effects.effects",
        "effects.effects_async",
        "approvals.approvals",
        "approvals.approvals_async",
        "effects.tool",
        "effects.tool_async",
    },
    {"effects.serving"},
    {"replays.walking"},
    {"replays.recorded"},
    {"handle", "handle_async", "conversations.answering"},
    {"approvals.consenting"},
    {"effects.asking", "effects.tool_jobs", "effects.deed_views", "approvals.views"},
    {"replays.diverging", "replays.guard"},
    {"effects.tools"},
    {"entering"},
    {"conversations.summarising"},
    {"conversations.window"},
    {"conversations.spoken"},
    {"copying.rounds"},
    {"copying.check", "copying.stream"},
    {"copying.needed"},
    {"copying.chain", "copying.pairs", "copying.plan"},
    {"copying.asking"},
    {"commit", "commit_async", "lifecycle", "salvage", "views", "writing"},
    {"effects.effecting", "approvals.approving"},
    {"effects.retelling"},
    {"leases.leasing", "saying", "conversations.talking"},
    {"replica"},
    {"judging", "standing"},
    {"plans", "reading", "settings"},
    {"fold"},
    {"effects.deeds", "conversations.talk", "leases.tenure"},
    {"approvals.consents"},
    {"cache", "deltas", "journal", "steps", "importing.messages", "importing.autogen"},
    {"importing.elements", "importing.text", "tokens", "conversations.tokens_shapes"},
    {"transcript"},
    {
        "conversations.cuts",
        "conversations.pairing",
        "conversations.perspective",
        "conversations.speeches",
    },
    {"waiting", "waiting_async"},
    {"codec", "cipher", "backends", "conversations.collecting", "formats"},
    {"events", "telling_async"},
    {"typed"},
    {
        "records",
        "scalars",
        "backend",
        "conversations.chat_chunks",
        "conversations.response_events",
        "effects.catalogue",
    },
    {"leases.records", "approvals.records"},
    {"content"},
    {"conversations.intake"},
    {"effects.issued"},
    {"plain", "conversations.deltas", "effects.calls", "layered", "guarantees", "parting"},
    {"errors", "forking"},
]

PURE = {
    "approvals.records",
    "approvals.views",
    "approvals.approving",
    "approvals.consents",
    "approvals.consenting",
    "replays.diverging",
    "replays.recorded",
    "replays.walking",
    "conversations.answering",
    "effects.asking",
    "effects.tool_jobs",
    "cache",
    "effects.calls",
    "effects.catalogue",
    "conversations.chat_chunks",
    "codec",
    "conversations.collecting",
    "content",
    "copying.rounds",
    "copying.asking",
    "copying.chain",
    "copying.check",
    "copying.needed",
    "copying.pairs",
    "copying.plan",
    "copying.stream",
    "conversations.cuts",
    "effects.deed_views",
    "effects.deeds",
    "effects.effecting",
    "conversations.deltas",
    "deltas",
    "fold",
    "formats",
    "guarantees",
    "importing.messages",
    "importing.autogen",
    "importing.elements",
    "importing.text",
    "conversations.intake",
    "effects.issued",
    "journal",
    "judging",
    "leases.records",
    "leases.leasing",
    "layered",
    "lifecycle",
    "conversations.pairing",
    "conversations.perspective",
    "plain",
    "plans",
    "reading",
    "records",
    "replica",
    "effects.retelling",
    "conversations.response_events",
    "salvage",
    "saying",
    "scalars",
    "typed",
    "seen",
    "settings",
    "standing",
    "conversations.speeches",
    "conversations.spoken",
    "steps",
    "conversations.summarising",
    "conversations.talk",
    "conversations.talking",
    "leases.tenure",
    "tokens",
    "conversations.tokens_shapes",
    "transcript",
    "views",
    "conversations.window",
    "writing",
}

# `zoneinfo` reads the machine's table of zones for a datetime; nothing else here touches a file.
# `splintr` is a tokenizer whose vocabularies are part of its code.
PURE_IMPORTS = {
    "base64",
    "binascii",
    "collections",
    "dataclasses",
    "datetime",
    "decimal",
    "enum",
    "functools",
    "hashlib",
    "itertools",
    "json",
    "math",
    "msgspec",
    "perdure",
    "re",
    "splintr",
    "typing",
    "uuid",
    "zoneinfo",
}

LARGE_MODULE = 400
LARGE_FUNCTION = 50


def modules() -> Iterator[Path]:
    return SOURCE.rglob("*.py")


# Folders whose files have places of their own in the layers. The others are one place each.
AREAS = {"approvals", "conversations", "copying", "effects", "importing", "leases", "replays"}


def layer_of(path: Path) -> str:
    first, *rest = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join([first, *rest[:1]]) if first in AREAS else first


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            if node.module.removeprefix("perdure.") in {"perdure", *AREAS}:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            else:
                yield node.module


def inner_imports(path: Path) -> Iterator[str]:
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "perdure" and len(parts) > 1:
            yield ".".join(parts[1:3]) if parts[1] in AREAS else parts[1]


def test_every_module_is_in_one_layer() -> None:
    listed = [name for layer in LAYERS for name in layer]
    assert len(listed) == len(set(listed))
    inits = {f"{area}.__init__" for area in AREAS}
    assert {layer_of(path) for path in modules()} == {*listed, *inits}
    assert all(_is_empty(SOURCE / area / "__init__.py") for area in AREAS)


def _is_empty(path: Path) -> bool:
    """Whether a file has a docstring and nothing else: a folder's name hides no import."""
    return len(ast.parse(path.read_text("utf-8")).body) == 1


def test_imports_point_one_way() -> None:
    depth = {name: number for number, layer in enumerate(LAYERS) for name in layer}
    upward = [
        f"{path.relative_to(SOURCE)} imports {name}"
        for path in modules()
        for name in inner_imports(path)
        if name in depth and depth[name] < depth[layer_of(path)]
    ]
    assert upward == []


def test_pure_modules_do_no_io_and_know_no_clock_thread_or_event_loop() -> None:
    impure = [
        f"{name} imports {found}"
        for name in sorted(PURE)
        for path in modules()
        if layer_of(path) == name
        for found in imports(path)
        if found.split(".")[0] not in PURE_IMPORTS
    ]
    assert impure == []


def test_a_backend_can_not_look_inside_an_entry() -> None:
    inside = {"codec", "cipher", "journal", "records", "fold"}
    looking = [
        f"{path.name} imports {name}"
        for path in (SOURCE / "backends").glob("*.py")
        for name in inner_imports(path)
        if name in inside
    ]
    assert looking == []


def test_adapters_use_what_everybody_can_use() -> None:
    """They are the proof that the public names suffice."""
    public = {*perdure.__all__, *perdure._MODULES, "errors"}
    private = [
        f"{path.name} imports {name}"
        for path in (SOURCE / "adapters").glob("*.py")
        for name in inner_imports(path)
        if name not in public
    ]
    assert private == ["openai.py imports effects.catalogue"]  # A type, for a hint.


def test_nothing_unpickles_or_evaluates() -> None:
    forbidden = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
    found = [
        f"{path.name}: {name}"
        for path in modules()
        for name in imports(path)
        if name.split(".")[0] in forbidden
    ]
    calls = [
        f"{path.name}: {node.func.id}"
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in {"eval", "exec", "compile", "__import__"}
    ]
    assert found + calls == []


PAIRS: list[tuple[ModuleType, ModuleType, str]] = [
    (session, session_async, "Session"),
    (values, values_async, "Values"),
    (summaries, summaries_async, "Summaries"),
    (lease, lease_async, "Lease"),
    (turn, turn_async, "Turn"),
    (store, store_async, "Store"),
    (effects, effects_async, "Effects"),
    (model, model_async, "Model"),
    (handle, handle_async, "Handle"),
    (commit, commit_async, "Committer"),
    (commit, commit_async, "Driver"),
    (approvals, approvals_async, "Approvals"),
    (making, making_async, "Making"),
    (perdure.backend, perdure.backend, "Backend"),
    (perdure.backend, perdure.backend, "Recent"),
    (perdure.backend, perdure.backend, "Watch"),
]


def methods(cls: type) -> list[str]:
    renamed = {"__aenter__": "__enter__", "__aexit__": "__exit__"}
    return [renamed.get(name, name) for name, value in vars(cls).items() if _is_method(value)]


def _is_method(value: object) -> bool:
    return inspect.isfunction(value) or isinstance(value, property)


def method(cls: type, name: str) -> object:
    asynchronous = {"__enter__": "__aenter__", "__exit__": "__aexit__"}
    found = vars(cls).get(name) or vars(cls)[asynchronous[name]]
    return found.fget if isinstance(found, property) else found


@pytest.mark.parametrize(("blocking", "other", "name"), PAIRS, ids=[pair[2] for pair in PAIRS])
def test_the_two_colours_have_the_same_methods_in_the_same_order(
    blocking: ModuleType, other: ModuleType, name: str
) -> None:
    sync, async_ = getattr(blocking, name), getattr(other, f"Async{name}")
    assert methods(sync) == methods(async_)
    for member in methods(sync):
        one, two = method(sync, member), method(async_, member)
        assert _parameters(one) == _parameters(two), member
        if name not in {"Backend", "Recent", "Watch"}:
            assert _promise(one) == _promise(two), member


def _parameters(function: object) -> list[tuple[str, object, object]]:
    assert callable(function)
    return [
        (parameter.name, parameter.kind, parameter.default)
        for parameter in inspect.signature(function).parameters.values()
    ]


def _promise(function: object) -> str:
    text = inspect.getdoc(function) or ""
    return text.replace("`async with`", "`with`")


def test_modules_and_functions_can_be_held_in_the_head() -> None:
    too_large = []
    for path in modules():
        text = path.read_text("utf-8")
        if text.count("\n") > LARGE_MODULE:
            too_large.append(f"{path.name}: {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno
                if lines > LARGE_FUNCTION:
                    too_large.append(f"{path.name}: {node.name} has {lines} lines")
    assert too_large == []


def test_importing_perdure_brings_little() -> None:
    code = (
        "import sys, perdure; perdure.open('memory:').session('s').append({'role': 'user'});"
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
    folders = [SOURCE, *(SOURCE / area for area in sorted(AREAS))]
    files = [path for folder in folders for path in folder.glob("*.py")]
    light = [path for path in files if not path.stem.endswith("_async")]
    found = [
        f"{path.name} imports {name}"
        for path in light
        if path.stem not in {"elements", "logging"}
        for node in ast.parse(path.read_text("utf-8")).body
        for name in _names(node)
        if name.split(".")[0] in heavy
    ]
    assert found == []


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


def test_every_public_name_is_there() -> None:
    for name in perdure.__all__:
        assert getattr(perdure, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = perdure.nonsense
    assert len(perdure.__all__) <= 52
