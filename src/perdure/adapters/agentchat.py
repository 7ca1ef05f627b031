"""Agents and teams of `autogen_agentchat` 0.7 whose runs survive the death of their process.

    async with persist(session, team) as durable:
        result = await durable.run(task="Draft a claims escalation checklist.")

A run is a turn of the session. Its task, every message, every answer of a model and every outcome
of a tool is durable before it is handed on; the team's state is kept when a run is over. A run that
was cut off is run again from its beginning: what had been answered and done is given to it from the
record, so it comes to the very place where it was, and goes on.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from perdure import AsyncSession
from perdure.adapters import agentchat_tree as tree
from perdure.adapters.agentchat_journal import Declared, require_policies
from perdure.errors import UsageError

if TYPE_CHECKING:
    from perdure.adapters.agentchat_durable import Durable


def persist(
    session: AsyncSession,
    team: Any,
    *,
    tools: Mapping[str, Declared] | None = None,
    lease: float | None = None,
) -> "Durable":
    """Return a team or an agent whose runs are kept in a session, for `async with`.

    On entering, it is in the state in which its last run left it, in whichever process that was.
    `tools` says by name what is to be done about a call whose process died before its outcome was
    recorded, as `session.tool` does: "unsafe", the default, tells the model that nobody knows,
    "read_only" and "idempotent" make it again, and a function finds out (or, in the same words,
    `{"effect": "reconcile", "reconcile": function}`).

    While a run is under way, another process can take it over; this one is told by ConflictError.
    With `lease`, so many seconds, it can not: it waits that long, which a crashed holder's lease
    does not last, and gets LeaseHeldError.

    Raises UnsupportedError for versions of the package other than 0.7, and UsageError where the
    session keeps another team: nothing was run then.
    """
    tree.require_version()
    if not isinstance(session, AsyncSession):
        given = type(session).__qualname__
        raise UsageError(f"give a session of perdure.open_async(...), not a {given}")
    from perdure.adapters.agentchat_durable import Durable

    return Durable(session, tree.tree(team), require_policies(tools or {}), lease)
