"""Which versions of the classic API are known, and what of them is reached by private names.

The version is checked before anything else is: a private name may mean something else, or nothing,
in a version that was never tried.
"""

import re
from typing import Any

from perdure import UnsupportedError

# From, up to: the tests were run with the last release of each line between, and run with those
# that `requirements/` pins whenever something changes.
FIRST, BEFORE = (0, 2, 35), (0, 15)

INSTALL = 'pip install "autogen[openai]>=0.14,<0.15", or "autogen-agentchat>=0.2.36,<0.3"'


def framework() -> Any:
    """Return the `autogen` module; UnsupportedError if it is not there, or not a known one."""
    try:
        import autogen
    except ImportError as error:
        raise UnsupportedError("there is no module `autogen`", INSTALL) from error
    version = str(getattr(autogen, "__version__", "unknown"))
    if not hasattr(autogen, "ConversableAgent"):
        raise UnsupportedError(f"`autogen` {version} has not the classic API", INSTALL)
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    if not FIRST <= numbers < BEFORE:
        raise UnsupportedError(f"`autogen` {version} is not a version that was tried", INSTALL)
    return autogen


def reply_counts(agent: Any) -> dict[Any, int]:
    """Return how often an agent has answered each other without a human; there is no setter."""
    found: dict[Any, int] = agent._consecutive_auto_reply_counter  # noqa: SLF001 - no other way
    return found


def human_inputs(agent: Any) -> list[str]:
    """Return what a human has said through an agent; only a chat's result shows it."""
    found: list[str] = agent._human_input  # noqa: SLF001 - no other way
    return found


def runs_code(agent: Any) -> bool:
    """Whether an agent has an executor of code; asking one without for it is an error."""
    return getattr(agent, "_code_executor", None) is not None
