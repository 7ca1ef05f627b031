"""What a team is made of: its members, models and tools, and what stands in their places meanwhile.

AgentChat has no public way to these. Private names of the package are in this module, and where
what they hold is saved (`agentchat_state`) or stood in for (`agentchat_places`, `agentchat_agents`,
`agentchat_tools`). `require_version` is called before any of them is touched.
"""

from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from perdure.errors import UnsupportedError, UsageError

PACKAGES = ("autogen-agentchat", "autogen-core")
KNOWN = "0.7"
INSTALL = 'install "autogen-agentchat>=0.7,<0.8"'


def require_version() -> None:
    """Refuse versions of the package whose insides this adapter does not know."""
    for package in PACKAGES:
        try:
            found = version(package)
        except PackageNotFoundError:
            raise UnsupportedError(f"{package} is not installed", INSTALL) from None
        if found.split(".")[:2] != KNOWN.split("."):
            raise UnsupportedError(f"{package} {found} is not known to this perdure", INSTALL)


class Node(NamedTuple):
    """An agent or a team, and its place below the one that is kept."""

    path: str
    component: Any
    kind: str
    opaque: bool = False
    """Whether nothing is known of what it does, an agent, while it makes a reply."""
    members: tuple["Node", ...] = ()

    @property
    def all(self) -> Iterator["Node"]:
        """Itself and everything below it."""
        yield self
        for member in self.members:
            yield from member.all

    @property
    def seen(self) -> Iterator["Node"]:
        """Itself and what is below it, but for what only an opaque agent has to do with."""
        yield self
        for member in () if self.opaque else self.members:
            yield from member.seen


def tree(component: Any) -> Node:
    """Return what an agent or a team is made of; refuse what is neither."""
    from autogen_agentchat.agents import BaseChatAgent
    from autogen_agentchat.teams import BaseGroupChat

    if not isinstance(component, BaseChatAgent | BaseGroupChat):
        given = type(component).__qualname__
        raise UsageError(f"give an agent or a team of autogen_agentchat, not a {given}")
    return _node(component, component.name)


def _node(component: Any, path: str) -> Node:
    members = tuple(_node(one, f"{path}/{one.name}") for one in _members(component))
    return Node(path, component, _kind(component), _is_opaque(component), members)


def _kind(component: Any) -> str:
    """Return the class of the package that it is, so that subclasses may come and go."""
    from autogen_agentchat import agents, teams

    known = [
        *(getattr(agents, name) for name in _OPEN),
        *(getattr(teams, name) for name in _TEAMS),
    ]
    return next((one.__name__ for one in known if isinstance(component, one)), _own(component))


def _own(component: Any) -> str:
    return type(component).__name__


def _is_opaque(component: Any) -> bool:
    """Whether it is an agent of a class that is not known, or replies in a way of its own."""
    from autogen_agentchat import agents
    from autogen_agentchat.teams import BaseGroupChat

    if isinstance(component, BaseGroupChat):
        return False
    known = [one for name in _OPEN if isinstance(component, one := getattr(agents, name))]
    return not known or any(
        name in vars(component) or getattr(type(component), name) is not getattr(known[0], name)
        for name in _REPLYING
    )


_REPLYING = ("on_messages", "on_messages_stream")

# Agents whose calls of models, tools and people are kept one by one. Of others, each reply is.
_OPEN = ("AssistantAgent", "SocietyOfMindAgent", "MessageFilterAgent", "UserProxyAgent")
_TEAMS = ("RoundRobinGroupChat", "SelectorGroupChat", "Swarm", "GraphFlow", "MagenticOneGroupChat")


def is_team(node: Node) -> bool:
    from autogen_agentchat.teams import BaseGroupChat

    return isinstance(node.component, BaseGroupChat)


def _members(component: Any) -> list[Any]:
    from autogen_agentchat.agents import AssistantAgent, MessageFilterAgent, SocietyOfMindAgent
    from autogen_agentchat.teams import BaseGroupChat

    if isinstance(component, BaseGroupChat):
        return [*component._participants]  # noqa: SLF001 - see the module
    if isinstance(component, SocietyOfMindAgent):
        return [component._team]  # noqa: SLF001
    if isinstance(component, MessageFilterAgent):
        return [component._wrapped_agent]  # noqa: SLF001
    if isinstance(component, AssistantAgent):
        return [tool._task_runner for tool in runners(component)]  # noqa: SLF001
    return []


def workbenches(agent: Any) -> list[Any]:
    """Return what an assistant's tools are kept in."""
    return [*agent._workbench]  # noqa: SLF001


def benches_of(node: Node) -> list[Any]:
    """Return what the tools of an agent are kept in, if it has any that are known."""
    known = node.kind == "AssistantAgent" and not node.opaque
    return workbenches(node.component) if known else []


def tools_of(workbench: Any) -> list[Any]:
    """Return the tools of a workbench of the package's own, and none of others."""
    from autogen_core.tools import StaticWorkbench

    return [*workbench._tools] if isinstance(workbench, StaticWorkbench) else []  # noqa: SLF001


def runners(agent: Any) -> list[Any]:
    """Return the tools of an assistant that are agents or teams."""
    from autogen_agentchat.tools import AgentTool, TeamTool

    return [
        tool
        for workbench in workbenches(agent)
        for tool in tools_of(workbench)
        if isinstance(tool, AgentTool | TeamTool)
    ]


def shape(node: Node) -> dict[str, Any]:
    """Return what must be the same when a state is restored: classes and names, in order."""
    members = [shape(member) for member in node.members]
    return {"kind": node.kind, "name": node.component.name, "members": members}


def require_shape(session: str, recorded: dict[str, Any], node: Node) -> None:
    """Say what is not as it was in a team that a state is to be restored into."""
    given = shape(node)
    if given == recorded:
        return
    raise UsageError(f"{session!r} keeps another team: {_difference(recorded, given)}")


def _difference(was: dict[str, Any], now: dict[str, Any]) -> str:
    names = [one["name"] for one in was["members"]], [one["name"] for one in now["members"]]
    if was["kind"] != now["kind"] or was["name"] != now["name"]:
        told = f"{was['name']!r}, a {was['kind']}, and not {now['name']!r}, a {now['kind']}"
    elif missing := [name for name in names[0] if name not in names[1]]:
        added = [name for name in names[1] if name not in names[0]]
        instead = f" ({', '.join(map(repr, added))} stands there)" if added else ""
        told = f"{was['name']!r} has no {', '.join(map(repr, missing))} any more{instead}"
    elif names[0] != names[1]:
        told = f"{was['name']!r} has {', '.join(names[1])}, and had {', '.join(names[0])}"
    else:
        pairs = zip(was["members"], now["members"], strict=True)
        return next(_difference(*pair) for pair in pairs if pair[0] != pair[1])
    return f"{told}. Give the team as it was, or another session"


class Places:
    """Attributes that something else is put into, and gets out of again."""

    def __init__(self) -> None:
        self._before: list[Callable[[], None]] = []

    def put(self, holder: Any, name: str, value: Any) -> None:
        """Put a value into an attribute of an object."""
        own = name in vars(holder)
        before = vars(holder).get(name)

        def back() -> None:
            if own:
                setattr(holder, name, before)
            else:
                delattr(holder, name)

        setattr(holder, name, value)
        self._before.append(back)

    def restore(self) -> None:
        """Put everything back as it was."""
        while self._before:
            self._before.pop()()


async def manager_of(team: Any) -> Any:
    """Return the manager that a team's runtime holds; it is made if it is not there yet."""
    from autogen_core import Agent, AgentId

    if not team._initialized:  # noqa: SLF001
        await team.save_state()  # What makes a team known to its runtime.
    place = AgentId(team._group_chat_manager_topic_type, team._team_id)  # noqa: SLF001
    return await team._runtime.try_get_underlying_agent_instance(place, Agent)  # noqa: SLF001


def renew(root: Node) -> None:
    """Give teams a runtime in which nothing is left of a run that failed.

    A team that was given a runtime keeps it: what is left there is not ours to end.
    """
    from autogen_core import SingleThreadedAgentRuntime

    for node in root.all:
        if is_team(node) and node.component._embedded_runtime:  # noqa: SLF001
            team = node.component
            team._runtime = SingleThreadedAgentRuntime(ignore_unhandled_exceptions=False)  # noqa: SLF001
            team._initialized = team._is_running = False  # noqa: SLF001


def message_classes(root: Node) -> Iterator[Any]:
    """Yield the classes of messages that a team was given and that its agents name."""
    from autogen_agentchat.messages import (
        BaseAgentEvent,
        BaseChatMessage,
        MessageFactory,
        StructuredMessage,
    )

    named = [*_registered(MessageFactory())]
    for node in root.all:
        found = node.component
        if is_team(node):
            named += _registered(found._message_factory)  # noqa: SLF001
            continue
        named += found.produced_message_types
        content = getattr(found, "_output_content_type", None)
        if content is not None:  # An assistant names it only in general.
            named.append(StructuredMessage[content])
    for one in named:
        message = isinstance(one, type) and issubclass(one, BaseChatMessage | BaseAgentEvent)
        if message and one is not StructuredMessage:
            yield one


def _registered(factory: Any) -> list[Any]:
    return [*factory._message_types.values()]  # noqa: SLF001
