"""The framework, imported once; and what every process of these tests would do again."""

import functools
import ssl
import warnings

with warnings.catch_warnings():
    # An old one warns of what it misses, which is not ours to fix.
    warnings.simplefilter("ignore")
    import autogen  # noqa: F401

# Every client loads certificates, which takes longer than a chat, and nobody here needs them.
ssl.create_default_context = functools.cache(ssl.create_default_context)  # type: ignore[assignment]
