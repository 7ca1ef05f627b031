"""PerdureSaver: LangGraph's checkpoints in perdure, for blocking and for async code."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from os import PathLike
from typing import Any, NamedTuple, ParamSpec, Self, TypeVar

from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
)

import perdure
from perdure.adapters.langgraph.retention import drop_checkpoints, prune_thread
from perdure.adapters.langgraph.state_codec import StateCodec, make_serde
from perdure.adapters.langgraph.thread import LABEL, THREAD_ID, NewCheckpoint, Thread
from perdure.adapters.langgraph.thread_index import CheckpointPlace
from perdure.errors import ConflictError, NotFoundError, UsageError

P = ParamSpec("P")
T = TypeVar("T")

Config = Mapping[str, Any]

# What a run read, in the configuration that it passes on: a namespace and the position of its
# newest checkpoint. Keys with this prefix are not part of a checkpoint's metadata.
SEEN = "__perdure_seen"

TOOLS = ".tool-calls"  # What the id of a thread is followed by in that of its tool calls.

STORED_WITHIN = 10.0  # seconds; a commit takes milliseconds, a slow disk some hundreds

THREADS_MAX = 256  # threads that a saver keeps open


class ThreadInfo(NamedTuple):
    """A thread in a listing: its id, its newest checkpoint, and when it was written to."""

    thread_id: str
    checkpoint_id: str | None
    metadata: dict[str, Any]
    messages: int
    changed: datetime | None


class PerdureSaver(BaseCheckpointSaver):  # type: ignore[misc]
    """A checkpointer that stores each thread in a session of the same name.

    Pass a store, or the address of one. `allow` lists the classes, beside LangChain's messages and
    LangGraph's own types, that states may hold. `ttl` is how long a thread lives after it was last
    written to; `delete_expired` deletes those that are older.

    One object serves blocking and async code, from any thread and event loop. What a method stores
    is durable when it returns; only writes that pass a run's input on wait for its next checkpoint.
    `put` raises ConflictError if another run of the thread stored a checkpoint since this run
    began: the turn that lost is reported, never silently left out.
    """

    def __init__(
        self,
        store: "perdure.Store | str | PathLike[str]",
        *,
        allow: Iterable[type | tuple[str, str]] = (),
        prefix: str = "",
        ttl: timedelta | None = None,
    ) -> None:
        super().__init__(serde=make_serde(allow))
        self._owns_store = not isinstance(store, perdure.Store)
        self.store = perdure.open(store) if not isinstance(store, perdure.Store) else store
        self._prefix = prefix
        self._ttl = ttl
        self._threads = _OpenThreads(self.store)

    @property
    def _codec(self) -> StateCodec:
        return StateCodec(self.serde)  # `with_allowlist` replaces the serializer of a copy.

    def session_id(self, thread_id: str) -> str:
        """Return the id of the session of a thread: its own, if it is a valid one."""
        return perdure.safe_id(f"{self._prefix}{thread_id}")

    def session(self, thread_id: str) -> perdure.Session:
        """Open the session of a thread: its messages, records and effects."""
        return self.store.session(self.session_id(thread_id))

    def tools_id(self, thread_id: str) -> str:
        """Return the id of the session that has the tool calls of a thread (`tool_node`)."""
        return perdure.safe_id(f"{self._prefix}{thread_id}{TOOLS}")

    def tool_calls(self, thread_id: str) -> perdure.Session:
        """Return the session that has the tool calls of a thread; all runs here share it."""
        with self._thread(thread_id) as thread:
            if thread.tools is None:
                thread.tools = self.store.session(self.tools_id(thread_id))
            return thread.tools

    def newest(self, thread_id: str) -> tuple[str | None, int]:
        """Return the id of the newest checkpoint, and how many messages it has."""
        with self._thread(thread_id) as thread:
            head = thread.head("")
            return (head.id, thread.message_count(head)) if head is not None else (None, 0)

    def wait_until_stored(self, thread_id: str, checkpoints: Mapping[str, str]) -> None:
        """Wait until checkpoints, by their namespaces, are stored: a run may be ahead of them.

        ConflictError if they are not stored in time, as those of a run that another one overtook.
        """
        until = time.monotonic() + STORED_WITHIN
        while True:
            with self._thread(thread_id) as thread:
                if all(thread.find(*key) is not None for key in checkpoints.items()):
                    return
                position = thread.session.position
            if time.monotonic() > until:
                reason = "the checkpoint before a tool call is not stored, so the tool did not run"
                raise ConflictError(self.session_id(thread_id), position, position, reason)
            time.sleep(0.002)

    @contextmanager
    def _thread(self, thread_id: Any) -> Iterator[Thread]:
        """Give the open thread of an id to one caller at a time."""
        name = f"{self._prefix}{thread_id}"
        with self._threads.use(name, perdure.safe_id(name)) as thread:
            yield thread

    def close(self) -> None:
        """Close the store, if this object opened it."""
        self._threads.clear()
        if self._owns_store:
            self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # Reading

    def get_tuple(self, config: Config) -> CheckpointTuple | None:
        """Return the checkpoint that a configuration names, or the newest one of its thread."""
        thread_id, namespace = _thread_of(config), _namespace_of(config)
        checkpoint_id = get_checkpoint_id(config)
        with self._thread(thread_id) as thread:
            thread.refresh()
            head = thread.head(namespace)
            place = thread.find(namespace, checkpoint_id) if checkpoint_id else head
            if place is None or head is None:
                return None
            return self._tuple(thread, thread_id, place, head)

    def _tuple(
        self, thread: Thread, thread_id: str, place: CheckpointPlace, head: CheckpointPlace
    ) -> CheckpointTuple:
        codec = self._codec
        config = _config(thread_id, place.namespace, place.id)
        config["configurable"][SEEN] = [place.namespace, head.position]
        parent = thread.parent_id(place)
        writes = [
            (write.task, write.channel, codec.decode(write.tree)) for write in thread.writes(place)
        ]
        checkpoint, metadata = thread.checkpoint(place, codec), thread.metadata(place, codec)
        before = _config(thread_id, place.namespace, parent) if parent is not None else None
        return CheckpointTuple(config, checkpoint, metadata, before, writes)

    def list(
        self,
        config: Config | None,
        *,
        filter: Mapping[str, Any] | None = None,
        before: Config | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield the checkpoints of a thread, or of all threads, the newest first.

        With `filter`, only those whose metadata have these values. Nothing is locked while the
        caller has the iterator.
        """
        for thread_id, place in self._listed(config, before):
            if limit is not None and limit <= 0:
                return
            with self._thread(thread_id) as thread:
                if thread.find(*place.key) is None:  # Deleted since.
                    continue
                metadata = thread.metadata(place, self._codec)
                if any(
                    key not in metadata or metadata[key] != value
                    for key, value in (filter or {}).items()
                ):
                    continue
                found = self._tuple(thread, thread_id, place, thread.head(place.namespace) or place)
            yield found
            limit = None if limit is None else limit - 1

    def _listed(
        self, config: Config | None, before: Config | None
    ) -> Iterator[tuple[str, CheckpointPlace]]:
        """Yield the places of checkpoints, the newest first."""
        if config is None or "thread_id" not in config["configurable"]:
            ids = [info.thread_id for info in self._infos()]
            every = [(thread_id, place) for thread_id in ids for place in self._places(thread_id)]
            listed = sorted(every, key=lambda item: item[1].id, reverse=True)
        else:
            thread_id = _thread_of(config)
            listed = [(thread_id, place) for place in self._places(thread_id)]
        configurable = config["configurable"] if config is not None else {}
        namespace, only = configurable.get("checkpoint_ns"), configurable.get("checkpoint_id")
        limit_id = get_checkpoint_id(before) if before is not None else None
        seen = limit_id is None or all(place.id != limit_id for _, place in listed)
        for thread_id, place in listed:
            if not seen:
                seen = place.id == limit_id
            elif limit_id is not None and config is None and place.id >= limit_id:
                continue
            elif (namespace is None or place.namespace == namespace) and only in (None, place.id):
                yield thread_id, place

    def _places(self, thread_id: str) -> "list_[CheckpointPlace]":
        with self._thread(thread_id) as thread:
            thread.refresh()
            return thread.places()

    def get_delta_channel_history(
        self, *, config: Config, channels: Sequence[str]
    ) -> dict[str, dict[str, Any]]:
        """Return the writes to channels on the way to a checkpoint, and the value before them."""
        codec = self._codec
        with self._thread(_thread_of(config)) as thread:
            thread.refresh()
            namespace, checkpoint_id = _namespace_of(config), get_checkpoint_id(config)
            head = thread.head(namespace)
            place = thread.find(namespace, checkpoint_id) if checkpoint_id else head
            if place is None:
                return {channel: {"writes": []} for channel in channels}
            found = thread.history(place, channels)
        for channel, entry in found.items():
            entry["writes"] = [
                (task, channel, codec.decode(tree)) for task, tree in entry["writes"]
            ]
            if "seed" in entry:
                entry["seed"] = codec.decode(entry["seed"])
        return found

    # Writing

    def put(
        self,
        config: Config,
        checkpoint: Mapping[str, Any],
        metadata: Mapping[str, Any],
        new_versions: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Store a checkpoint, and the messages of its conversation that are new; durable on return.

        ConflictError if another run stored a checkpoint of the thread since this one read it.
        """
        thread_id, namespace = _thread_of(config), _namespace_of(config)
        configurable = config["configurable"]
        seen_namespace, seen = configurable.get(SEEN) or (None, None)
        # A call of LangGraph itself has metadata; it read the thread before. A caller that uses
        # the saver directly says by the parent what it follows, and may begin anew.
        from_graph = "metadata" in config and not namespace
        new = NewCheckpoint(
            namespace,
            get_checkpoint_id(config),
            checkpoint,
            get_checkpoint_metadata(config, metadata),
            frozenset(new_versions),
            seen if seen_namespace == namespace else None,
            strict=from_graph or seen_namespace == namespace,
        )
        with self._thread(thread_id) as thread:
            thread.put(new, self._codec)
        return _config(thread_id, namespace, checkpoint["id"])

    def put_writes(
        self,
        config: Config,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store what a task wrote, on the checkpoint that it ran on; durable on return."""
        key = _namespace_of(config), get_checkpoint_id(config)
        if key[1] is None:
            raise UsageError("writes belong to a checkpoint: pass its checkpoint_id")
        codec = self._codec
        items = [
            (WRITES_IDX_MAP.get(channel, index), channel, value)
            for index, (channel, value) in enumerate(writes)
        ]
        special = all(channel in WRITES_IDX_MAP for channel, _ in writes)
        with self._thread(_thread_of(config)) as thread:
            thread.put_writes(key, items, task_id, task_path, codec, replace=special)

    # Deleting and copying

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread and everything in it; nothing happens if there is none."""
        with self._thread(thread_id):
            self._delete(thread_id)

    def _delete(self, thread_id: str) -> None:
        for session_id in (self.session_id(thread_id), self.tools_id(thread_id)):
            with suppress(NotFoundError):
                self.store.delete(session_id, reason="thread deleted")
        self._threads.forget(self.session_id(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of runs, in all threads. Their messages stay in the session."""
        wanted = {*run_ids}
        if not wanted:
            return
        for info in self._infos():
            with self._thread(info.thread_id) as thread:
                thread.refresh()
                keys = [
                    place.key
                    for place in thread.places()
                    if thread.metadata(place, self._codec).get("run_id") in wanted
                ]
                if keys:
                    drop_checkpoints(thread, keys, self._codec)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread with its checkpoints, writes and messages; nothing ties the two.

        NotFoundError if there is no such thread, UsageError if the target exists.
        """
        with self._thread(source_thread_id) as thread:
            thread.refresh()
            thread.flush()
            if not thread.session.position:
                raise NotFoundError(f"thread {source_thread_id!r}")
            with suppress(NotFoundError):
                calls = self.store.resume(self.tools_id(source_thread_id))
                calls.copy(self.tools_id(target_thread_id)).close()
            with thread.session.copy(self.session_id(target_thread_id)) as copy:
                if thread.session.get(THREAD_ID) or copy.id != f"{self._prefix}{target_thread_id}":
                    copy.set(THREAD_ID, f"{self._prefix}{target_thread_id}")
        self._threads.forget(self.session_id(target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep only the newest checkpoint of each namespace, or with "delete" none at all.

        The space of the others is free on return. InUseError if branches of the session need it.
        """
        if strategy not in ("keep_latest", "delete"):
            raise UsageError(f"unknown strategy {strategy!r}: choose keep_latest or delete")
        for thread_id in thread_ids:
            with self._thread(thread_id) as thread:
                if strategy == "delete":
                    self._delete(thread_id)
                    continue
                thread.refresh()
                if thread.session.position:
                    thread.flush()
                    prune_thread(thread, self._codec)

    # Listing threads

    def _infos(self) -> Iterator["_Listed"]:
        for info in self.store.sessions(labels=[LABEL]):
            thread_id = info.id
            if "~" in info.id:  # The thread's own id is not valid for a session, or too long.
                thread_id = self.store.session(info.id).get(THREAD_ID, info.id)
            if thread_id.startswith(self._prefix):
                yield _Listed(thread_id.removeprefix(self._prefix), info.changed)

    def threads(self, *, limit: int | None = None) -> Iterator[ThreadInfo]:
        """Yield the threads of this saver in the order of their ids, without reading messages."""
        for number, info in enumerate(self._infos()):
            if limit is not None and number >= limit:
                return
            yield self.thread(info.thread_id)._replace(changed=info.changed)

    def thread(self, thread_id: str) -> ThreadInfo:
        """Return what is known of a thread without reading its messages."""
        with self._thread(thread_id) as thread:
            thread.refresh()
            head = thread.head("")
            metadata = thread.metadata(head, self._codec) if head else {}
            count = len(thread.session)
            return ThreadInfo(thread_id, head.id if head else None, metadata, count, None)

    def delete_expired(self) -> "list_[str]":
        """Delete the threads that were not written to for `ttl`; return their ids."""
        if self._ttl is None:
            raise UsageError("no thread expires: pass PerdureSaver(..., ttl=timedelta(...))")
        limit = datetime.now(UTC) - self._ttl
        expired = [
            info.thread_id
            for info in self._infos()
            if info.changed is not None and info.changed < limit
        ]
        for thread_id in expired:
            self.delete_thread(thread_id)
        return expired

    # The same for async code: each call runs in a worker thread, which never waits for the loop

    async def aget_tuple(self, config: Config) -> CheckpointTuple | None:
        return await _in_thread(self.get_tuple, config)

    async def alist(
        self,
        config: Config | None,
        *,
        filter: Mapping[str, Any] | None = None,
        before: Config | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        found = self.list(config, filter=filter, before=before, limit=limit)
        while (item := await _in_thread(next, found, None)) is not None:
            yield item

    async def aget_delta_channel_history(
        self, *, config: Config, channels: Sequence[str]
    ) -> dict[str, dict[str, Any]]:
        return await _in_thread(self.get_delta_channel_history, config=config, channels=channels)

    async def aput(
        self,
        config: Config,
        checkpoint: Mapping[str, Any],
        metadata: Mapping[str, Any],
        new_versions: Mapping[str, Any],
    ) -> dict[str, Any]:
        return await _in_thread(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self,
        config: Config,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        await _in_thread(self.put_writes, config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        await _in_thread(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await _in_thread(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await _in_thread(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await _in_thread(self.prune, thread_ids, strategy=strategy)


list_ = list  # The class has a method of that name.


class _Listed(NamedTuple):
    thread_id: str
    changed: datetime | None


class _OpenThreads:
    """The threads that a saver has open, shared by its copies."""

    def __init__(self, store: perdure.Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._threads: dict[str, Thread] = {}

    @contextmanager
    def use(self, name: str, session_id: str) -> Iterator[Thread]:
        """Give a thread, opened if it is not, to one caller at a time."""
        while True:
            with self._lock:
                thread = self._threads.pop(session_id, None)
                if thread is not None:
                    self._threads[session_id] = thread  # The most recently used is the last.
            if thread is None:
                thread = self._add(session_id, Thread(self._store, session_id, name))
            with thread.lock:
                if self._threads.get(session_id) is not thread:
                    continue  # It was deleted while this caller waited.
                try:
                    yield thread
                except perdure.PerdureError as error:
                    if not isinstance(error, perdure.ConflictError | UsageError):
                        self.forget(session_id)  # What it knows may not be what is stored.
                    raise
                return

    def _add(self, session_id: str, opened: Thread) -> Thread:
        with self._lock:
            thread = self._threads.setdefault(session_id, opened)
            for name in [*self._threads][: len(self._threads) - THREADS_MAX]:
                if self._threads[name].lock.acquire(blocking=False):  # Those in use stay open.
                    forgotten = self._threads.pop(name)
                    forgotten.flush()
                    forgotten.lock.release()
            return thread

    def forget(self, session_id: str) -> None:
        with self._lock:
            self._threads.pop(session_id, None)

    def clear(self) -> None:
        """Store what waits for the next commit of a thread, and forget all of them."""
        with self._lock:
            threads = [*self._threads.values()]
            self._threads.clear()
        for thread in threads:
            with thread.lock:
                thread.flush()


async def _in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return await asyncio.to_thread(function, *args, **kwargs)


def _thread_of(config: Config) -> str:
    thread_id = config["configurable"].get("thread_id")
    if thread_id is None:
        raise UsageError('pass a thread: {"configurable": {"thread_id": ...}}')
    return str(thread_id)


def _namespace_of(config: Config) -> str:
    namespace: str = config["configurable"].get("checkpoint_ns") or ""
    return namespace


def _config(thread_id: str, namespace: str, checkpoint_id: str) -> dict[str, Any]:
    ids = {"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_id": checkpoint_id}
    return {"configurable": ids}
