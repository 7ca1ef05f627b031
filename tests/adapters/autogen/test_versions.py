"""Which package is here."""

import autogen


def test_the_classic_api_is_here() -> None:
    assert hasattr(autogen, "ConversableAgent")
