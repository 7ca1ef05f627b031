"""Contract tests of the capability `check`; skipped for stores that do not declare it.

What a damaged store reports depends on how it is stored, and is for its own tests. Here: a store
that is intact reports nothing, whatever was done to it and is being done to it.
"""

import threading

import pytest

from perdure.backends.protocol import (
    CHECK,
    DELETED,
    REMOVE,
    Backend,
    CheckCapability,
    require_check,
    require_remove,
)
from perdure.errors import UnsupportedError, UsageError
from perdure.testing.contract.samples import (
    HOSTILE_NAMES,
    OpenBackend,
    append_all,
    append_of,
    skip_unless_declared,
    start_of,
)


def check_or_skip(backend: Backend) -> CheckCapability:
    """Return the backend typed as `CheckCapability`, or skip the test."""
    skip_unless_declared(backend, CHECK)
    return require_check(backend)


class CheckContract:
    """A store compared with itself."""

    def test_only_a_store_that_declares_check_can_check_itself(self, backend: Backend) -> None:
        if CHECK in backend.capabilities:
            assert list(require_check(backend).check()) == []
            return
        with pytest.raises(UnsupportedError, match="verify its sessions by their ids"):
            require_check(backend)

    @pytest.mark.parametrize("deep", [False, True])
    def test_a_store_that_is_intact_has_no_problems(self, backend: Backend, *, deep: bool) -> None:
        checking = check_or_skip(backend)
        append_all(backend, *(append_of(f"{n:03}", 1, 2, "l") for n in range(600)))
        append_all(backend, append_of("001", 3, 3, "l", "m"), append_of("002", 3, 4))
        append_all(backend, append_of("003", 3, 3, DELETED), start_of("branch", 41, 42, "m"))
        append_all(backend, *(append_of(name, 1, 1, "l") for name in HOSTILE_NAMES))
        backend.drop("003", before=3)
        assert list(checking.check(deep=deep)) == []

    def test_writers_do_not_look_like_damage(
        self, backend: Backend, open_handle: OpenBackend
    ) -> None:
        checking, other = check_or_skip(backend), open_handle()
        ended = threading.Event()

        def write() -> None:
            number = 0
            while not ended.is_set():
                number += 1
                append_all(other, append_of(f"{number % 7}", number // 7 + 1, number // 7 + 1))
                name = f"new {number}"
                append_all(other, append_of(name, 1, 2, "l"))
                if REMOVE in other.capabilities and number % 2:
                    head = next(other.streams(prefix=name))
                    require_remove(other).remove(name, digest=head.digest)

        append_all(other, *(append_of(f"{number}", 1, 1) for number in range(7)))
        thread = threading.Thread(target=write)
        thread.start()
        try:
            for _ in range(10):
                assert list(checking.check(deep=True)) == []
        finally:
            ended.set()
            thread.join()

    def test_a_closed_store_does_not_check_itself(self, backend: Backend) -> None:
        checking = check_or_skip(backend)
        backend.close()
        with pytest.raises(UsageError):
            list(checking.check())
