"""The logic of sessions, without I/O and independent of sync and async."""
