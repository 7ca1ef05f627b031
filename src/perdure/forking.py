"""Locks that a child of `os.fork` can take, whatever another thread did in the parent."""

import os
import threading


def lock() -> "threading.RLock":
    """Return a lock for the life of the process; a fork waits until nobody holds it.

    Otherwise a child could inherit it from a thread that stays behind. The thread that holds it
    may take it again: a signal handler may come at any moment, and fork as well.
    """
    made = threading.RLock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=made.acquire, after_in_parent=made.release, after_in_child=made.release
        )
    return made
