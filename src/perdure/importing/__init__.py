"""Files that other programs left, read as messages."""
