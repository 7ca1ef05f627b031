"""The state of a session, computed from its records. Pure."""
