"""Tests of a framework run where it is installed: scripts/environments.py makes such places."""

from importlib.util import find_spec

NEEDS = {
    "autogen": "autogen",
    "agentchat": "autogen_agentchat",
    "langgraph": "langgraph",
    "openai_agents": "agents",
}

collect_ignore = [folder for folder, module in NEEDS.items() if find_spec(module) is None]
