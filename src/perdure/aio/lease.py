"""AsyncLease: the exclusive right to write to a session, renewed in the background."""

import asyncio
import os
from contextlib import suppress
from types import TracebackType
from typing import Self

from perdure.aio.handle import AsyncHandle
from perdure.core import leases
from perdure.core.leases import (
    CONTENDER_PAUSE_MAX,
    CONTENDER_PAUSE_MIN,
    RENEW_AFTER,
    HeldLease,
    LeaseAttempt,
    LeaseRequest,
    this_process,
)
from perdure.core.plans import REFRESH
from perdure.errors import ConflictError, FencedError, LeaseHeldError, NotFoundError, PerdureError


class AsyncLease:
    """The exclusive right to write to a session while it is renewed. Created by `session.lease`.

    It belongs to the handle: threads and tasks that share the session share its lease.
    """

    def __init__(self, handle: AsyncHandle, request: LeaseRequest) -> None:
        self.lost = asyncio.Event()
        """Set when the loss of the lease is detected; `held` also checks the clock."""
        self._handle = handle
        self._request = request
        self._holding: HeldLease | None = None
        self._renewing: asyncio.Task[None] | None = None

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

    async def __aenter__(self) -> Self:
        pid = os.getpid()
        self._handle.require_open()
        holding = leases.begin_lease(
            self._handle.replica,
            self._request.ttl,
            now=leases.now,
            here=lambda: os.getpid() == pid,
            lost=self.lost.set,
        )
        self._holding = holding
        self.lost.clear()
        try:
            await self._take(holding)
            self._handle.on_close.add(self.release)
            self._start()
        except BaseException as error:
            self._abandon(holding, error)
            raise
        return self

    async def _take(self, holding: HeldLease) -> None:
        handle, until = self._handle, leases.now() + self._request.wait
        attempt = LeaseAttempt(
            handle.replica, self._request, holding, self._request.who or this_process()
        )
        pause = CONTENDER_PAUSE_MIN
        with handle.observed("lease", ttl=self._request.ttl) as span:
            while True:
                await handle.write(REFRESH)
                delay = attempt.seconds_until_free(leases.now())
                if not delay:
                    sent = leases.now()
                    with suppress(LeaseHeldError):  # It was renewed or taken meanwhile.
                        holding.take(await handle.write(attempt.plan()), sent)
                        span.fields["epoch"] = holding.epoch
                        return
                elif (remaining := until - leases.now()) <= 0:
                    raise attempt.refusal()
                else:
                    await self._wait(min(delay, remaining), pause)
                    pause = min(pause * 2, CONTENDER_PAUSE_MAX)

    async def _wait(self, seconds: float, pause: float) -> None:
        """Wait until the session is written to, or until the seconds have passed."""
        if await self._handle.wait(self._handle.replica.tip.position, seconds):
            await asyncio.sleep(min(pause, seconds))

    def _start(self) -> None:
        self._renewing = asyncio.create_task(self._renew_periodically(), name="perdure-lease")

    def _abandon(self, holding: HeldLease, error: BaseException) -> None:
        """Release a lease that may have been taken while the caller was interrupted."""
        self._handle.on_close.discard(self.release)
        holding.end()
        if not isinstance(error, PerdureError):
            # A cancelled caller must not wait; the write continues in the background.
            self._handle.background(self._release(holding))

    async def _renew_periodically(self) -> None:
        pause: float | None = self._request.ttl * RENEW_AFTER
        while pause is not None:
            await asyncio.sleep(pause)
            pause = await self._renew_with_timeout()
        self._handle.emit_notices()

    async def _renew_with_timeout(self) -> float | None:
        """Renew the lease, but time out when it expires: a store may hang."""
        holding = self._holding
        if holding is None:
            return None
        try:
            async with asyncio.timeout(holding.seconds_left()):
                return await self._renew()
        except TimeoutError as error:
            return leases.retry_delay(self._handle.replica, holding, error)

    async def _renew(self) -> float | None:
        """Renew the lease; return the seconds until the next renewal, or None if it ended."""
        holding, replica = self._holding, self._handle.replica
        if holding is None or not holding.active:
            return None
        sent = leases.now()
        try:
            await self._handle.write(leases.plan_renewal(replica, holding))
        except Exception as error:  # noqa: BLE001 - on any error, the lease expires by itself
            return leases.retry_delay(replica, holding, error)
        holding.renew(sent)
        return self._request.ttl * RENEW_AFTER

    async def release(self) -> None:
        """Release the lease. Leaving `with` does this; calling it twice is harmless.

        If the store cannot be reached, other workers have to wait until the lease expires.
        """
        holding = self._holding
        self._handle.on_close.discard(self.release)
        if holding is None or not holding.end():
            return
        if self._renewing is not None:
            with suppress(RuntimeError):  # Its event loop may be closed.
                self._renewing.cancel()
        if holding.here():
            # Shielded: otherwise a cancelled caller would make others wait for the whole ttl.
            await asyncio.shield(self._handle.background(self._release(holding)))

    async def _release(self, holding: HeldLease) -> None:
        replica = self._handle.replica
        with self._handle.observed("release", epoch=holding.epoch) as span:
            try:
                answer = await self._handle.write(leases.plan_release(replica, holding))
                leases.after_release(replica, holding, answer)
            except (ConflictError, NotFoundError) as error:
                leases.retry_delay(replica, holding, error)
            except PerdureError as error:
                span.fields["outcome"] = type(error).__name__

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _ = self.held  # Reading it detects an expired lease.
        await self.release()
        if error is None and self._holding is not None and self._holding.loss is not None:
            raise FencedError(*self._holding.loss.args)
