# Generated from aio/lease.py by scripts/generate_sync.py: do not edit.
"""Lease: the exclusive right to write to a session, renewed in the background."""

import os
import time
from contextlib import suppress
from typing import Self

from perdure.backends import fork_safety
from perdure.core import leases
from perdure.core.leases import (
    CONTENDER_PAUSE_MAX,
    CONTENDER_PAUSE_MIN,
    RENEW_AFTER,
    HeldLease,
    LeaseAttempt,
    LeaseRequest,
)
from perdure.core.plans import REFRESH
from perdure.errors import ConflictError, FencedError, LeaseHeldError, NotFoundError, PerdureError
from perdure.sync.concurrency import Event, Repeater, sleep, within
from perdure.sync.handle import Handle

_begin_lock = fork_safety.fork_safe_lock()


def now() -> float:
    """Return the time by which leases expire: the wall clock does not affect it."""
    return time.monotonic()


def this_process() -> str:
    """Return the machine and the process, for people who find it in the record."""
    from socket import gethostname

    return f"{gethostname()} pid {os.getpid()}"


class Lease:
    """The exclusive right to write to a session while it is renewed. Created by `session.lease`.

    It belongs to the handle: threads and tasks that share the session share its lease.
    """

    def __init__(self, handle: Handle, request: LeaseRequest) -> None:
        self.lost = Event()
        """Set when the loss of the lease is detected; `held` also checks the clock."""
        self._handle = handle
        self._request = request
        self._holding: HeldLease | None = None
        self._renewing = Repeater("perdure-lease")

    def __repr__(self) -> str:
        state = f"epoch {self.epoch}" if self.held else "not held"
        return f"<{type(self).__name__} on {self._handle.replica.name!r}: {state}>"

    @property
    def epoch(self) -> int:
        """The number of this lease among those of the session; 0 before it is taken."""
        return self._holding.epoch if self._holding is not None else 0

    @property
    def held(self) -> bool:
        """Whether this handle may write: no takeover was seen, and the lease has not expired."""
        holding, replica = self._holding, self._handle.replica
        if holding is None or not holding.active:
            return False
        return holding.fenced(replica.name, replica.state.lease) is None

    def __enter__(self) -> Self:
        pid = os.getpid()
        self._handle.require_open()
        self._holding = holding = leases.new_lease(
            self._handle.replica,
            self._request.ttl,
            now=now,
            here=lambda: os.getpid() == pid,
            lost=self.lost.set,
        )
        try:
            with _begin_lock:  # Two threads may enter leases of one handle at the same time.
                leases.begin_lease(self._handle.replica, holding)
            self._renewing = Repeater("perdure-lease")
            self.lost.clear()
            self._take(holding)
            self._handle.on_close.add(self.release)
            self._start()
        except BaseException as error:
            self._abandon(holding, error)
            raise
        return self

    def _take(self, holding: HeldLease) -> None:
        handle, until = self._handle, now() + self._request.wait
        holder = self._request.holder or this_process()
        attempt = LeaseAttempt(handle.replica, self._request, holding, holder)
        pause = CONTENDER_PAUSE_MIN
        with handle.span("lease", ttl=self._request.ttl) as span:
            while True:
                handle.write(REFRESH)
                delay = attempt.seconds_until_free(now())
                if not delay:
                    sent = now()
                    with suppress(LeaseHeldError):  # It was renewed or taken meanwhile.
                        taken = handle.write(attempt.plan())
                        holding.take(taken.epoch, sent)
                        span.fields["epoch"] = holding.epoch
                        return
                elif (remaining := until - now()) <= 0:
                    raise attempt.refusal()
                else:
                    self._wait(min(delay, remaining), pause)
                    pause = min(pause * 2, CONTENDER_PAUSE_MAX)

    def _wait(self, seconds: float, pause: float) -> None:
        """Wait until the session is written to, or until the seconds have passed."""
        if self._handle.wait(self._handle.replica.tip.position, seconds):
            sleep(min(pause, seconds))

    def _start(self) -> None:
        self._renewing.start(
            self._renew_with_timeout,
            first=self._request.ttl * RENEW_AFTER,
            at_end=self._handle.emit_pending_events,
        )

    def _abandon(self, holding: HeldLease, error: BaseException) -> None:
        """Release a lease that may have been taken while the caller was interrupted."""
        self._handle.on_close.discard(self.release)
        holding.end()
        if not isinstance(error, PerdureError):
            self._handle.background.clean_up(self._release, holding)

    def _renew_with_timeout(self) -> float | None:
        """Renew the lease, but time out when it expires: a store may hang."""
        holding = self._holding
        if holding is None:
            return None
        try:
            return within(holding.seconds_left(), self._renew, name="perdure-renewal")
        except TimeoutError as error:
            return leases.retry_delay(self._handle.replica, holding, error)

    def _renew(self) -> float | None:
        """Renew the lease; return the seconds until the next renewal, or None if it ended."""
        holding, replica = self._holding, self._handle.replica
        if holding is None or not holding.active:
            return None
        sent = now()
        try:
            self._handle.write(leases.plan_renewal(replica, holding))
        except Exception as error:  # noqa: BLE001 - on any error, the lease expires by itself
            return leases.retry_delay(replica, holding, error)
        holding.renew(sent)
        return self._request.ttl * RENEW_AFTER

    def release(self) -> None:
        """Release the lease. Leaving `with` does this; calling it twice is harmless.

        If the store cannot be reached, other workers have to wait until the lease expires.
        """
        self._handle.replica.require_live("lease.release")
        holding = self._holding
        self._handle.on_close.discard(self.release)
        if holding is None or not holding.end():
            return
        self._renewing.stop()
        if holding.here():
            # To its end: otherwise a canceled caller would make others wait for the whole ttl.
            self._handle.background.finish(self._release, holding)
            self._renewing.join()

    def _release(self, holding: HeldLease) -> None:
        replica = self._handle.replica
        with self._handle.span("release", epoch=holding.epoch) as span:
            try:
                was_held = self._handle.write(leases.plan_release(replica, holding))
                leases.after_release(replica, holding, was_held=was_held)
            except (ConflictError, NotFoundError) as error:
                leases.retry_delay(replica, holding, error)
            except PerdureError as error:
                span.fields["outcome"] = type(error).__name__

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        _ = self.held  # Reading it detects an expired lease.
        self.release()
        if error is None and self._holding is not None and self._holding.loss is not None:
            raise FencedError(*self._holding.loss.args)
