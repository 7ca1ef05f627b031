"""Read messages from files that other programs wrote."""
