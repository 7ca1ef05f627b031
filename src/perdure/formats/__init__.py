"""The formats of conversations: one module for each provider's messages, and what they share. Pure.

Each reads stored messages into the neutral form (`parts`) and writes the neutral form as messages
that its provider accepts. What a format can not say becomes a `Loss`.
"""
