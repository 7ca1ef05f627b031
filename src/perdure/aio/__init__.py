"""The async API: sessions, turns, tools and stores for an event loop."""
