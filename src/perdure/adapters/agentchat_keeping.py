"""What a session keeps of a team: its state between runs, and which run is under way.

Two values. `agentchat.state` is the team's state after its last run; `agentchat.run` says of the
newest run its turn, its task, and the version of the state that it begins in. It is set before the
turn begins: one whose turn never began is no run. Of two that begin at once the session lets one. A
run whose turn is open was cut off: it is run again from that version.
"""

from collections import defaultdict, deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import uuid4

from perdure import AsyncSession, AsyncTurn
from perdure.adapters import agentchat_record as record
from perdure.adapters import agentchat_state as state
from perdure.adapters import agentchat_tree as tree
from perdure.adapters.agentchat_journal import FAILED, FINISH, Policy
from perdure.adapters.agentchat_messages import Messages
from perdure.adapters.agentchat_model import digest
from perdure.adapters.agentchat_tree import Node
from perdure.errors import ConflictError, DivergenceError, UsageError
from perdure.records import EffectSettled, Message

STATE = "agentchat.state"
RUN = "agentchat.run"
ORIGIN = "autogen_agentchat"
CHOSEN, MADE = (
    "agentchat:",
    "agentchat.",
)  # What the ids of runs begin with, and who chose the rest.


def _run(turn: str, task: list[Any], version: int, tools: dict[str, list[str]]) -> dict[str, Any]:
    return {"turn": turn, "task": task, "state": version, "tools": tools}


class Begun(NamedTuple):
    """A run that goes on. `heard` is what its turn holds already, by author, oldest first."""

    turn: AsyncTurn | None
    version: int
    task: list[Any]
    heard: Mapping[str, deque[record.Item]]
    order: tuple[str, ...] = ()
    failed: Mapping[str, str] = MappingProxyType({})
    result: Any = None


class Keeping:
    """The state and the runs of one team in a session."""

    def __init__(self, session: AsyncSession, root: Node) -> None:
        self._session = session
        self._root = root
        self.messages = Messages(session.id, root)
        self._people = record.people_of([node.component for node in root.all])
        self._at: int | None = None  # The version that the team is in, as far as is known.
        self._saved: state.State = {}
        self._before: state.State = {}
        self._run: dict[str, Any] | None = None

    @property
    def interrupted(self) -> str | None:
        """The task of a run that was cut off, in words."""
        if self._run is None or self._open_turn() is None:
            return None
        return self.messages.words(self._run["task"])

    def _open_turn(self) -> AsyncTurn | None:
        turns = self._session.interrupted
        return next((one for one in turns if one.id.startswith((CHOSEN, MADE))), None)

    async def _look(self) -> AsyncTurn | None:
        """Return the turn of a run that was cut off, and know what the run was."""
        turn = self._open_turn()
        self._run = await self._said_of(turn.id) if turn is not None else None
        return turn

    async def _said_of(self, turn: str) -> dict[str, Any] | None:
        """Return what was said of a run before its turn began.

        Another that began at the same time may have said something since, and given way.
        """
        for version in range(self._newest(RUN), 0, -1):
            found: dict[str, Any] = await self._session.get(RUN, version=version)
            if found["turn"] == turn:
                return found
        return None

    def _newest(self, key: str = STATE) -> int:
        """The number of the newest state in this view, or of another value; 0 if there is none."""
        values = self._session.values
        return values.version(key) if key in values.keys() else 0  # noqa: SIM118 - a method

    async def restore(self) -> None:
        """Bring the team to where the session has it; refuse another team's state."""
        self._before = await state.saved(self._root)
        turn, version = await self._look(), self._newest()
        if version == 0:
            if len(self._session):
                reason = f"{self._session.id!r} holds a conversation that is no team's of AgentChat"
                raise UsageError(f"{reason}: take another session")
            self._at, self._saved = 0, self._before
            return
        stored = await self._session.get(STATE)
        tree.require_shape(self._session.id, stored["team"], self._root)
        if turn is None:
            await self._load(stored)
            self._at = version

    async def _load(self, stored: state.State) -> None:
        try:
            await state.load(self._root, stored)
        except (ValueError, KeyError) as error:  # Validation errors of pydantic are ValueErrors.
            reason = f"the state that {self._session.id!r} keeps does not fit the team: {error}"
            raise UsageError(f"{reason}. Give the team as it was, or another session") from error
        self._saved = await state.saved(self._root)

    async def require_tools(self, policies: Mapping[str, Policy]) -> None:
        """Refuse policies of tools that are not there."""
        known = {name for names in (await self._tools()).values() for name in names}
        known |= {node.component.name for node in self._root.seen if node.opaque}
        if unknown := sorted(policies.keys() - known):
            there = ", ".join(sorted(known))
            raise UsageError(f"no tool is called {unknown[0]!r}: there are {there}")

    async def _require_same_tools(self, before: Mapping[str, list[str]]) -> None:
        now = await self._tools()
        for path, names in before.items():
            if gone := [name for name in names if name not in now.get(path, ())]:
                reason = f"{path!r} has no tool {gone[0]!r} any more, and a run with it was cut off"
                raise UsageError(f"{reason}: give the tool, or abandon() the run")

    async def _tools(self) -> dict[str, list[str]]:
        return {
            node.path: [one["name"] for bench in benches for one in await bench.list_tools()]
            for node in self._root.seen
            if (benches := tree.benches_of(node))
        }

    async def keep(self) -> None:
        """Keep what was changed by hand since the last run, if no run was cut off."""
        if self._at is None or await state.saved(self._root) == self._saved:
            return
        at = await self._session.refresh()
        if self._open_turn() is not None or self._newest() != self._at:
            reason = "the team went on elsewhere, and what was changed here is not kept"
            raise ConflictError(self._session.id, at, at, reason)
        await self._current()

    async def let_go(self) -> None:
        """Bring the team back to where it was before: another session is nobody's business."""
        await state.load(self._root, self._before)

    async def begin(self, task: Any, id: str | None) -> Begun:
        """Begin a run, or go on with one that was cut off. On return its task is durable."""
        given = record.taken(task)
        await self._session.refresh()
        turn = await self._look()
        if turn is not None:
            return await self._resume(turn, self._run, given, id)
        version = await self._current()
        stored = await self._session.get(STATE)
        if id is not None and stored["run"] == CHOSEN + id:
            asked, result = record.result_of(stored["result"], self.messages)
            return Begun(None, version, asked, {}, result=result)
        return await self._begin(given, id, version)

    async def _current(self) -> int:
        """Return the version of the state that the team is in, which is the newest."""
        newest = self._newest()
        stored = await self._session.get(STATE, {"run": "", "result": None})
        if self._at != newest:
            tree.require_shape(self._session.id, stored["team"], self._root)
            await self._load(stored)
            self._at = newest
            return newest
        found = await state.saved(self._root)
        if newest and found == self._saved:
            return newest
        return await self._save(stored["run"], found, stored["result"])

    async def _save(self, run: str, found: state.State, result: Any) -> int:
        kept = {"run": run, "result": result, "team": tree.shape(self._root), **found}
        self._at = await self._session.set(STATE, kept)
        self._saved = found
        return self._at

    async def _begin(self, given: list[Any], id: str | None, version: int) -> Begun:
        items = [record.messages_of(one, self._people) for one in given]
        first = items[0][0] if items else None
        author = given[0].source if given else ""
        own = MADE + uuid4().hex if id is None else CHOSEN + id
        turn = self._session.turn(first, author=author, id=own)
        self._run = _run(own, record.dumped(given), version, await self._tools())
        await self._session.set(RUN, self._run)
        await turn.__aenter__()
        if turn.ended:
            await turn.__aexit__(None, None, None)
            reason = f"the run {id!r} was made before, and its result is no longer kept"
            raise UsageError(f"{reason}: choose another id")
        if self._newest() != version:  # It was changed by hand, when this had looked at it.
            version = await self._current()
            self._run = {**self._run, "state": version}
            await self._session.set(RUN, self._run)
        heard: dict[str, deque[record.Item]] = defaultdict(deque)
        if first is not None:
            heard[author].append(first)
        return Begun(turn, version, given, heard)

    async def _resume(
        self, turn: AsyncTurn, run: dict[str, Any] | None, given: list[Any], id: str | None
    ) -> Begun:
        if run is None:
            raise UsageError("nothing is known of the run that was cut off: abandon() it")
        if (given and not record.same(run["task"], record.dumped(given))) or (
            id is not None and CHOSEN + id != turn.id
        ):
            reason = "a run with another task was cut off"
            raise UsageError(f"{reason}: run it without a task to go on with it, or abandon() it")
        await self._require_same_tools(run["tools"])
        stored = await self._session.get(STATE, version=run["state"])
        task = given or self.messages.load(run["task"])
        heard: dict[str, deque[record.Item]] = defaultdict(deque)
        order: list[str] = []
        failed: dict[str, str] = {}
        async for one in self._session.records(after=turn.start):
            content: Any = one.content
            if getattr(content, "turn", "") != turn.id:
                continue
            if isinstance(content, Message) and not content.origin.startswith("perdure:"):
                heard[content.author].append(content.message)
            elif isinstance(content, EffectSettled) and isinstance(content.result, dict):
                self.messages.require(content.result)
                order += [content.result["by"]] if "by" in content.result else []
                failed |= content.result.get(FAILED, {}) if content.state == "succeeded" else {}
        await turn.__aenter__()
        try:
            self._at = None
            await self._load(stored)
        except BaseException:
            await turn.leave()
            raise
        return Begun(turn, run["state"], task, heard, tuple(order), failed)

    async def tell(self, begun: Begun, event: Any) -> None:
        """Record what a run tells, unless its turn holds it already. On return it is durable."""
        assert begun.turn is not None  # noqa: S101 - runs that have a result tell nothing
        heard, fresh = begun.heard[event.source], []
        for item in record.messages_of(event, self._people):
            if not heard:
                fresh.append(item)
            elif (was := heard.popleft()) != item:
                told = digest((), was), digest((), item)
                name = f"a message of {event.source}"
                raise DivergenceError(self._session.id, name, *told, hint=FINISH)
        if fresh:
            recipient = record.recipient_of(event)
            await begun.turn.append(*fresh, author=event.source, recipient=recipient, origin=ORIGIN)

    async def finish(self, begun: Begun, result: Any) -> None:
        """Keep the state that a run led to, and complete its turn."""
        assert begun.turn is not None  # noqa: S101
        found = await state.saved(self._root)
        if self._newest() == begun.version or not await self._is_kept(begun.turn):
            kept = None
            if begun.turn.id.startswith(CHOSEN):
                kept = record.kept(begun.task, result)
            await self._save(begun.turn.id, found, kept)
        else:  # The process died between the two.
            self._at, self._saved = self._newest(), found
        await begun.turn.__aexit__(None, None, None)

    async def _is_kept(self, turn: AsyncTurn) -> bool:
        stored = await self._session.get(STATE)
        return bool(stored["run"] == turn.id)

    async def leave(self, begun: Begun) -> None:
        """Leave a run open: what the team holds now is not a state to go on from."""
        self._at = None
        tree.renew(self._root)
        if begun.turn is not None and not begun.turn.ended:
            await begun.turn.leave()

    async def abandon(self, reason: str) -> None:
        """Give up the run that was cut off."""
        await self._session.refresh()
        turn = self._open_turn()
        if turn is None:
            raise UsageError("no run was cut off: there is nothing to give up")
        await turn.abandon(reason)
        self._at = None
        if self._newest():
            await self._current()
