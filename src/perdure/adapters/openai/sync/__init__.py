"""The conversation and its streams for threads, generated from `aio`."""
