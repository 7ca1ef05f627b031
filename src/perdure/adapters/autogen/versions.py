"""Supported versions of the classic API, and the private attributes that this adapter reads.

The version is checked before anything else: in an untested version a private name may mean
something else, or may not exist.
"""

import re
from typing import Any

from perdure.errors import UnsupportedError

# First supported, first unsupported. Tested with the last release of each line in between; the
# releases pinned in `requirements/` are tested with every change.
FIRST_SUPPORTED, FIRST_UNSUPPORTED = (0, 2, 35), (0, 15)

INSTALL = 'pip install "autogen[openai]>=0.14,<0.15", or "autogen-agentchat>=0.2.36,<0.3"'

# Names of an agent's hook lists. Async code has hooks of its own from 0.2.36, before 0.3.
SEND_HOOKS, ASYNC_SEND_HOOKS = "process_message_before_send", "a_process_message_before_send"


def framework() -> Any:
    """Return the `autogen` module; UnsupportedError if it is missing or not a supported version."""
    try:
        import autogen
    except ImportError as error:
        raise UnsupportedError("there is no module `autogen`", INSTALL) from error
    # Several projects publish a package `autogen`, and some lack the classic API.
    version = str(getattr(autogen, "__version__", "unknown"))
    if not hasattr(autogen, "ConversableAgent"):
        raise UnsupportedError(f"`autogen` {version} does not have the classic API", INSTALL)
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    if not FIRST_SUPPORTED <= numbers < FIRST_UNSUPPORTED:
        raise UnsupportedError(f"`autogen` {version} is not a tested version", INSTALL)
    return autogen


def reply_counts(agent: Any) -> dict[Any, int]:
    """Return an agent's automatic replies per peer; the framework has no setter."""
    counts: dict[Any, int] = agent._consecutive_auto_reply_counter  # noqa: SLF001 - no other way
    return counts


def human_inputs(agent: Any) -> list[str]:
    """Return the human inputs given through an agent; otherwise only a chat's result shows them."""
    inputs: list[str] = agent._human_input  # noqa: SLF001 - no other way
    return inputs


def runs_code(agent: Any) -> bool:
    """Return whether an agent has a code executor; the public property raises if it has none."""
    return getattr(agent, "_code_executor", None) is not None
