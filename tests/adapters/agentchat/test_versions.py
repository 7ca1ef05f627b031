"""Which package is here."""

import autogen_agentchat


def test_agentchat_is_here() -> None:
    assert autogen_agentchat.__version__.startswith("0.7.")
