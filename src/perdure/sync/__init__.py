"""The sync API: sessions, turns, tools and stores for threads."""
