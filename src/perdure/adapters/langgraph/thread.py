"""One thread of a graph: its checkpoints and messages in the session of the same name.

A checkpoint names the newest one of its namespace that its writer has seen. The store accepts it
only if that is still the newest, so two runs never both follow the same checkpoint unnoticed.
"""

import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import perdure
from perdure.adapters.langgraph import messages
from perdure.adapters.langgraph.checkpoint_notes import CheckpointNotes, Data
from perdure.adapters.langgraph.conversation import ConversationPlan, ThreadMessages, require_stored
from perdure.adapters.langgraph.message_table import resolve
from perdure.adapters.langgraph.state_codec import MESSAGE, TAG, StateCodec
from perdure.adapters.langgraph.thread_index import (
    CHECKPOINTS,
    NESTED,
    WRITES,
    CheckpointPlace,
    Key,
    ThreadIndex,
)
from perdure.errors import ConflictError, UsageError

LABEL = "langgraph"  # The label of sessions that are threads.
THREAD_ID = "langgraph.thread"  # The value with a thread's id, if its session has another.
INPUT = "__start__"  # The channel of a run's input, in LangGraph,
TRIGGER = "branch:to:"  # and what the names of channels that start a node begin with.
STORED = "stored"  # The tag of a message in a write that is a message of the session.
ATTEMPTS = 100  # of a commit that other writers keep moving; each one failed because one succeeded


class NewCheckpoint(NamedTuple):
    """A checkpoint that is to be stored."""

    namespace: str
    parent: str | None
    checkpoint: Mapping[str, Any]
    metadata: Mapping[str, Any]
    changed: frozenset[str]
    """The channels that have a new version."""
    seen: int | None
    """The position of the newest checkpoint when its run read the thread, if that is known."""
    strict: bool
    """Whether it may only follow what its run has read."""


class StoredWrite(NamedTuple):
    """A value that a task wrote to a channel."""

    path: str
    task: str
    number: int
    channel: str
    tree: Any


class Thread:
    """The checkpoints of one thread. Its methods must be called while holding `lock`."""

    def __init__(self, store: perdure.Store, session_id: str, name: str) -> None:
        self.lock = threading.RLock()
        self._name = name
        self.session = store.session(session_id)
        self.tools: perdure.Session | None = None
        """The session of its tool calls, once there was one."""
        self.reset()

    def reset(self) -> None:
        """Read the newest checkpoint and what came after it; the rest is read when needed."""
        self._complete_from = self.session.complete_from
        self._deferred: list[Data] = []
        """Writes that only pass the input on. They are stored with the next commit."""
        self.index = ThreadIndex(self.session)
        self.notes = CheckpointNotes(self.session)
        self.conversation = ThreadMessages(self.session, self.notes)
        newest = next(self.session.notes(CHECKPOINTS, limit=1), None)
        content: Any = newest.content if newest is not None else None
        if newest is not None and "put" in content.data:
            data = self.notes.add(newest.position, content.data)
            newest_message = data.get("newest", 0)
            listed = self.notes.conversation(newest.position)
            if listed is not None and "newest" not in data:
                newest_message = resolve(listed[2][1], listed[1])[-1][1]
            self.index.begin_at(newest.position, data, newest_message)
        self.index.read()

    def refresh(self) -> None:
        """Include what other writers have stored since."""
        self.session.refresh()
        if self.session.complete_from != self._complete_from:  # Another process has pruned it.
            self.reset()
        self.index.read()

    # Finding a checkpoint

    def head(self, namespace: str) -> CheckpointPlace | None:
        """Return the newest checkpoint of a namespace."""
        if namespace:
            self.index.require_complete()
        return self.index.heads.get(namespace)

    def find(self, namespace: str, checkpoint_id: str) -> CheckpointPlace | None:
        """Return a checkpoint by its id."""
        key = namespace, checkpoint_id
        if key not in self.index.places:
            self.index.require_complete()
        return self.index.places.get(key)

    def parent(self, place: CheckpointPlace) -> CheckpointPlace | None:
        """Return the checkpoint that one follows, even if it was dropped."""
        parent = self.parent_id(place)
        if parent is None:
            return None
        return self.find(place.namespace, parent) or self.index.dropped.get(
            (place.namespace, parent)
        )

    def parent_id(self, place: CheckpointPlace) -> str | None:
        """Return the id of the checkpoint that one follows, even if it was never stored."""
        return self.notes.parent_of(self.notes.read(place.position))

    def places(self) -> list[CheckpointPlace]:
        """Return all checkpoints, the newest first."""
        self.index.require_complete()
        return [*reversed(self.index.places.values())]

    def heads(self) -> list[CheckpointPlace]:
        """Return the newest checkpoint of each namespace."""
        self.index.require_complete()
        return [*self.index.heads.values()]

    # Reading a checkpoint

    def checkpoint(self, place: CheckpointPlace, codec: StateCodec) -> Data:
        """Return a checkpoint as LangGraph has it, with values that nothing else refers to."""
        data = self.notes.read(place.position)
        versions, seen = self.notes.versions(place.position)
        return {
            "v": data["v"],
            "id": place.id,
            "ts": data["ts"],
            "channel_values": {name: self.value(place, name, codec) for name in data["values"]},
            "channel_versions": {**versions},
            "versions_seen": {node: {**channels} for node, channels in seen.items()},
            **codec.decode(data.get("more", {})),
        }

    def metadata(self, place: CheckpointPlace, codec: StateCodec) -> Data:
        """Return the metadata of a checkpoint."""
        metadata: Data = codec.decode(self.notes.read(place.position)["meta"])
        return metadata

    def _has_value(self, place: CheckpointPlace, channel: str) -> bool:
        return channel in self.notes.read(place.position)["values"]

    def value(self, place: CheckpointPlace, channel: str, codec: StateCodec) -> Any:
        """Return the value of one channel."""
        source, spec = self.notes.spec(place.position, channel)
        if spec[0] != "m":
            return codec.decode(self.notes.tree(channel, spec))
        newest = self.index.newest_message
        return self.conversation.values(source, channel, spec, codec, newest)

    def message_count(self, place: CheckpointPlace) -> int:
        """Return how many messages the conversation of a checkpoint has."""
        listed = self.notes.conversation(place.position)
        return sum(each[2] for each in listed[2][1]) if listed is not None else 0

    def writes(self, place: CheckpointPlace) -> list[StoredWrite]:
        """Return the writes on a checkpoint in the order in which LangGraph applies them."""
        positions = self.index.writes.get(place.key, ())
        early = self.notes.read(place.position).get("early", ())
        written: dict[tuple[str, int], StoredWrite] = {}
        stored = [
            (position, self.notes.read(position)) for position in sorted({*positions, *early})
        ]
        waiting = [data for data in self._deferred if _key(data) == place.key]
        for position, data in [*stored, *((0, data) for data in waiting)]:
            for index, channel, *tree in data["items"]:
                value = tree[0] if tree else self._input(place, channel)
                path, task = data.get("path", ""), data["task"]
                write = StoredWrite(path, task, index, channel, self._resolve(value, position))
                if data.get("replace"):
                    written[task, index] = write
                else:
                    written.setdefault((task, index), write)
        return sorted(written.values(), key=lambda write: write[:3])

    def _input(self, place: CheckpointPlace, channel: str) -> Any:
        """Return what the input of a checkpoint has for a channel."""
        _, spec = self.notes.spec(place.position, INPUT)
        return self.notes.tree(INPUT, spec)[channel]

    def _resolve(self, tree: Any, position: int) -> Any:
        """Put the messages of the session into a write that refers to them."""
        if type(tree) is not list:
            return tree
        return [self._resolve_item(item, position) for item in tree]

    def _resolve_item(self, item: Any, position: int) -> Any:
        if type(item) is dict and TAG in item and item[TAG][0] == STORED:
            at = item[TAG][1]
            content: Any = self.session.record(at if at > 0 else position + at).content
            return {TAG: [MESSAGE, content.message]}
        return item

    def history(self, place: CheckpointPlace, channels: Sequence[str]) -> dict[str, Data]:
        """Return the writes to channels on the way to a checkpoint, and the value before them.

        Nothing is decoded. A pruned checkpoint has the history of those before it.
        """
        found: dict[str, Data] = {channel: {"writes": []} for channel in channels}
        remaining, walked = {*channels}, {place.id}
        while remaining:
            before = self.parent(place)
            if before is None or before.id in walked:
                for channel, entry in self.notes.read(place.position).get("history", {}).items():
                    if channel in remaining:
                        found[channel]["writes"] += reversed(entry["writes"])
                        found[channel] |= {"seed": entry["seed"]} if "seed" in entry else {}
                break
            place = before
            walked.add(place.id)
            for write in reversed(self.writes(place)):
                if write.channel in remaining:
                    found[write.channel]["writes"].append([write.task, write.tree])
            for channel in [each for each in remaining if self._has_value(place, each)]:
                _, spec = self.notes.spec(place.position, channel)
                found[channel]["seed"] = self.notes.tree(channel, spec)
                remaining.discard(channel)
        for entry in found.values():
            entry["writes"].reverse()
        return found

    def shown_messages(self, codec: StateCodec) -> set[int]:
        """Return the positions of the messages of the newest checkpoint."""
        self.index.require_complete()
        head = self.index.heads.get("")
        return self._message_positions(head, codec) if head is not None else set()

    def _message_positions(self, place: CheckpointPlace, codec: StateCodec) -> set[int]:
        listed = self.notes.conversation(place.position)
        if listed is None:
            return set()
        channel, source, spec = listed
        return self.conversation.positions(source, channel, spec, codec)

    def positions_of(self, place: CheckpointPlace, codec: StateCodec) -> set[int]:
        """Return the positions of all records that a checkpoint needs."""
        needed = {place.position, *self.index.writes.get(place.key, ())}
        needed |= {*self.notes.read(place.position).get("early", ())}
        needed |= self._message_positions(place, codec)
        at = place.position
        while "versions" not in (data := self.notes.read(at)):
            needed.add(at := data["at"])
        for channel in self.notes.read(place.position)["values"]:
            source, spec = self.notes.spec(place.position, channel)
            while spec[0] == "+":
                needed.add(source)
                source, spec = self.notes.spec(spec[1], channel)
            needed.add(source)
        return needed

    # Storing

    def put(self, new: NewCheckpoint, codec: StateCodec) -> CheckpointPlace:
        """Store a checkpoint; ConflictError if it may not follow the newest one any more."""
        for _ in range(ATTEMPTS):
            self.index.read()
            parent = self.find(new.namespace, new.parent) if new.parent else None
            self._require_order(new, parent)
            try:
                return self._put(new, parent, codec)
            except ConflictError:
                self.refresh()
        reason = "other writers did not stop moving it"
        raise ConflictError(self.session.id, self.index.position, self.session.position, reason)

    def _require_order(self, new: NewCheckpoint, parent: CheckpointPlace | None) -> None:
        head = self.head(new.namespace)
        if head is None or not new.strict or head.position == new.seen:
            return
        if head.id in (new.parent, new.checkpoint["id"]):
            return
        reason = "another run of this thread stored a checkpoint first; this run's is not stored"
        at = new.seen or (parent.position if parent is not None else 0)
        raise ConflictError(self.session.id, at, head.position, reason)

    def _put(
        self, new: NewCheckpoint, parent: CheckpointPlace | None, codec: StateCodec
    ) -> CheckpointPlace:
        own = self.index.places.get((new.namespace, new.checkpoint["id"]))
        if own is not None and parent == own:  # Stored again: it keeps its parent.
            new = new._replace(parent=self.parent_id(own))
            parent = self.find(own.namespace, new.parent) if new.parent else None
        plan = None if new.namespace else self._plan_conversation(new, parent, codec)
        listed = (plan.channel, plan.spec) if plan is not None else None
        data = self.notes.describe(new.checkpoint, parent, listed, codec)
        data |= self._describe_place(new, parent, plan, codec)
        topic = NESTED if new.namespace else CHECKPOINTS
        # What the note says of the session is true only where it was seen to be.
        with self.session.batch(expect=self.index.position) as batch:
            self._begin(batch)
            deferred = self._add_deferred(batch)
            for stored in plan.added if plan is not None else ():
                append_message(batch, stored)
            batch.note(data, topic=topic, expect=self.index.topics.get(topic, 0))
        position = batch.positions[-1]
        added = len(plan.added) if plan is not None else 0
        self._include(batch.positions, deferred, added, topic, data)
        if plan is not None:
            given = new.checkpoint["channel_values"][plan.channel]
            self.conversation.stored(plan, position, given)
            if plan.removed:
                self.conversation.retract(plan.removed, self.index)
        return self.index.places[new.namespace, new.checkpoint["id"]]

    def _begin(self, batch: Any) -> None:
        """With the first commit of a thread, store what it is found by."""
        if LABEL not in self.session.labels:
            batch.label(LABEL)
            if self._name != self.session.id:
                batch.set(THREAD_ID, self._name)

    def _plan_conversation(
        self, new: NewCheckpoint, parent: CheckpointPlace | None, codec: StateCodec
    ) -> ConversationPlan | None:
        values = new.checkpoint["channel_values"]
        # No node runs before the input of a run is stored, and then passed on to the channels. (An
        # entrypoint of the functional API has no triggers: there the code itself takes the input.)
        before = self.notes.read(parent.position)["meta"] if parent is not None else {}
        triggers = any(name.startswith(TRIGGER) for name in new.changed)
        passed_on = before.get("source") == "input" and INPUT in new.changed and triggers
        untouched = passed_on or new.metadata.get("source") == "input"
        return self.conversation.plan(values, parent, self.index, codec, untouched=untouched)

    def _describe_place(
        self,
        new: NewCheckpoint,
        parent: CheckpointPlace | None,
        plan: ConversationPlan | None,
        codec: StateCodec,
    ) -> Data:
        """Return where a checkpoint belongs: its namespace, parent and metadata."""
        data: Data = {"meta": codec.encode({**new.metadata}, "metadata")}
        if new.namespace:
            data["ns"] = new.namespace
        if new.parent and parent is None:
            data["parent"] = new.parent
        early = self.index.writes.get((new.namespace, new.checkpoint["id"]))
        if early:
            data["early"] = [*early]
        if not new.namespace and not (plan is not None and plan.added):
            ranges = plan.old.ranges if plan is not None and plan.old is not None else ()
            newest = self.index.newest_message
            if newest != (ranges[-1][1] if ranges else 0):
                data["newest"] = newest
        return data

    def _add_deferred(self, batch: Any) -> list[Data]:
        deferred = [*self._deferred]
        for data in deferred:
            batch.note(data)
        return deferred

    def flush(self) -> None:
        """Store writes that wait for the next commit."""
        if self._deferred:
            with self.session.batch() as batch:
                self._add_deferred(batch)
            self._deferred = []
            self.index.read()

    def _include(
        self, stored: range, deferred: Sequence[Data], added: int, topic: str, data: Data
    ) -> None:
        """Include records that were just stored, without reading them: messages and a note."""
        position = stored[-1]
        self._deferred = self._deferred[len(deferred) :]
        self.notes.add(position, data)
        if stored.start == self.index.position + 1:
            for at, note in enumerate(deferred, position - added - len(deferred)):
                self.notes.add(at, note)
                self.index.add_note(at, "", note)
            for at in range(position - added, position):
                self.index.add_message(at)
            self.index.add_note(position, topic, data)
            self.index.position = position
        else:
            self.index.read()

    def put_writes(
        self,
        key: Key,
        writes: Sequence[tuple[int, str, Any]],
        task: str,
        path: str,
        codec: StateCodec,
        *,
        replace: bool,
    ) -> None:
        """Store writes on a checkpoint, which may not be stored yet.

        New messages for the conversation are stored as messages of the session, and listed by the
        next checkpoint; so each is stored once. Writes that only pass the input of a checkpoint on
        wait for the next commit: after a crash, LangGraph makes them again from the input.
        """
        for _ in range(ATTEMPTS):
            place = self.index.places.get(key)
            added: list[Any] = []
            items = [
                self._describe_write(place, index, channel, value, added, codec)
                for index, channel, value in writes
            ]
            stored = [require_stored(message, codec, "messages") for message in added]
            data: Data = {WRITES: key[1], "task": task, "items": items}
            data |= {name: value for name, value in (("ns", key[0]), ("path", path)) if value}
            if replace:
                data["replace"] = True
            if added:
                data["stored"] = len(added)
            if place is not None and _is_passed_on(items):
                self._deferred.append(data)
                return
            try:
                with self.session.batch() as batch:
                    self._begin(batch)
                    deferred = self._add_deferred(batch)
                    for message in stored:
                        append_message(batch, message)
                    batch.note(data)
            except ConflictError:  # Another writer added a message to the conversation.
                self.refresh()
                continue
            self._include(batch.positions, deferred, len(added), "", data)
            for at, pair in enumerate(zip(added, stored, strict=True), -len(added)):
                self.conversation.learn(batch.positions[-1] + at, *pair)
            return
        reason = "other writers did not stop moving it"
        raise ConflictError(self.session.id, self.index.position, self.session.position, reason)

    def _describe_write(
        self,
        place: CheckpointPlace | None,
        index: int,
        channel: str,
        value: Any,
        added: list[Any],
        codec: StateCodec,
    ) -> list[Any]:
        """Return a write as stored: its value, or none if the checkpoint's input has the same.

        Messages that are to be stored as messages of the session are added to `added`.
        """
        if place is None:
            return [index, channel, codec.encode(value, channel)]
        if INPUT in self.notes.read(place.position)["values"]:
            _, spec = self.notes.spec(place.position, INPUT)
            given, tree = self.notes.tree(INPUT, spec), codec.encode(value, channel)
            if type(given) is dict and tree and _is_input(tree, given.get(channel)):
                return [index, channel]
        listed = None if place.namespace else self.notes.conversation(place.position)
        if listed is not None and listed[0] == channel and _are_new(value):
            return [index, channel, self._refer(value, added, codec)]
        return [index, channel, codec.encode(value, channel)]

    def _refer(self, value: list[Any], added: list[Any], codec: StateCodec) -> list[Any]:
        """Return messages as references: to stored ones, or to those directly before the note."""
        references: list[Any] = []
        for message in value:
            known = self.conversation.find(message, self.index, codec)
            if known is None:
                added.append(message)
            references.append(0 if known is None else known.position)
        new = iter(range(-references.count(0), 0))
        return [{TAG: [STORED, position or next(new)]} for position in references]


def _is_input(tree: Any, given: Any) -> bool:
    """Whether a write is what the input has, but for ids that its messages got meanwhile."""
    if tree == given:
        return True
    if type(tree) is not list or type(given) is not list or len(tree) != len(given):
        return False
    pairs = zip(tree, given, strict=True)
    return all(new == old or _without_id(new) == old for new, old in pairs)


def _without_id(tree: Any) -> Any:
    tagged = tree.get(TAG) if type(tree) is dict else None
    if not tagged or tagged[0] != MESSAGE:
        return tree
    return {TAG: [MESSAGE, messages.without_id(tagged[1])]}


def _key(data: Data) -> Key:
    return data.get("ns", ""), data[WRITES]


def _is_passed_on(items: Sequence[list[Any]]) -> bool:
    """Whether writes are the checkpoint's input for the channels, and what they trigger."""
    values = [item for item in items if len(item) > 2]  # noqa: PLR2004 - it has a value
    triggers = all(item[1].startswith(TRIGGER) and item[2] is None for item in values)
    return triggers and len(values) < len(items)


def _are_new(value: Any) -> bool:
    """Whether a write consists of messages that have ids, as those of models do."""
    return (
        type(value) is list
        and bool(value)
        and messages.are_storable(value)
        and all(message.id is not None for message in value)
    )


def append_message(batch: Any, stored: Data) -> None:
    """Append a message; one that no provider has, such as a role of its own, is opaque."""
    try:
        batch.append(stored)
    except UsageError:
        batch.append(stored, opaque=True)
