"""Persist agents and teams of `autogen_agentchat` 0.7: their runs survive a crash.

    async with persist(session, team) as durable:
        result = await durable.run(task="Draft a claims escalation checklist.")

A run is a turn of the session. Its task, every message, every model answer and every tool outcome
is durable before it is passed on; the team's state is saved when a run ends. An interrupted run is
run again from its beginning: recorded answers and outcomes are replayed, so it reaches exactly the
point where it was, and continues.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from perdure import AsyncSession
from perdure.adapters.agentchat import introspection
from perdure.adapters.tool_policies import PolicyDeclaration, require_policies
from perdure.errors import UsageError

if TYPE_CHECKING:
    from perdure.adapters.agentchat.team import DurableTeam


def persist(
    session: AsyncSession,
    team: Any,
    *,
    tools: Mapping[str, PolicyDeclaration] | None = None,
    lease: float | None = None,
) -> "DurableTeam":
    """Return a team or an agent whose runs are recorded in a session, for `async with`.

    On entering, the team has the state in which its last run left it, in whichever process that
    was. `tools` sets by name the policy for a call whose process died before its outcome was
    recorded, as `session.tool` does: "unsafe", the default, reports to the model that the outcome
    is unknown, "read_only" and "idempotent" run it again, and a function reconciles it (or,
    equivalently, `{"effect": "reconcile", "reconcile": function}`).

    While a run is in progress, another process can take it over; this one then gets ConflictError.
    With `lease` (seconds), it cannot: it waits that long, by when a crashed holder's lease has
    expired, and gets LeaseHeldError.

    Raises UnsupportedError for versions of the package other than 0.7, and UsageError if the
    session holds another team: nothing was run then.
    """
    introspection.require_version()
    if not isinstance(session, AsyncSession):
        class_name = type(session).__qualname__
        raise UsageError(f"pass a session of perdure.open_async(...), not a {class_name}")
    from perdure.adapters.agentchat.team import DurableTeam

    return DurableTeam(
        session, introspection.build_tree(team), require_policies(tools or {}), lease
    )
