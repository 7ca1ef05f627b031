"""Keep LangGraph's threads and its long-term memory in perdure.

graph = builder.compile(checkpointer=PerdureSaver("agents.db"))
"""

from perdure.adapters.langgraph.saver import PerdureSaver, ThreadInfo
from perdure.adapters.langgraph.store import PerdureStore
from perdure.adapters.langgraph.tool_calls import RecordedToolCalls, tool_node

__all__ = ["PerdureSaver", "PerdureStore", "RecordedToolCalls", "ThreadInfo", "tool_node"]
