"""The tutorial's assistant, durable: run it, kill it, run it again with the next request.

OPENAI_API_KEY=… python examples/autogen_claims.py "Draft a claims escalation checklist."
OPENAI_API_KEY=… python examples/autogen_claims.py "Refine that for high-value policies only."
"""

import sys

from autogen import AssistantAgent, UserProxyAgent

import perdure
from perdure.adapters.autogen import persist

# Without a seed pyautogen 0.2 keeps no cache of its own, which would be a directory of pickles.
llm_config = {"config_list": [{"model": "gpt-4o-mini"}], "cache_seed": None}
assistant = AssistantAgent(name="assistant", llm_config=llm_config)
user_proxy = UserProxyAgent(
    name="user_proxy", human_input_mode="NEVER", code_execution_config=False
)

with (
    perdure.open("agents.db") as store,
    persist(store.session("claim-4711"), user_proxy, assistant) as chat,
):
    if chat.interrupted:
        print(f"Going on with {chat.interrupted}.")
        chat.resume()
    for prompt in sys.argv[1:]:
        user_proxy.initiate_chat(assistant, message=prompt, max_turns=1)
    messages = user_proxy.chat_messages[assistant]
    print(f"Messages persisted: {len(messages)}")
    print(f"Last saved content: {messages[-1]['content']}")
