"""Raises where a signal handler could: at the nth such place, so that a test can visit them all.

CPython runs handlers when a function of Python begins, and when a call of C returns to Python code.
A profile function is called at these places, with the result not yet stored anywhere. (Handlers run
at the end of a loop's body as well, right after a call in most loops.)
"""

import asyncio
import contextlib
import selectors
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import FrameType
from typing import Any

import perdure

HERE = perdure.__file__.removesuffix("__init__.py")
LOOP = (str(Path(asyncio.__file__).parent), selectors.__file__)


class Interrupt(BaseException):
    """What a signal handler raises."""


def interrupted(nth: int, work: Callable[[], object], of: Callable[[str], bool]) -> bool:
    """Do some work, interrupted at the nth place; return whether there was one.

    Places count while a module that `of` chooses, by its path below perdure, is running or waits
    for something that it called. The work is done again while the error is still alive, as a caller
    does who repeats in `except`.
    """
    left, depth = nth, 0

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal left, depth
        name = frame.f_code.co_filename
        ours = name.startswith(HERE) and of(name[len(HERE) :])
        if event == "call" and (ours or depth):
            depth += 1
        if depth and event in ("call", "c_return"):
            left -= 1
            if not left:
                raise Interrupt
        if event == "return" and depth:
            depth -= 1

    sys.setprofile(profile)
    try:
        work()
    except Interrupt:
        sys.setprofile(None)
        work()
    finally:
        sys.setprofile(None)
    return left <= 0  # In a finalizer it is not raised.


async def interrupted_in_loop(
    nth: int, work: Callable[[], Coroutine[Any, Any, object]], seconds: float
) -> bool:
    """Do some work in a task of the running loop, interrupted at the nth place; else as above.

    Places count in perdure and what it calls, in every task and callback. The loop's own code is
    spared: it loses callbacks when it is interrupted. TimeoutError if the work takes too long.
    """
    left = nth

    def profile(frame: FrameType | None, event: str, _: Any) -> None:
        nonlocal left
        assert frame is not None
        if frame.f_code.co_filename.startswith(LOOP):
            if event != "return" or not frame.f_back:
                return
            frame = frame.f_back  # It may be the end of a loop's body.
            if not frame.f_code.co_filename.startswith(HERE):
                return
        elif event not in ("call", "c_return"):
            return
        while frame is not None and not frame.f_code.co_filename.startswith(HERE):
            frame = frame.f_back
        left -= frame is not None
        if not left:
            left = -1
            raise Interrupt

    task = asyncio.create_task(work())
    sys.setprofile(profile)
    try:
        async with asyncio.timeout(seconds):
            with contextlib.suppress(Interrupt):
                await task
    finally:
        sys.setprofile(None)
    return left < 0
