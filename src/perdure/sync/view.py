# Generated from aio/view.py by scripts/generate_sync.py: do not edit.
"""View: a caller's own state, computed from the records of a session."""

from typing import Any

from perdure.core import view
from perdure.core.view import ViewRequest, ViewState
from perdure.sync.handle import Handle


class View:
    """A state that a caller's function computes from a session's records, in order.

    Created by `session.view`. It shows the records of its last `refresh`. Each task needs its own.
    """

    def __init__(self, handle: Handle, request: ViewRequest) -> None:
        self._handle = handle
        self._request = request
        self._current: ViewState | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._request.name!r}: at {self.position}>"

    @property
    def position(self) -> int:
        """The position of the newest record that the state includes."""
        return 0 if self._current is None else self._current.position

    @property
    def state(self) -> Any:
        """The state after the record at `position`."""
        return None if self._current is None else self._current.data

    def refresh(self) -> Any:
        """Include the records that the session has read or written since; return the state.

        If the function raises, the view begins again from its stored state at the next refresh.
        """
        replica, request = self._handle.replica, self._request
        current, self._current = self._current, None
        if current is None or current.rollbacks != replica.rollbacks:
            current = self._handle.run(view.load_view(replica, request))
        past, data = replica.history, current.data
        records = view.newer_records(past, replica.settings, current.position)
        while (page := self._handle.run(records.page(), past)) is not None:
            for record in page:
                data = request.fold(data, record)
        position = max(past.tip.position, current.position)
        self._current = ViewState(position, data, current.rollbacks)
        if view.is_due(replica, request, self._current.position):
            self._handle.write(view.store_view(replica, request, self._current))
        return data
