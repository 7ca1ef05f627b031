"""Raises where a signal handler could: at the nth such place, so that a test can visit them all.

CPython runs handlers when a function of Python begins, and when a call of C returns to Python code.
A profile function is called at these places, with the result not yet stored anywhere. (Handlers run
at the end of a loop's body as well, right after a call in most loops.)
"""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import perdure

HERE = perdure.__file__.removesuffix("__init__.py")


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
