"""Locks that stay usable in a child of `os.fork`, whatever other threads did in the parent."""

import os
import threading


def fork_safe_lock() -> "threading.RLock":
    """Return a lock that lives as long as the process; a fork waits until it is free.

    Otherwise a child could inherit the lock as held by a thread that does not exist in the child.
    It is reentrant, because a signal handler may interrupt its holder at any moment and fork.
    """
    new_lock = threading.RLock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=new_lock.acquire,
            after_in_parent=new_lock.release,
            after_in_child=new_lock.release,
        )
    return new_lock
