"""Message formats: one module per provider, and their shared code. Pure; knows no journal.

Each format parses stored messages into the neutral form (`parts`) and writes the neutral form as
messages that its provider accepts. Content that a format cannot express is reported as a `Loss`.
"""
