"""For whoever writes a backend, or tests how an application recovers or talks to a model.

`BackendContract` and `AsyncBackendContract` need pytest, which is imported only when one of them
is asked for; `machine_for` needs hypothesis, likewise; the others need nothing. `ModelServer`
answers in the place of OpenAI's API; `violations` knows what the providers refuse.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from perdure.testing.faults import Crash, CrashAt, Flaky, Slow, Torn

if TYPE_CHECKING:
    from perdure.testing.contract import BackendContract
    from perdure.testing.contract.asynchronous import AsyncBackendContract
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


_CONTRACTS = {
    "BackendContract": "perdure.testing.contract",
    "AsyncBackendContract": "perdure.testing.contract.asynchronous",
}

_OTHERS = {
    "ModelServer": "perdure.testing.model_server",
    "machine_for": "perdure.testing.machine",
    "violations": "perdure.testing.provider_rules",
}

_PARTS = (
    "contract.append",
    "contract.read",
    "contract.recent",
    "contract.remove",
    "contract.sharing",
    "contract.watch",
)


def __getattr__(name: str) -> Any:
    if name in _OTHERS:
        return getattr(import_module(_OTHERS[name]), name)
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
