"""Declared policies of tools, and names of their arguments: shared by the framework adapters."""

import inspect
import keyword
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from perdure import Effect
from perdure.errors import UsageError

PolicyName = Literal["read_only", "idempotent", "unsafe"]

# Policy for a call that may have happened; a function reconciles it.
ToolPolicy = PolicyName | Callable[[Effect], Any]

# A policy as the caller gives it: also as the options of `session.tool`.
PolicyDeclaration = ToolPolicy | Mapping[str, Any]


def require_policies(declared: Mapping[str, PolicyDeclaration]) -> dict[str, ToolPolicy]:
    """Return the tools' policies; UsageError if one is invalid."""
    policies: dict[str, Any] = {
        name: policy.get("reconcile", policy.get("effect"))
        if isinstance(policy, Mapping)
        else policy
        for name, policy in declared.items()
    }
    for name, policy in policies.items():
        if policy not in get_args(PolicyName) and not callable(policy):
            names = ", ".join(get_args(PolicyName))
            raise UsageError(
                f"unknown effect {policy!r} of {name!r}: choose one of {names}, or pass a function "
                "that reconciles and returns Happened(result) or DidNotHappen()"
            )
    return policies


def name_parameters(call: Any, arguments: Mapping[str, Any]) -> None:
    """Set the call's signature so that valid identifiers are recorded as argument names."""
    # Models invent argument names; a signature cannot have all of them.
    if all(name.isidentifier() and not keyword.iskeyword(name) for name in arguments):
        kind = inspect.Parameter.KEYWORD_ONLY
        call.__signature__ = inspect.Signature(
            [inspect.Parameter(name, kind) for name in arguments]
        )
