"""The framework, imported once: an old one warns of what it misses, which is not ours to fix."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import autogen  # noqa: F401
