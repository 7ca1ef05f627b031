"""Durable sessions and runs for the OpenAI Agents SDK (`openai-agents` 0.24).

    session = PerdureSession("claim-4711", store)
    result = await session.run(agent, "Where is my claim?")

The session is one of the SDK's own protocol: `Runner.run(agent, text, session=session)` stores its
items as messages. `session.run` takes the place of `Runner.run`: the run is a turn, every item is
durable when it arises, tools are effects, and a model answer is never paid for twice.
"""

from perdure.adapters.openai_agents.session import PerdureSession

__all__ = ["PerdureSession"]
