"""Conversations beyond single messages: intake, streaming, windows, summaries."""
