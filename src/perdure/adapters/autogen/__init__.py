"""Persist chats of the classic AutoGen API (`import autogen`) in a session.

    with persist(session, user_proxy, assistant):
        user_proxy.initiate_chat(assistant, message="Draft a claims escalation checklist.")

Every message is durable before it is delivered, and every model call, tool call and human input
is an effect. To resume a chat that was killed, make the same call again: recorded messages,
answers and results are replayed from the record without new calls, then the chat continues live.
"""

from typing import Any

from perdure import Session
from perdure.adapters.autogen.chat import DurableChat
from perdure.adapters.autogen.tool_calls import ToolPolicies
from perdure.adapters.autogen.versions import framework
from perdure.errors import UsageError


def persist(
    session: Session, *agents: Any, tools: ToolPolicies | None = None, lease: float | None = None
) -> DurableChat:
    """Return a chat for `with`, in which the agents' messages and calls are recorded.

    Pass every agent that takes part: both of a pair; a group's manager, which brings its group; the
    agents of nested chats. On entering the block, the agents' state is restored: histories with the
    right roles on each side, reply counts, usage, instructions. Errors are raised before anything
    has changed.

    `initiate_chat` continues the recorded history instead of erasing it, whatever `clear_history`
    says. After a crash, the same call resumes the interrupted chat, and so does `resume()`.

    `tools` sets, by tool name, the policy for calls that a crash interrupted: an effect as for
    `session.tool`, or its options: `{"pay": "idempotent"}`, `{"pay": {"effect": "reconcile",
    "reconcile": find_out}}`. A tool that is not listed is "unsafe".

    A process that starts an interrupted chat again takes it over; a process still running it gets
    an error with its next message. With a `lease` (seconds) it is the other way round: while one
    process has the chat, others get LeaseHeldError; after a crash they wait for the lease to
    expire.
    """
    autogen = framework()
    if not isinstance(session, Session):
        reason = f"a {type(session).__qualname__} cannot be used from the framework's hooks"
        raise UsageError(f"{reason}: pass a session of perdure.open(...), for async chats too")
    return DurableChat(autogen, session, _participants(autogen, agents), tools or {}, lease)


def _participants(autogen: Any, agents: tuple[Any, ...]) -> list[Any]:
    """Return the agents and the members of their groups, each once; UsageError if names repeat."""
    by_name: dict[str, Any] = {}
    queue = [*agents]
    while queue:
        agent = queue.pop(0)
        if not isinstance(agent, autogen.ConversableAgent):
            raise UsageError(f"a {type(agent).__qualname__} is not an agent: pass agents")
        if by_name.setdefault(agent.name, agent) is not agent:
            raise UsageError(f"two agents are called {agent.name!r}: give each its own name")
        if isinstance(agent, autogen.GroupChatManager):
            queue += [member for member in agent.groupchat.agents if member.name not in by_name]
    if len(by_name) < 2:  # noqa: PLR2004 - a chat needs two agents
        raise UsageError("pass all agents of the chat: a pair, or a group's manager")
    return [*by_name.values()]
