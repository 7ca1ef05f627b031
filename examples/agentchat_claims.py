"""The tutorial's assistant on AgentChat, durable: run it, kill it, run it with the next request.

OPENAI_API_KEY=… python examples/agentchat_claims.py "Draft a claims escalation checklist."
OPENAI_API_KEY=… python examples/agentchat_claims.py "Refine that for high-value policies only."
"""

import asyncio
import sys

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient

import perdure
from perdure.adapters.agentchat import persist


async def main(prompts: list[str]) -> None:
    client = OpenAIChatCompletionClient(model="gpt-4o-mini-2024-07-18")
    assistant = AssistantAgent("assistant", client)
    async with perdure.open_async("agents.db") as store:
        session = await store.session("claim-4711")
        async with persist(session, assistant) as durable:
            if durable.interrupted is not None:
                print(f"Going on with: {durable.interrupted}")
                await durable.run()
            for prompt in prompts:
                await durable.run(task=prompt)
        print(f"Messages persisted: {len(session)}")
        print(f"Last saved content: {(session.last_message or {}).get('content')}")
    await client.close()


asyncio.run(main(sys.argv[1:]))
