"""PerdureStore: LangGraph's long-term memory in perdure, a session for each namespace.

An item is a value of the session of its namespace, with its times and, if the store has an
embedding function, its vectors. Versions that were overwritten stay readable in the session. A
search with a query compares all items of its namespaces: it needs no extension, and is meant for
thousands of items, not for millions.
"""

import asyncio
import threading
from array import array
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from operator import mul
from os import PathLike
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchItem,
    SearchOp,
    ensure_embeddings,
    get_text_at_path,
    tokenize_path,
)

import perdure
from perdure.errors import ConflictError, UsageError

BASE = "langgraph.store"  # What the ids of the sessions begin with.
NAMESPACE = "namespace"  # The key of the value that has the namespace itself.
OPEN_MAX = 256  # sessions that a store keeps open
ATTEMPTS = 100  # of a commit that other writers were faster with

Namespace = tuple[str, ...]
Vector = Sequence[float]


class PerdureStore(BaseStore):  # type: ignore[misc]
    """A store for `builder.compile(store=...)`: namespaces, filters, TTL, and vectors.

    Pass a perdure store, or the address of one. `index` has an embedding function (`embed`) and the
    `fields` to embed, as in LangGraph's own stores. With `ttl`, items expire after `default_ttl`
    minutes; expired items are never returned, and `sweep_ttl` deletes them.

    If two writers put the same item, the later one wins. The puts of one `batch` are stored in one
    commit for each namespace.
    """

    supports_ttl = True

    def __init__(
        self,
        store: "perdure.Store | str | PathLike[str]",
        *,
        index: Mapping[str, Any] | None = None,
        ttl: Mapping[str, Any] | None = None,
        base: str = BASE,
    ) -> None:
        self._owns_store = not isinstance(store, perdure.Store)
        self.store = perdure.open(store) if not isinstance(store, perdure.Store) else store
        self.ttl_config = dict(ttl) if ttl is not None else None
        self.index_config = dict(index) if index is not None else None
        self.embeddings: Any = ensure_embeddings(index["embed"]) if index is not None else None
        self._base = base
        self._lock = threading.Lock()
        self._open: dict[str, _OpenNamespace] = {}

    def close(self) -> None:
        """Close the perdure store, if this object opened it."""
        if self._owns_store:
            self.store.close()

    # Operations

    def batch(self, ops: Iterable[Any]) -> list[Any]:
        """Run operations: all reads first, then all puts."""
        operations = [*ops]
        texts, queries = self._texts(operations), _queries(operations, self.embeddings)
        vectors = self.embeddings.embed_documents(texts) if texts else []
        embedded = {query: self.embeddings.embed_query(query) for query in queries}
        return self._run(operations, dict(zip(texts, vectors, strict=True)), embedded)

    async def abatch(self, ops: Iterable[Any]) -> list[Any]:
        """Run operations from an event loop."""
        operations = [*ops]
        texts, queries = self._texts(operations), _queries(operations, self.embeddings)
        vectors = await self.embeddings.aembed_documents(texts) if texts else []
        embedded = {query: await self.embeddings.aembed_query(query) for query in queries}
        by_text = dict(zip(texts, vectors, strict=True))
        return await asyncio.to_thread(self._run, operations, by_text, embedded)

    def _run(
        self, operations: list[Any], vectors: Mapping[str, Vector], queries: Mapping[str, Vector]
    ) -> list[Any]:
        results = [self._read(operation, queries) for operation in operations]
        puts: dict[Namespace, dict[str, Any]] = {}
        for operation in operations:
            if isinstance(operation, PutOp):
                puts.setdefault(operation.namespace, {})[operation.key] = operation
        for namespace, by_key in puts.items():
            self._namespace(namespace).put(by_key.values(), self, vectors)
        return results

    def _read(self, operation: Any, queries: Mapping[str, Vector]) -> Any:
        if isinstance(operation, PutOp):
            return None
        if isinstance(operation, GetOp):
            stored = self._namespace(operation.namespace).get(operation.key)
            if stored is not None and operation.refresh_ttl:
                self._namespace(operation.namespace).refresh_ttl([operation.key])
            return stored and stored.item(operation.namespace)
        if isinstance(operation, SearchOp):
            return self._search(operation, queries.get(operation.query or ""))
        if isinstance(operation, ListNamespacesOp):
            return self._list(operation)
        raise UsageError(f"pass operations of a BaseStore, not {type(operation).__qualname__}")

    def _search(self, operation: Any, query: Vector | None) -> list[Any]:
        wanted = (operation.filter or {}).items()
        matching = [
            (stored.score(query), namespace, stored)
            for namespace in self._namespaces(operation.namespace_prefix)
            for stored in self._namespace(namespace).items()
            if all(_matches(stored.value.get(key), value) for key, value in wanted)
        ]
        if query is not None:  # Items without vectors come last, in the order of their keys.
            matching.sort(key=lambda found: (found[0] is None, -(found[0] or 0.0)))
        page = matching[operation.offset : operation.offset + operation.limit]
        if operation.refresh_ttl:
            for _, namespace, stored in page:
                self._namespace(namespace).refresh_ttl([stored.key])
        return [stored.search_item(namespace, score) for score, namespace, stored in page]

    def _list(self, operation: Any) -> list[Namespace]:
        namespaces = {
            namespace[: operation.max_depth]
            for namespace in self._namespaces(())
            if all(_has_path(namespace, each) for each in operation.match_conditions or ())
            and any(self._namespace(namespace).items())
        }
        return sorted(namespaces)[operation.offset : operation.offset + operation.limit]

    # Expiry

    def sweep_ttl(self) -> int:
        """Delete the expired items; return how many there were."""
        count = 0
        for namespace in [*self._namespaces(())]:
            count += self._namespace(namespace).sweep()
        return count

    # Vectors

    def _texts(self, operations: Sequence[Any]) -> list[str]:
        """Return the texts of items that are put and to be embedded, each once."""
        if self.embeddings is None:
            return []
        puts = [operation for operation in operations if isinstance(operation, PutOp)]
        return [*dict.fromkeys(text for put in puts for _, text in self.texts_of(put))]

    def texts_of(self, put: Any) -> Iterator[tuple[str, str]]:
        """Yield the texts of an item that are embedded, each with its path."""
        if self.embeddings is None or put.value is None or put.index is False:
            return
        paths = put.index or (self.index_config or {}).get("fields") or ["$"]
        for path in paths:
            texts = get_text_at_path(put.value, path if path == "$" else tokenize_path(path))
            for number, text in enumerate(texts):
                yield (f"{path}.{number}" if len(texts) > 1 else path), text

    # Namespaces

    def _namespace(self, namespace: Namespace) -> "_OpenNamespace":
        session_id = perdure.safe_id(
            "/".join([self._base, *(quote(part, "") for part in namespace)])
        )
        with self._lock:
            opened = self._open.pop(session_id, None)
        if opened is None:
            opened = _OpenNamespace(self.store.session(session_id), namespace)
        with self._lock:
            opened = self._open.setdefault(session_id, opened)
            while len(self._open) > OPEN_MAX:
                del self._open[next(iter(self._open))]
        return opened

    def _namespaces(self, prefix: Namespace) -> Iterator[Namespace]:
        """Yield the namespaces that begin with a prefix, also those that have no items any more."""
        for info in self.store.sessions(prefix=f"{self._base}/"):
            parts = tuple(map(unquote, info.id.split("/")[1:]))
            if perdure.safe_id(info.id) != info.id or "~" in info.id:  # It was too long for an id.
                parts = tuple(self.store.session(info.id).get(NAMESPACE, ()))
            if parts[: len(prefix)] == prefix:
                yield parts


class _StoredItem(NamedTuple):
    """An item as it is stored."""

    key: str
    value: dict[str, Any]
    created: str
    updated: str
    ttl: float | None = None
    expires: str = ""
    vectors: dict[str, str] | None = None

    def is_expired(self, now: datetime) -> bool:
        return bool(self.expires) and datetime.fromisoformat(self.expires) <= now

    def item(self, namespace: Namespace) -> Any:
        return Item(
            value=self.value,
            key=self.key,
            namespace=namespace,
            created_at=datetime.fromisoformat(self.created),
            updated_at=datetime.fromisoformat(self.updated),
        )

    def search_item(self, namespace: Namespace, score: float | None) -> Any:
        created, updated = map(datetime.fromisoformat, (self.created, self.updated))
        return SearchItem(namespace, self.key, self.value, created, updated, score)

    def score(self, query: Vector | None) -> float | None:
        """Return the greatest similarity of its vectors to a query; None without vectors."""
        if query is None or not self.vectors:
            return None
        return max(_similarity(query, _unpack(text)) for text in self.vectors.values())


class _OpenNamespace:
    """The items of one namespace."""

    def __init__(self, session: perdure.Session, namespace: Namespace) -> None:
        self._session = session
        self._namespace = namespace
        self._lock = threading.Lock()

    def get(self, key: str) -> _StoredItem | None:
        with self._lock:
            self._session.refresh()
            return self._live(_value_key(key))

    def items(self) -> Iterator[_StoredItem]:
        """Yield the items in the order of their keys."""
        with self._lock:
            self._session.refresh()
            keys = [key for key in sorted(self._session.values.keys()) if key != NAMESPACE]
            found = [self._live(key) for key in keys]
        yield from (item for item in found if item is not None)

    def _live(self, value_key: str) -> _StoredItem | None:
        data = self._session.get(value_key)
        item = _StoredItem(**data) if data is not None else None
        return None if item is None or item.is_expired(datetime.now(UTC)) else item

    def put(self, puts: Iterable[Any], store: PerdureStore, vectors: Mapping[str, Vector]) -> None:
        changes = [
            (put, {path: vectors[text] for path, text in store.texts_of(put)}) for put in puts
        ]

        def write(batch: Any) -> None:
            keys = {*self._session.values.keys()}
            if NAMESPACE not in keys and any(put.value is not None for put, _ in changes):
                batch.set(NAMESPACE, [*self._namespace])
            for put, by_path in changes:
                key = _value_key(put.key)
                if put.value is not None:
                    batch.set(key, self._stored(put, by_path))
                elif key in keys:
                    batch.delete(key)

        self._commit(write)

    def _stored(self, put: Any, vectors: Mapping[str, Vector]) -> dict[str, Any]:
        now = datetime.now(UTC)
        before = self._live(_value_key(put.key))
        stored: dict[str, Any] = {
            "key": put.key,
            "value": dict(put.value),
            "created": before.created if before is not None else now.isoformat(),
            "updated": now.isoformat(),
        }
        if put.ttl is not None:
            stored |= {"ttl": put.ttl, "expires": _expiry(now, put.ttl)}
        if vectors:
            stored["vectors"] = {path: _pack(vector) for path, vector in vectors.items()}
        return stored

    def refresh_ttl(self, keys: Sequence[str]) -> None:
        """Let items live for their time again, because they were read."""

        def write(batch: Any) -> None:
            for key in keys:
                item = self._live(_value_key(key))
                if item is not None and item.ttl is not None:
                    expires = _expiry(datetime.now(UTC), item.ttl)
                    batch.set(_value_key(key), {**item._asdict(), "expires": expires})

        self._commit(write)

    def sweep(self) -> int:
        """Delete the expired items; return how many there were."""
        expired: list[str] = []

        def write(batch: Any) -> None:
            keys = {*self._session.values.keys()} - {NAMESPACE}
            expired[:] = [key for key in sorted(keys) if self._live(key) is None]
            for key in expired:
                batch.delete(key)

        self._commit(write)
        return len(expired)

    def _commit(self, write: Any) -> None:
        """Store changes in one commit; if another writer was faster, on top of what it stored."""
        with self._lock:
            for last in (*[False] * ATTEMPTS, True):
                self._session.refresh()
                try:
                    with self._session.batch() as batch:
                        write(batch)
                except ConflictError:
                    if last:
                        raise
                else:
                    return


def _value_key(key: str) -> str:
    return perdure.safe_id(f"item.{key}")


def _expiry(now: datetime, minutes: float) -> str:
    return (now + timedelta(minutes=minutes)).isoformat()


def _queries(operations: Sequence[Any], embeddings: Any) -> list[str]:
    searches = [operation for operation in operations if isinstance(operation, SearchOp)]
    return [*{search.query for search in searches if search.query}] if embeddings else []


def _pack(vector: Vector) -> str:
    return b64encode(array("f", vector).tobytes()).decode()


def _unpack(text: str) -> Vector:
    vector = array("f")
    vector.frombytes(b64decode(text))
    return vector


def _similarity(first: Vector, second: Vector) -> float:
    """Return the cosine of the angle between two vectors; 0 if one has no direction."""
    length: float = (sum(map(mul, first, first)) * sum(map(mul, second, second))) ** 0.5
    return sum(map(mul, first, second)) / length if length else 0.0


def _has_path(namespace: Namespace, condition: MatchCondition) -> bool:
    """Whether a namespace begins or ends with a path, in which `*` stands for any part."""
    path = tuple(condition.path)
    if len(namespace) < len(path):
        return False
    at = 0 if condition.match_type == "prefix" else len(namespace) - len(path)
    parts = namespace[at : at + len(path)]
    return all(wanted in ("*", part) for wanted, part in zip(path, parts, strict=True))


_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "$eq": lambda value, wanted: value == wanted,
    "$ne": lambda value, wanted: value != wanted,
    "$gt": lambda value, wanted: _is_number(value) and float(value) > float(wanted),
    "$gte": lambda value, wanted: _is_number(value) and float(value) >= float(wanted),
    "$lt": lambda value, wanted: _is_number(value) and float(value) < float(wanted),
    "$lte": lambda value, wanted: _is_number(value) and float(value) <= float(wanted),
}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _matches(value: Any, wanted: Any) -> bool:
    """Whether a value is what a filter wants: equal, with these parts, or compared by operators."""
    if isinstance(wanted, Mapping):
        if any(key.startswith("$") for key in wanted):
            if unknown := {*wanted} - {*_COMPARISONS}:
                names = f"{', '.join(sorted(unknown))}: use {', '.join(_COMPARISONS)}"
                raise UsageError(f"unknown operators of a filter, {names}")
            return all(_COMPARISONS[key](value, each) for key, each in wanted.items())
        is_part = isinstance(value, Mapping)
        return is_part and all(_matches(value.get(key), each) for key, each in wanted.items())
    if isinstance(wanted, list | tuple):
        same = isinstance(value, list | tuple) and len(value) == len(wanted)
        return same and all(map(_matches, value, wanted))
    return bool(value == wanted)
