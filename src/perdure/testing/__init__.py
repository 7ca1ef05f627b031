"""For whoever writes a backend, or tests how an application recovers.

`BackendContract` and `AsyncBackendContract` need pytest, which is imported only when one of them
is asked for; `machine_for` needs hypothesis, likewise; `faults` needs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from perdure.testing.faults import Crash, CrashAt, Flaky, Slow, Torn

if TYPE_CHECKING:
    from perdure.testing.contract import BackendContract
    from perdure.testing.contract_async import AsyncBackendContract
    from perdure.testing.machine import machine_for

__all__ = [
    "AsyncBackendContract",
    "BackendContract",
    "Crash",
    "CrashAt",
    "Flaky",
    "Slow",
    "Torn",
    "machine_for",
]


_CONTRACTS = {
    "BackendContract": "perdure.testing.contract",
    "AsyncBackendContract": "perdure.testing.contract_async",
}
_PARTS = ("contract_appending", "contract_reading", "contract_recent", "contract_sharing")


def __getattr__(name: str) -> Any:
    if name == "machine_for":
        return import_module("perdure.testing.machine").machine_for
    if name not in _CONTRACTS:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    import pytest

    # So that a failing assertion shows its values, though it does not stand in a test file.
    if name == "BackendContract":
        pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in _PARTS))
    else:
        pytest.register_assert_rewrite(_CONTRACTS[name])
    found = globals()[name] = getattr(import_module(_CONTRACTS[name]), name)
    return found
