"""Inspect a team: its members, models, tools, message classes, and the runtimes of its teams.

AgentChat has no public API for these. Private names of the package are used in this module, and
where their values are saved (`team_state`) or patched (`patches`, `workbench`).
`require_version` must be called before any of them is touched.
"""

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from perdure.errors import UnsupportedError, UsageError

PACKAGES = ("autogen-agentchat", "autogen-core")
SUPPORTED_VERSION = "0.7"  # Major and minor: private names may change with either.
INSTALL = 'install "autogen-agentchat>=0.7,<0.8"'

# Agents whose calls to models, tools and people are recorded one by one; of others, each reply.
_OBSERVED_AGENTS = ("AssistantAgent", "SocietyOfMindAgent", "MessageFilterAgent", "UserProxyAgent")

_TEAMS = ("RoundRobinGroupChat", "SelectorGroupChat", "Swarm", "GraphFlow", "MagenticOneGroupChat")

# An agent that overrides one of these makes calls that this adapter does not know of.
_REPLY_METHODS = ("on_messages", "on_messages_stream")


def require_version() -> None:
    """Raise UnsupportedError for versions whose internals this adapter does not know."""
    for package in PACKAGES:
        try:
            installed = version(package)
        except PackageNotFoundError:
            raise UnsupportedError(f"{package} is not installed", INSTALL) from None
        if installed.split(".")[:2] != SUPPORTED_VERSION.split("."):
            raise UnsupportedError(
                f"{package} {installed} is not supported by this perdure", INSTALL
            )


class TeamNode(NamedTuple):
    """An agent or a team, and its path below the persisted one."""

    path: str
    component: Any
    kind: str
    opaque: bool = False
    """Whether it is an agent whose calls cannot be observed while it makes a reply."""
    members: tuple["TeamNode", ...] = ()

    @property
    def all(self) -> Iterator["TeamNode"]:
        """This node and all nodes below it."""
        yield self
        for member in self.members:
            yield from member.all

    @property
    def observed(self) -> Iterator["TeamNode"]:
        """This node and the nodes below it, except those below an opaque agent."""
        yield self
        for member in () if self.opaque else self.members:
            yield from member.observed


def build_tree(component: Any) -> TeamNode:
    """Return the tree of an agent or a team; UsageError if it is neither."""
    from autogen_agentchat.agents import BaseChatAgent
    from autogen_agentchat.teams import BaseGroupChat

    if not isinstance(component, BaseChatAgent | BaseGroupChat):
        class_name = type(component).__qualname__
        raise UsageError(f"pass an agent or a team of autogen_agentchat, not a {class_name}")
    return _node(component, component.name)


def _node(component: Any, path: str) -> TeamNode:
    members = tuple(_node(member, f"{path}/{member.name}") for member in _members(component))
    return TeamNode(path, component, _kind(component), _is_opaque(component), members)


def _kind(component: Any) -> str:
    """Return the name of its class in the package, so that user subclasses may change."""
    from autogen_agentchat import agents, teams

    classes = [
        *(getattr(agents, name) for name in _OBSERVED_AGENTS),
        *(getattr(teams, name) for name in _TEAMS),
    ]
    known_class = next((cls for cls in classes if isinstance(component, cls)), type(component))
    return str(known_class.__name__)


def _is_opaque(component: Any) -> bool:
    """Return whether it is an agent of an unknown class, or overrides how it replies."""
    from autogen_agentchat import agents
    from autogen_agentchat.teams import BaseGroupChat

    if isinstance(component, BaseGroupChat):  # Its members are observed, and its manager.
        return False
    classes = [
        cls for name in _OBSERVED_AGENTS if isinstance(component, cls := getattr(agents, name))
    ]
    # On the object, too: replies can be replaced without a subclass.
    return not classes or any(
        name in vars(component) or getattr(type(component), name) is not getattr(classes[0], name)
        for name in _REPLY_METHODS
    )


def _members(component: Any) -> list[Any]:
    from autogen_agentchat.agents import AssistantAgent, MessageFilterAgent, SocietyOfMindAgent
    from autogen_agentchat.teams import BaseGroupChat

    if isinstance(component, BaseGroupChat):
        return [*component._participants]  # noqa: SLF001 - see the module
    if isinstance(component, SocietyOfMindAgent):
        return [component._team]  # noqa: SLF001
    if isinstance(component, MessageFilterAgent):
        return [component._wrapped_agent]  # noqa: SLF001
    if isinstance(component, AssistantAgent):  # Their calls belong to the same run.
        return [tool._task_runner for tool in runner_tools(component)]  # noqa: SLF001
    return []


def is_team(node: TeamNode) -> bool:
    from autogen_agentchat.teams import BaseGroupChat

    return isinstance(node.component, BaseGroupChat)


def workbenches(agent: Any) -> list[Any]:
    """Return the workbenches of an assistant."""
    return [*agent._workbench]  # noqa: SLF001


def node_workbenches(node: TeamNode) -> list[Any]:
    """Return the workbenches of a node, if it is a known assistant."""
    is_assistant = node.kind == "AssistantAgent" and not node.opaque
    return workbenches(node.component) if is_assistant else []


def tools_of(workbench: Any) -> list[Any]:
    """Return the tools of a workbench of the package; none for other workbenches."""
    from autogen_core.tools import StaticWorkbench

    return [*workbench._tools] if isinstance(workbench, StaticWorkbench) else []  # noqa: SLF001


def runner_tools(agent: Any) -> list[Any]:
    """Return the tools of an assistant that are agents or teams."""
    from autogen_agentchat.tools import AgentTool, TeamTool

    return [
        tool
        for workbench in workbenches(agent)
        for tool in tools_of(workbench)
        if isinstance(tool, AgentTool | TeamTool)
    ]


def shape(node: TeamNode) -> dict[str, Any]:
    """Return what must be the same when a state is restored: classes and names, in order."""
    members = [shape(member) for member in node.members]
    return {"kind": node.kind, "name": node.component.name, "members": members}


def require_shape(session: str, recorded: dict[str, Any], node: TeamNode) -> None:
    """Raise UsageError with the difference if a team is not the recorded one."""
    # Instructions, models and tools may change between runs; names identify the saved states.
    current = shape(node)
    if current == recorded:
        return
    raise UsageError(f"{session!r} holds another team: {_difference(recorded, current)}")


def _difference(recorded: dict[str, Any], current: dict[str, Any]) -> str:
    """Return the first difference between two shapes, from the outermost team inwards."""
    names = (
        [member["name"] for member in recorded["members"]],
        [member["name"] for member in current["members"]],
    )
    if recorded["kind"] != current["kind"] or recorded["name"] != current["name"]:
        was = f"{recorded['name']!r}, a {recorded['kind']}"
        text = f"{was}, and not {current['name']!r}, a {current['kind']}"
    elif missing := [name for name in names[0] if name not in names[1]]:
        added = [name for name in names[1] if name not in names[0]]
        instead = f" ({', '.join(map(repr, added))} was added)" if added else ""
        text = f"{recorded['name']!r} no longer has {', '.join(map(repr, missing))}{instead}"
    elif names[0] != names[1]:
        text = f"{recorded['name']!r} has {', '.join(names[1])}, and had {', '.join(names[0])}"
    else:
        pairs = zip(recorded["members"], current["members"], strict=True)
        return next(_difference(*pair) for pair in pairs if pair[0] != pair[1])
    return f"{text}. Pass the same team, or use another session"


async def manager_of(team: Any) -> Any:
    """Return the manager in a team's runtime; it is created if it does not exist yet."""
    from autogen_core import Agent, AgentId

    if not team._initialized:  # noqa: SLF001
        await team.save_state()  # Registers the team with its runtime.
    agent_id = AgentId(team._group_chat_manager_topic_type, team._team_id)  # noqa: SLF001
    return await team._runtime.try_get_underlying_agent_instance(agent_id, Agent)  # noqa: SLF001


def reset_runtimes(root: TeamNode) -> None:
    """Give teams a new runtime, without leftovers of a failed run.

    A team with a runtime passed in by the user keeps it: its contents are not ours to end.
    """
    from autogen_core import SingleThreadedAgentRuntime

    for node in root.all:
        if is_team(node) and node.component._embedded_runtime:  # noqa: SLF001
            team = node.component
            team._runtime = SingleThreadedAgentRuntime(ignore_unhandled_exceptions=False)  # noqa: SLF001
            # Registers again with the new runtime when it is used next.
            team._initialized = team._is_running = False  # noqa: SLF001


def message_classes(root: TeamNode) -> Iterator[Any]:
    """Yield the message classes that a team was given and that its agents declare."""
    from autogen_agentchat.messages import (
        BaseAgentEvent,
        BaseChatMessage,
        MessageFactory,
        StructuredMessage,
    )

    classes = [*_registered_classes(MessageFactory())]  # A new factory has the package's own.
    for node in root.all:
        component = node.component
        if is_team(node):
            classes += _registered_classes(component._message_factory)  # noqa: SLF001
            continue
        classes += component.produced_message_types
        content = getattr(component, "_output_content_type", None)
        if content is not None:  # An assistant declares only the generic class.
            classes.append(StructuredMessage[content])
    for cls in classes:
        is_message = isinstance(cls, type) and issubclass(cls, BaseChatMessage | BaseAgentEvent)
        # Messages of the generic class cannot be loaded without their content class.
        if is_message and cls is not StructuredMessage:
            yield cls


def _registered_classes(factory: Any) -> list[Any]:
    return [*factory._message_types.values()]  # noqa: SLF001
