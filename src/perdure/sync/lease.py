"""Lease: one worker at a time writes to a session. Its twin is in `lease_async`."""

import contextvars
import os
import threading
import time
from contextlib import suppress
from types import TracebackType
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
    now,
    this_process,
)
from perdure.core.plans import REFRESH
from perdure.errors import ConflictError, FencedError, LeaseHeldError, NotFoundError, PerdureError
from perdure.sync.handle import Handle

_beginning = fork_safety.fork_safe_lock()


class Lease:
    """The right to write to a session alone, for as long as it is renewed. Made by `session.lease`.

    It belongs to the handle: threads and tasks that share the session share its lease.
    """

    def __init__(self, handle: Handle, request: LeaseRequest) -> None:
        self.lost = threading.Event()
        """Set when it turns out that the lease was lost; `held` asks the clock as well."""
        self._handle = handle
        self._request = request
        self._holding: HeldLease | None = None
        self._stop = threading.Event()
        self._renewing: threading.Thread | None = None

    def __repr__(self) -> str:
        state = f"epoch {self.epoch}" if self.held else "not held"
        return f"<{type(self).__name__} on {self._handle.replica.name!r}: {state}>"

    @property
    def epoch(self) -> int:
        """The number of this lease among those of the session; 0 before it is taken."""
        return self._holding.epoch if self._holding is not None else 0

    @property
    def held(self) -> bool:
        """Whether this handle may write: nobody took over as far as it saw, and time is left."""
        holding, replica = self._holding, self._handle.replica
        if holding is None or not holding.active:
            return False
        return holding.fenced(replica.name, replica.state.lease) is None

    def __enter__(self) -> Self:
        pid = os.getpid()
        self._handle.require_open()
        with _beginning:
            holding = leases.begin_lease(
                self._handle.replica,
                self._request.ttl,
                now=now,
                here=lambda: os.getpid() == pid,
                lost=self.lost.set,
            )
        self._holding = holding
        self.lost.clear()
        self._stop.clear()
        try:
            self._take(holding)
            self._handle.on_close.add(self.release)
            self._start()
        except BaseException as error:
            self._abandon(holding, error)
            raise
        return self

    def _take(self, holding: HeldLease) -> None:
        handle, until = self._handle, now() + self._request.wait
        attempt = LeaseAttempt(
            handle.replica, self._request, holding, self._request.who or this_process()
        )
        pause = CONTENDER_PAUSE_MIN
        with handle.observed("lease", ttl=self._request.ttl) as span:
            while True:
                handle.write(REFRESH)
                delay = attempt.seconds_until_free(now())
                if not delay:
                    sent = now()
                    with suppress(LeaseHeldError):  # It was renewed or taken after the look.
                        holding.take(handle.write(attempt.plan()), sent)
                        span.fields["epoch"] = holding.epoch
                        return
                elif (remaining := until - now()) <= 0:
                    raise attempt.refusal()
                else:
                    self._wait(min(delay, remaining), pause)
                    pause = min(pause * 2, CONTENDER_PAUSE_MAX)

    def _wait(self, seconds: float, pause: float) -> None:
        """Wait until something was written to the session, or so long."""
        if self._handle.wait(self._handle.replica.tip.position, seconds):
            time.sleep(min(pause, seconds))

    def _start(self) -> None:
        run = contextvars.copy_context().run
        self._renewing = threading.Thread(
            target=run, args=(self._renew_periodically,), name="perdure-lease", daemon=True
        )
        self._renewing.start()

    def _abandon(self, holding: HeldLease, error: BaseException) -> None:
        """Leave nothing behind that was taken while the caller was interrupted."""
        self._handle.on_close.discard(self.release)
        holding.end()
        if not isinstance(error, PerdureError):
            with suppress(PerdureError):
                self._handle.write(leases.plan_release(self._handle.replica, holding))

    def _renew_periodically(self) -> None:
        pause: float | None = self._request.ttl * RENEW_AFTER
        while pause is not None and not self._stop.wait(pause):
            pause = self._renew_with_timeout()
        self._handle.emit_notices()

    def _renew_with_timeout(self) -> float | None:
        """Renew the lease, but wait no longer than it lasts: a store may hang."""
        holding, answers = self._holding, list[float | None]()
        if holding is None:
            return None
        run = contextvars.copy_context().run
        thread = threading.Thread(
            target=lambda: answers.append(run(self._renew)), name="perdure-renewal", daemon=True
        )
        thread.start()
        thread.join(holding.seconds_left())
        if answers:
            return answers[0]
        return leases.retry_delay(self._handle.replica, holding, TimeoutError())

    def _renew(self) -> float | None:
        """Renew the lease; return in how many seconds to do it again, None if it is over."""
        holding, replica = self._holding, self._handle.replica
        if holding is None or not holding.active:
            return None
        sent = now()
        try:
            self._handle.write(leases.plan_renewal(replica, holding))
        except Exception as error:  # noqa: BLE001 - whatever it was, the lease runs out by itself
            return leases.retry_delay(replica, holding, error)
        holding.renew(sent)
        return self._request.ttl * RENEW_AFTER

    def release(self) -> None:
        """Let the session go. Leaving `with` does this; doing it twice is harmless.

        If the store can not be reached, others have to wait until the lease has run out.
        """
        holding = self._holding
        self._handle.on_close.discard(self.release)
        if holding is None or not holding.end():
            return
        self._stop.set()
        if holding.here():
            self._release(holding)
            if self._renewing is not None:
                self._renewing.join()

    def _release(self, holding: HeldLease) -> None:
        replica = self._handle.replica
        with self._handle.observed("release", epoch=holding.epoch) as span:
            try:
                answer = self._handle.write(leases.plan_release(replica, holding))
                leases.after_release(replica, holding, answer)
            except (ConflictError, NotFoundError) as error:
                leases.retry_delay(replica, holding, error)
            except PerdureError as error:
                span.fields["outcome"] = type(error).__name__

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _ = self.held  # Asking finds out whether its time has passed.
        self.release()
        if error is None and self._holding is not None and self._holding.loss is not None:
            raise FencedError(*self._holding.loss.args)
