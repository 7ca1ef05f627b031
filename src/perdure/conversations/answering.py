"""Plans that store a streamed answer: chunks come in, plans go out.

Pure: never reads the stream, waits or looks at a clock. The stream object does, and decides when
to call `piece`.
"""

from perdure import saying
from perdure.conversations import talking
from perdure.conversations.collecting import Collector, collector_for
from perdure.conversations.intake import Taken
from perdure.effects.asking import Asked
from perdure.errors import UsageError
from perdure.plans import Plan
from perdure.replica import Replica
from perdure.saying import Ownership, Voice


class Answering:
    """Collects the chunks of one answer and plans the records that store it."""

    def __init__(
        self, replica: Replica, turn: Ownership, voice: Voice, model_call: Asked | None = None
    ) -> None:
        self._replica = replica
        self._model_call = model_call
        self._turn = turn
        self._voice = voice
        self._id = replica.settings.new_id()
        self._collector: Collector | None = None

    def take(self, chunk: object) -> None:
        """Add the next chunk; UsageError if it is not a chunk."""
        if self._collector is None:
            self._collector = collector_for(chunk)
        try:
            self._collector.take(chunk)
        except (TypeError, AttributeError, LookupError, RecursionError) as error:
            raise UsageError(f"a {type(chunk).__qualname__} is not a chunk: {error}") from error

    @property
    def said(self) -> list[Taken]:
        """The messages of the answer so far."""
        return self._collector.messages() if self._collector else []

    def piece(self) -> Plan | None:
        """Return a plan that stores the chunks since the last piece; None if there are none."""
        data = self._collector.piece() if self._collector else None
        if data is None:
            return None
        return talking.add_piece(self._replica, self._turn.turn, self._id, data)

    def end(self, duration: float = 0.0) -> Plan | None:
        """Return the plan for the end of the stream, or None if nothing is left to store.

        A finished answer is stored as messages, an unfinished one as its last piece.
        `duration` is in seconds.
        """
        messages = self.said
        if self._collector is None or not self._collector.finished() or not messages:
            return self.piece()
        plan = saying.say_taken(
            self._replica, messages, voice=self._voice, turn=self._turn, answer=self._id
        )
        model_call = self._model_call
        return plan if model_call is None else model_call.answering(plan, self._turn, duration)
