"""Chats of the classic AutoGen API (`import autogen`), kept in a session.

    with persist(session, user_proxy, assistant):
        user_proxy.initiate_chat(assistant, message="Draft a claims escalation checklist.")

Every message is durable before it is handed over, and every model call, tool call and human input
is an effect. A chat that was killed is begun again by the same call: what had been said, answered
and done is taken from the record, at the speed of memory, until the record ends; then it goes on.
"""

from typing import Any

from perdure import Session, UsageError
from perdure.adapters.autogen_chat import Chat
from perdure.adapters.autogen_names import framework
from perdure.adapters.autogen_tools import Policies


def persist(
    session: Session, *agents: Any, tools: Policies | None = None, lease: float | None = None
) -> Chat:
    """Return a chat for `with`, in which all that the agents say and do is kept in the session.

    Give every agent that takes part: both of a pair; a group's manager, who brings its group along;
    those of nested chats. When the block begins, they know what they knew: histories with the right
    roles on each side, reply counts, usage, instructions. Errors come before anything has changed.

    `initiate_chat` goes on instead of erasing, whatever `clear_history` says. After a crash, the
    same call goes on with the chat that was interrupted, or `resume()` does.

    `tools` names what is to be done about calls that a crash cut off, by the name of the tool: an
    effect as for `session.tool`, or its options: `{"pay": "idempotent"}`, `{"pay": {"effect":
    "reconcile", "reconcile": find_out}}`. A tool that is not named is "unsafe".

    A process that begins an interrupted chat again takes it over; one that still is at it gets an
    error with its next message. With a `lease` of so many seconds it is the other way round: while
    one process has the chat, others get LeaseHeldError; after a crash they wait for its end.
    """
    autogen = framework()
    if not isinstance(session, Session):
        reason = f"a {type(session).__qualname__} can not be used from the framework's hooks"
        raise UsageError(f"{reason}: give a session of perdure.open(...), for async chats too")
    return Chat(autogen, session, _participants(autogen, agents), tools or {}, lease)


def _participants(autogen: Any, given: tuple[Any, ...]) -> list[Any]:
    """Return the agents and those of their groups, each once; UsageError if names repeat."""
    found: dict[str, Any] = {}
    queue = [*given]
    while queue:
        agent = queue.pop(0)
        if not isinstance(agent, autogen.ConversableAgent):
            raise UsageError(f"a {type(agent).__qualname__} is not an agent: give agents")
        if found.setdefault(agent.name, agent) is not agent:
            raise UsageError(f"two agents are called {agent.name!r}: give each its own name")
        if isinstance(agent, autogen.GroupChatManager):
            queue += [one for one in agent.groupchat.agents if one.name not in found]
    if len(found) < 2:  # noqa: PLR2004 - a chat is between two
        raise UsageError("give all agents of the chat: a pair, or a group's manager")
    return [*found.values()]
