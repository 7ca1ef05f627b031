"""Sessions copied from one store to another, checked entry by entry, while writers go on."""
