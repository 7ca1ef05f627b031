"""Replay of an async agent."""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from perdure.replays import guard
from perdure.replays.replay_session_async import AsyncReplaySession
from perdure.replays.replaying import Asked, Replay, caught, prepared, result
from perdure.replays.walking import Stopped
from perdure.session_async import AsyncSession


async def awaiting(
    session: AsyncSession, agent: Callable[[AsyncSession], Awaitable[Any] | Any], request: Asked
) -> Replay:
    """Run an async agent again on the record of a session, and compare."""
    handle = session._handle  # noqa: SLF001 - the replay shares the session's driver
    replica, cursor = await handle.run(prepared(handle.replica, request))
    replayed = AsyncReplaySession.over(handle.driver, replica, cursor, request.errors)
    returned, error = None, None
    with guard.guarded() as guarding:
        try:
            returned = agent(replayed)
            if inspect.isawaitable(returned):
                returned = await returned
        except Stopped:
            returned = None
        except BaseException as raised:  # noqa: BLE001 - re-raised unless the agent raised it
            error = caught(raised)
    await replayed.close()
    return result(cursor, guarding, returned, error)
