"""Chats as a process may run them again: the same code after a crash as before it.

A script makes its agents, begins its chats, those that have not ended, and tells what the agents
know at the end.
"""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import autogen

import perdure
from perdure.adapters.autogen import persist
from perdure.adapters.autogen.agent_state import ChatAgents

SESSION = "claim-4711"


class Scene:
    """Where a script runs: its model, its store, its ledger; and what it does at some places."""

    def __init__(self, url: str, folder: Path, effect: str, reach: Callable[[str], None]) -> None:
        self.url = url
        self.folder = folder
        self.effect = effect
        self.reach = reach

    @property
    def llm(self) -> dict[str, Any]:
        config = {"model": "m", "base_url": self.url, "api_key": "test"}
        return {"config_list": [config], "cache_seed": None}

    def ledger(self) -> list[list[str]]:
        path = self.folder / "ledger"
        return (
            [line.split(" ", 1) for line in path.read_text().splitlines()] if path.exists() else []
        )

    def charge(self, id: int) -> str:
        """Charge somebody, as a service does that knows a key again."""
        key = perdure.current_effect().key
        done = [text for known, text in self.ledger() if known == key]
        if done and self.effect != "unsafe":
            return done[0]
        text = f"charged {id}"
        with (self.folder / "ledger").open("a") as file:
            file.write(f"{key} {text}\n")
        self.reach("tool")
        return text

    async def a_charge(self, id: int) -> str:
        await asyncio.sleep(0)
        return self.charge(id)

    def find_out(self, effect: perdure.Effect) -> perdure.Happened | perdure.DidNotHappen:
        done = [text for known, text in self.ledger() if known == effect.key]
        return perdure.Happened(done[0]) if done else perdure.DidNotHappen()

    @property
    def tools(self) -> dict[str, Any]:
        if self.effect == "reconcile":
            return {"charge": {"effect": "reconcile", "reconcile": self.find_out}}
        return {"charge": self.effect}


def charged(id: int) -> str:
    return f"charged {id}"


def register(function: Any, caller: Any, executor: Any) -> None:
    """Offer a tool to one agent, to be run by another."""
    function = getattr(function, "__func__", function) if not callable(function) else function

    def charge(id: int) -> str:
        return str(function(id))

    async def a_charge(id: int) -> str:
        return str(await function(id))

    use = a_charge if asyncio.iscoroutinefunction(function) else charge
    autogen.register_function(
        use, caller=caller, executor=executor, name="charge", description="Charge somebody."
    )


def pair(scene: Scene, function: Any) -> list[Any]:
    assistant = autogen.AssistantAgent("assistant", "You are a clerk.", llm_config=scene.llm)
    user = autogen.UserProxyAgent(
        "user_proxy",
        human_input_mode="NEVER",
        code_execution_config=False,
        max_consecutive_auto_reply=3,
        default_auto_reply='Go on. CALL charge {"id": 19}',
    )
    register(function, assistant, user)
    return [user, assistant]


PROMPTS = ['Begin. CALL charge {"id": 17} CALL charge {"id": 18}', "And now, for the others?"]


def two_agents(scene: Scene) -> Any:
    """Two chats of a pair, one after the other, with tools."""
    agents = pair(scene, scene.charge)
    user, assistant = agents
    with perdure.open(scene.folder / "s.db") as store:
        session = store.session(SESSION)
        with persist(session, *agents, tools=scene.tools) as chat:
            for prompt in PROMPTS[chat.finished :]:
                if chat.finished:
                    assistant.update_system_message("You are a clerk who has been here before.")
                user.initiate_chat(assistant, message=prompt)
            return told(agents, session)


def two_agents_async(scene: Scene) -> Any:
    """The same in async code, with an async tool."""

    async def main() -> Any:
        agents = pair(scene, scene.a_charge)
        user, assistant = agents
        with perdure.open(scene.folder / "s.db") as store:
            session = store.session(SESSION)
            with persist(session, *agents, tools=scene.tools) as chat:
                for prompt in PROMPTS[chat.finished :]:
                    await user.a_initiate_chat(assistant, message=prompt)
                return told(agents, session)

    return asyncio.run(main())


def group(scene: Scene, selection: str) -> tuple[list[Any], Any]:
    writers = [
        autogen.AssistantAgent(name, f"You are {name}.", llm_config=scene.llm)
        for name in ("planner", "writer")
    ]
    clerk = autogen.UserProxyAgent(
        "clerk",
        human_input_mode="NEVER",
        code_execution_config=False,
        default_auto_reply='CALL charge {"id": 20}',
    )
    for writer in writers:
        writer.register_for_llm(name="charge", description="Charge somebody.")(charging(scene))
    clerk.register_for_execution(name="charge")(charging(scene))
    chat = autogen.GroupChat(
        agents=[clerk, *writers],
        messages=[],
        max_round=7,
        speaker_selection_method=selection,
        send_introductions=True,
    )
    manager = autogen.GroupChatManager(chat, llm_config=scene.llm)
    return [clerk, *writers], manager


def charging(scene: Scene) -> Any:
    def charge(id: int) -> str:
        """Charge somebody."""
        return scene.charge(id)

    charge.__annotations__ = {"id": int, "return": str}
    return charge


def group_of_three(scene: Scene, selection: str = "round_robin") -> Any:
    """Two chats of a group of three."""
    agents, manager = group(scene, selection)
    with perdure.open(scene.folder / "s.db") as store:
        session = store.session(SESSION)
        with persist(session, manager, tools=scene.tools) as chat:
            for prompt in PROMPTS[chat.finished :]:
                agents[0].initiate_chat(manager, message=prompt)
            return told([manager, *agents], session, [manager])


def chosen_speakers(scene: Scene) -> Any:
    return group_of_three(scene, "auto")


def random_speakers(scene: Scene) -> Any:
    return group_of_three(scene, "random")


def nested(scene: Scene) -> Any:
    """A pair, one of whom asks a reviewer in a chat of its own before it answers."""
    agents = pair(scene, scene.charge)
    user, assistant = agents
    reviewer = autogen.AssistantAgent("reviewer", "You review.", llm_config=scene.llm)
    editor = autogen.AssistantAgent("editor", "You edit.", llm_config=scene.llm)

    def reviewed(recipient: Any, messages: Any, sender: Any, config: Any) -> str:
        return f"Review this: {messages[-1]['content']}"

    user.register_nested_chats(
        [
            {
                "recipient": reviewer,
                "message": reviewed,
                "max_turns": 2,
                "summary_method": "last_msg",
            },
            {"recipient": editor, "message": "Edit.", "max_turns": 1, "summary_method": "last_msg"},
        ],
        trigger=lambda sender: sender is assistant and not calls(user, assistant),
    )
    with perdure.open(scene.folder / "s.db") as store:
        session = store.session(SESSION)
        with persist(session, *agents, reviewer, editor, tools=scene.tools) as chat:
            for prompt in PROMPTS[chat.finished :]:
                user.initiate_chat(assistant, message=prompt, max_turns=3)
            return told([*agents, reviewer, editor], session)


def several(scene: Scene) -> Any:
    """Several chats in one call, each told what came of those before."""
    agents = pair(scene, scene.charge)
    user, assistant = agents
    others = [
        autogen.AssistantAgent(name, f"You are {name}.", llm_config=scene.llm)
        for name in ("reviewer", "editor")
    ]
    apart = {"finished_chat_indexes_to_exclude_from_carryover": [0]}
    queue = [
        {"recipient": assistant, "message": PROMPTS[0], "max_turns": 2},
        {"recipient": others[0], "message": PROMPTS[1], "max_turns": 1, **apart},
        {"recipient": others[1], "message": "Close it.", "max_turns": 1},
    ]
    with perdure.open(scene.folder / "s.db") as store:
        session = store.session(SESSION)
        with persist(session, *agents, *others, tools=scene.tools) as chat:
            if not chat.finished:
                user.initiate_chats(queue)
            return told([*agents, *others], session)


def calls(user: Any, assistant: Any) -> bool:
    return bool(user.last_message(assistant).get("tool_calls"))


SCRIPTS = {
    script.__name__: script
    for script in (
        two_agents,
        two_agents_async,
        group_of_three,
        chosen_speakers,
        random_speakers,
        nested,
        several,
    )
}


def told(agents: list[Any], session: perdure.Session, managers: Any = ()) -> Any:
    """Return everything that the agents know and the session holds."""
    from perdure.adapters.autogen.recorder import GroupChats

    everything = ChatAgents(agents, GroupChats([*managers]))
    return json.loads(
        json.dumps(
            {
                "histories": everything.histories(),
                "state": everything.capture(),
                "messages": [*session.messages()],
                "interrupted": [turn.id for turn in session.interrupted],
            }
        )
    )
