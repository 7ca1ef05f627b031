"""Replay of an async agent. Its twin is in `replaying`, and so is all that both have in common."""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from perdure.replays import guard
from perdure.replays.replay_session_async import AsyncReplaySession
from perdure.replays.replaying import Asked, Replay, caught, prepared, result
from perdure.replays.walking import Stopped
from perdure.session_async import AsyncSession


async def awaiting(
    session: AsyncSession, agent: Callable[[AsyncSession], Awaitable[Any] | Any], asked: Asked
) -> Replay:
    """Run an async agent's code again on the record of a session, and compare."""
    handle = session._handle  # noqa: SLF001 - the other face of the same session
    replica, walk = await handle.run(prepared(handle.replica, asked))
    face = AsyncReplaySession.over(handle.driver, replica, walk, asked.errors)
    returned, error = None, None
    with guard.guarded() as guarding:
        try:
            returned = agent(face)
            if inspect.isawaitable(returned):
                returned = await returned
        except Stopped:
            returned = None
        except BaseException as raised:  # noqa: BLE001 - what is not the agent's is raised again
            error = caught(raised)
    await face.close()
    return result(walk, guarding, returned, error)
