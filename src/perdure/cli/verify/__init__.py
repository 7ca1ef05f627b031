"""`perdure verify`: check a store and its sessions, and salvage readable records."""
