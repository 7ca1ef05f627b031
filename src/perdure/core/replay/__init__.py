"""Replay: run an agent again with its model and tool calls served from the record."""
