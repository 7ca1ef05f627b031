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

_CONTRACT_MODULES = (
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

    # pytest rewrites assertions only in test files; without this, a failure shows no values.
    if name == "BackendContract":
        pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in _CONTRACT_MODULES))
    else:
        pytest.register_assert_rewrite(_CONTRACTS[name])
    contract = globals()[name] = getattr(import_module(_CONTRACTS[name]), name)
    return contract
