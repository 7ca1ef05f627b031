"""Copy sessions between stores, verified entry by entry, while writers keep writing."""
