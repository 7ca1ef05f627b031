"""For whoever writes a backend, or tests how an application recovers.

`BackendContract` and `AsyncBackendContract` need pytest, which is imported only when one of them
is asked for; `faults` needs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from perdure.testing.faults import Crash, CrashAt, Flaky, Slow, Torn

if TYPE_CHECKING:
    from perdure.testing.contract import BackendContract
    from perdure.testing.contract_async import AsyncBackendContract

__all__ = [
    "AsyncBackendContract",
    "BackendContract",
    "Crash",
    "CrashAt",
    "Flaky",
    "Slow",
    "Torn",
]


_CONTRACTS = {
    "BackendContract": "perdure.testing.contract",
    "AsyncBackendContract": "perdure.testing.contract_async",
}
_PARTS = ("contract_appending", "contract_reading", "contract_sharing")


def __getattr__(name: str) -> Any:
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
