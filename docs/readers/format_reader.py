"""Read and check entries of perdure's format 1 with the standard library alone.

    python format_reader.py vectors.json      print what it reads from the vectors, as JSON
    python format_reader.py STREAM.jsonl …    print the records of files of a `files:` store

It is written from docs/reference/format.md, and shares no code with perdure. Bodies of the suite
`plain` only. `format_reader.mjs` is the same in JavaScript.
"""

import base64
import hashlib
import json
import sys
from pathlib import Path

FORMAT = 1
FIRST_KINDS = ("branched", "deleted")
BOUND_KINDS = (*FIRST_KINDS, "compacted", "snapshot")
HEADER_TYPES = (int, str, str, int, str, str, str, (list, type(None)), list)
RECORD_TYPES = (str, str, int, str, str)


class DamagedError(Exception):
    """The bytes are not those that were written."""


class NewerError(Exception):
    """A newer version wrote it."""


def check(condition, complaint):
    if not condition:
        raise DamagedError(complaint)


def digest_of(data):
    return base64.b64encode(hashlib.sha256(data).digest()).decode()


def compact(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def has_types(values, types):
    pairs = zip(values, types, strict=False)
    return all(isinstance(value, kind) and not isinstance(value, bool) for value, kind in pairs)


def parse_header(raw, position):
    """Return the nine fields of a header that has the one form that is allowed."""
    try:
        fields = json.loads(raw.decode())
        is_compact = compact(fields) == raw
    except (ValueError, RecursionError):
        raise DamagedError(f"{position}: no JSON") from None
    check(isinstance(fields, list) and fields, f"{position}: no array")
    if isinstance(fields[0], int) and FORMAT < fields[0] < 100:
        raise NewerError(f"{position}: format {fields[0]}")
    check(len(fields) >= 9 and has_types(fields, HEADER_TYPES), f"{position}: other fields")
    records = fields[8]
    check(all(isinstance(item, list) and len(item) >= 4 for item in records), "other records")
    check(all(has_types(item, RECORD_TYPES) for item in records), f"{position}: other records")
    check(is_compact and fields[0] == FORMAT, f"{position}: not in the form of a header")
    if len(fields) > 9 or any(len(item) > 5 for item in records):
        raise NewerError(f"{position}: further fields")
    kinds, bound = [item[0] for item in records], fields[7]
    check(kinds and all(item[2] > 0 for item in records), f"{position}: no records, or empty ones")
    check(not any(kind in FIRST_KINDS for kind in kinds[1:]), f"{position}: not the first record")
    check(bound is not None or not any(kind in BOUND_KINDS for kind in kinds), "not bound")
    if bound is not None:
        check(len(bound) == (4 if kinds[0] == "branched" else 2), f"{position}: bound to what?")
    check(fields[3] == position, f"{position}: another position")
    return fields


def open_body(body):
    """Return the payload of a plain body, and the caller's id or None."""
    _, payload, *given = json.loads(body)
    return payload, given[0] if given else None


def own_entries(entries, session, upto, stream):
    """Return the entries of one stream up to a position: fields, raw header and body."""
    parsed = [
        (parse_header(header, position), header, body)
        for position, header, body in entries
        if position <= upto
    ]
    check(parsed, f"{session}: no entries")
    for fields, _, _ in parsed:
        check(fields[7] is None or fields[7][1] == session, f"{session}: another session's")
        check(fields[2] == (stream or parsed[0][0][2]), f"{session}: another stream's")
    return parsed


def cut_of(parsed):
    """Return `first` and `digest` of the newest `compacted` record, if there is one."""
    for fields, _, body in reversed(parsed):
        start = 0
        for kind, _, length, *_ in fields[8]:
            if kind == "compacted":
                payload, _ = open_body(body[start : start + length])
                return payload["first"], payload["digest"]
            start += length
    return None


def history(streams, session, upto=2**53, stream=None):
    """Return the entries of a session and of those that it branched from, oldest first."""
    parsed = own_entries(streams[session], session, upto, stream)
    cut = cut_of(parsed)
    if cut is not None:  # Entries before it may be there still; nothing reads them.
        parsed = [item for item in parsed if item[0][3] + len(item[0][8]) > cut[0]]
    first = parsed[0][0]
    if first[8][0][0] == "branched":
        older, _ = history(streams, first[7][2], first[3] - 1, first[7][3])
        return older + [(*item, upto) for item in parsed], None
    return [(*item, upto) for item in parsed], cut


def read(streams, session):
    """Return the records of a session as (position, kind, id, payload), and its digest.

    `streams` has the entries of each session: position, header and body. The payload of an erased
    record is None. Only one that an `erased` record names may be erased.
    """
    entries, cut = history(streams, session)
    position, digest, records, emptied, erased = 0, "", [], [], []
    for (_, suite, _, at, previous, _, _, _, items), raw, body, upto in entries:
        check(suite == "plain", f"{at}: suite {suite}")
        if items[0][0] == "deleted":
            records, emptied = [], []
        begins = position == 0 and (at == 1 or items[0][0] == "deleted")
        begins = begins or (position == 0 and cut is not None and cut[1] in ("", previous))
        check(begins or (at, previous) == (position + 1, digest), f"{at}: broken link")
        start = 0
        for number, (kind, own_id, length, body_digest, *_) in enumerate(items):
            if at + number > upto:
                break
            part, position = body[start : start + length], at + number
            start += length
            if part == b" " * length:
                emptied.append(position)
                records.append((position, kind, own_id, None))
                continue
            check(digest_of(part) == body_digest, f"{position}: altered body")
            if kind == "part":  # Its payload is bytes, shown in base64.
                payload, given = {"base64": base64.b64encode(part[26:-1]).decode()}, None
            else:
                payload, given = open_body(part)
            erased += payload.get("ranges", []) if kind == "erased" else []
            records.append((position, kind, given or own_id, payload))
        check(position == upto or start == len(body), f"{at}: more bodies than records")
        digest = digest_of(raw)
    for at in emptied:
        check(any(first <= at <= last for first, last in erased), f"{at}: overwritten")
    parts = {at: payload for at, kind, _, payload in records if kind == "part"}
    for _, _, _, payload in records:
        check_bodies(payload, parts)
    return records, digest


def check_bodies(tree, parts):
    """Check the large bodies that a payload cites, given the parts by their positions."""
    items = tree if isinstance(tree, list) else tree.values() if isinstance(tree, dict) else ()
    if isinstance(tree, dict) and [*tree] == ["$large"]:
        cited = tree["$large"]
        every = [at for first, last in cited["parts"] for at in range(first, last + 1)]
        if all(parts.get(at) for at in every):  # Else they were compacted or erased.
            data = b"".join(base64.b64decode(parts[at]["base64"]) for at in every)
            check((len(data), digest_of(data)) == (cited["size"], cited["digest"]), "another body")
    for item in items:
        check_bodies(item, parts)


def unpack(tree):
    """Return a value with its tagged scalars as [tag, text], which any language can compare."""
    if isinstance(tree, list):
        return [unpack(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if len(tree) == 1:
        ((tag, content),) = tree.items()
        if tag == "$object":
            return {key: unpack(item) for key, item in content.items()}
        if tag == "$bytes":
            return [tag, base64.b64decode(content, validate=True).hex()]
        if tag == "$int":
            return [tag, hex(int(content))]
        if tag == "$type":
            return [tag, content[0], unpack(content[1])]
        if tag in ("$decimal", "$uuid", "$date", "$datetime"):
            return [tag, content]
        if tag.startswith("$"):
            raise NewerError(tag)
    return {key: unpack(item) for key, item in tree.items()}


def edit(document, edits):
    """Apply the edits of a delta to a document."""
    for path, operation, *rest in edits:
        if not path:
            document = _edited(document, operation, rest)
            continue
        *way, last = path
        target = document
        for step in way:
            target = target[step]
        if operation == "-":
            del target[last]
        else:
            target[last] = _edited(
                target.get(last) if isinstance(target, dict) else target[last], operation, rest
            )
    return document


def _edited(old, operation, rest):
    if operation == "=":
        return rest[0]
    start, removed, added = rest
    return old[:start] + added + old[start + removed :]


def versions(records):
    """Return all versions of each value, None where it was deleted."""
    documents = {}
    for _, kind, _, payload in records:
        if kind == "value" and payload is not None:
            known = documents.setdefault(payload["key"], [])
            data = payload.get("data")
            if payload["form"] == "delta":
                data = edit(json.loads(json.dumps(known[-1])), data)
            known.append(None if payload["form"] == "deleted" else data)
    return {key: [unpack(item) for item in items] for key, items in documents.items()}


def verdict(raw):
    try:
        parse_header(raw, 1)
    except (DamagedError, NewerError) as error:
        return "newer" if isinstance(error, NewerError) else "damaged"
    return "good"


def answer(vectors):
    """Return what this reader makes of the vectors."""
    streams = {
        name: [(item["position"], item["header"].encode(), item["body"].encode()) for item in items]
        for name, items in vectors["streams"].items()
    }
    found = {name: read(streams, name) for name in streams}
    return {
        "digests": {name: digest for name, (_, digest) in found.items()},
        "records": {name: records for name, (records, _) in found.items()},
        "versions": {name: versions(records) for name, (records, _) in found.items()},
        "scalars": [unpack(tree) for tree in vectors["scalars"]],
        "headers": [verdict(header.encode()) for header in vectors["headers"]],
    }


def read_files(paths):
    """Return the entries of files of a `files:` store, by the session that each of them names."""
    streams = {}
    for path in paths:
        entries, position = [], 1
        first, *lines = Path(path).read_bytes().split(b"\n")
        for line in lines:
            if line and not line.startswith(b'{"perdure":'):
                header, body = (text_of(text) for text in line.split(b"\t", 1))
                position = json.loads(header)[3]
                entries.append((position, header, body))
        streams[json.loads(first)["name"]] = entries
    return streams


def text_of(stored):
    """Return bytes as they were appended: those that are no plain text are in base64."""
    return base64.b64decode(stored[1:-1]) if stored.startswith(b'"') else stored


if __name__ == "__main__":
    if sys.argv[1].endswith(".json"):
        result = answer(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    else:
        found = read_files(sys.argv[1:])
        result = {name: read(found, name)[0] for name in found}
    json.dump(result, sys.stdout, ensure_ascii=False)
