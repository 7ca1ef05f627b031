"""A streamed answer on its way into the journal. Pure: whoever reads the stream has the clock."""

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
    """Takes the chunks of one answer, and says what is to be stored of it, and when it is whole."""

    def __init__(
        self, replica: Replica, turn: Ownership, voice: Voice, asked: Asked | None = None
    ) -> None:
        self._replica = replica
        self._asked = asked
        self._turn = turn
        self._voice = voice
        self._id = replica.settings.new_id()
        self._collector: Collector | None = None

    def take(self, chunk: object) -> None:
        """Take the next chunk; what is none is UsageError."""
        if self._collector is None:
            self._collector = collector_for(chunk)
        try:
            self._collector.take(chunk)
        except (TypeError, AttributeError, LookupError, RecursionError) as error:
            raise UsageError(f"a {type(chunk).__qualname__} that is no chunk: {error}") from error

    @property
    def said(self) -> list[Taken]:
        """What was said so far."""
        return self._collector.messages() if self._collector else []

    def piece(self) -> Plan | None:
        """Return a plan that makes what came since the last one durable, if anything did."""
        data = self._collector.piece() if self._collector else None
        if data is None:
            return None
        return talking.add_piece(self._replica, self._turn.turn, self._id, data)

    def end(self, duration: float = 0.0) -> Plan | None:
        """Return the plan for the end of the stream: the whole message, or what there is of it."""
        taken = self.said
        if self._collector is None or not self._collector.finished() or not taken:
            return self.piece()
        plan = saying.say_taken(
            self._replica, taken, voice=self._voice, turn=self._turn, answer=self._id
        )
        asked = self._asked
        return plan if asked is None else asked.answering(plan, self._turn, duration)
