"""Tools for tests of backends and of applications: contracts, faults, a model server, rules.

`BackendContract` and `AsyncBackendContract` are test suites for authors of a backend. `machine_for`
is a state machine of sessions. `Crash`, `CrashAt`, `Flaky`, `Slow` and `Torn` make a store fail on
purpose. `ModelServer` answers in place of OpenAI's API, and `violations` lists what a provider
would reject.

The contracts need pytest and `machine_for` needs hypothesis; each is imported on first access of
the name. The others need nothing but perdure.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from perdure.testing.faults import Crash, CrashAt, Flaky, Slow, Torn

if TYPE_CHECKING:
    from perdure.testing.contract.asynchronous import AsyncBackendContract
    from perdure.testing.contract.backend import BackendContract
    from perdure.testing.machine import machine_for
    from perdure.testing.model_server import ModelServer
    from perdure.testing.provider_rules import violations

__all__ = [
    "AsyncBackendContract",
    "BackendContract",
    "Crash",
    "CrashAt",
    "Flaky",
    "ModelServer",
    "Slow",
    "Torn",
    "machine_for",
    "violations",
]


_MODULES = {
    "BackendContract": "contract.backend",
    "AsyncBackendContract": "contract.asynchronous",
    "ModelServer": "model_server",
    "machine_for": "machine",
    "violations": "provider_rules",
}

_CHAPTERS = {
    "BackendContract": ("append", "atomic", "read", "recent", "remove", "sharing", "watch"),
    "AsyncBackendContract": ("asynchronous",),
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    if name in _CHAPTERS:
        import pytest

        # pytest rewrites assertions only in test files; without this, a failure shows no values.
        pytest.register_assert_rewrite(*(f"{__name__}.contract.{part}" for part in _CHAPTERS[name]))
    found = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return found
