"""The conversation and its streams for an event loop; `sync` is generated from it."""
