// Read and check entries of perdure's format 1 with Node's standard library alone.
//
//     node format_reader.mjs vectors.json      print what it reads from the vectors, as JSON
//     node format_reader.mjs STREAM.jsonl …    print the records of files of a `files:` store
//
// It is written from docs/reference/format.md. Bodies of the suite `plain` only.
// `format_reader.py` is the same in Python.

import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";

const FORMAT = 1;
const FIRST_KINDS = ["branched", "deleted"];
const BOUND_KINDS = [...FIRST_KINDS, "compacted", "snapshot"];
const isText = (value) => typeof value === "string";
const isInteger = (value) => Number.isSafeInteger(value);
const isBound = (value) => value === null || Array.isArray(value);
const HEADER_TYPES = [isInteger, isText, isText, isInteger, isText, isText, isText, isBound, Array.isArray];
const RECORD_TYPES = [isText, isText, isInteger, isText, isText];

class DamagedError extends Error {}
class NewerError extends Error {}

function check(condition, complaint) {
  if (!condition) throw new DamagedError(complaint);
}

const digestOf = (data) => createHash("sha256").update(data).digest("base64");

const hasTypes = (values, types) =>
  types.every((isType, number) => number >= values.length || isType(values[number]));

// Return the nine fields of a header that has the one form that is allowed.
function parseHeader(raw, position) {
  let text, fields;
  try {
    text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(raw);
    fields = JSON.parse(text);
  } catch {
    throw new DamagedError(`${position}: no JSON`);
  }
  check(Array.isArray(fields) && fields.length > 0, `${position}: no array`);
  if (isInteger(fields[0]) && FORMAT < fields[0] && fields[0] < 100) throw new NewerError(`format ${fields[0]}`);
  check(fields.length >= 9 && hasTypes(fields, HEADER_TYPES), `${position}: other fields`);
  const records = fields[8];
  check(records.every((item) => Array.isArray(item) && item.length >= 4), `${position}: other records`);
  check(records.every((item) => hasTypes(item, RECORD_TYPES)), `${position}: other records`);
  check(JSON.stringify(fields) === text && fields[0] === FORMAT, `${position}: not in the form of a header`);
  if (fields.length > 9 || records.some((item) => item.length > 5)) throw new NewerError("further fields");
  const kinds = records.map((item) => item[0]);
  const bound = fields[7];
  check(kinds.length > 0 && records.every((item) => item[2] > 0), `${position}: no records, or empty ones`);
  check(!kinds.slice(1).some((kind) => FIRST_KINDS.includes(kind)), `${position}: not the first record`);
  check(bound !== null || !kinds.some((kind) => BOUND_KINDS.includes(kind)), `${position}: not bound`);
  if (bound !== null) check(bound.length === (kinds[0] === "branched" ? 4 : 2), `${position}: bound to what?`);
  check(fields[3] === position, `${position}: another position`);
  return fields;
}

// Return the payload of a plain body, and the caller's id or null.
function openBody(body) {
  const [, payload, given = null] = JSON.parse(body.toString("utf8"));
  return [payload, given];
}

// Return the entries of one stream up to a position: fields, raw header and body.
function ownEntries(entries, session, upto, stream) {
  const parsed = entries
    .filter(([position]) => position <= upto)
    .map(([position, header, body]) => [parseHeader(header, position), header, body]);
  check(parsed.length > 0, `${session}: no entries`);
  for (const [fields] of parsed) {
    check(fields[7] === null || fields[7][1] === session, `${session}: another session's`);
    check(fields[2] === (stream ?? parsed[0][0][2]), `${session}: another stream's`);
  }
  return parsed;
}

// Return `first` and `digest` of the newest `compacted` record, if there is one.
function cutOf(parsed) {
  for (const [fields, , body] of [...parsed].reverse()) {
    let start = 0;
    for (const [kind, , length] of fields[8]) {
      if (kind === "compacted") {
        const [payload] = openBody(body.subarray(start, start + length));
        return [payload.first, payload.digest];
      }
      start += length;
    }
  }
  return null;
}

// Return the entries of a session and of those that it branched from, oldest first.
function history(streams, session, upto = Number.MAX_SAFE_INTEGER, stream = null) {
  let parsed = ownEntries(streams[session], session, upto, stream);
  const cut = cutOf(parsed);
  if (cut !== null) parsed = parsed.filter(([fields]) => fields[3] + fields[8].length > cut[0]);
  const own = parsed.map((item) => [...item, upto]);
  const first = parsed[0][0];
  if (first[8][0][0] !== "branched") return [own, cut];
  const [older] = history(streams, first[7][2], first[3] - 1, first[7][3]);
  return [[...older, ...own], null];
}

// Return the records of a session as [position, kind, id, payload], and its digest.
// The payload of an erased record is null. Only one that an `erased` record names may be erased.
export function read(streams, session) {
  const [entries, cut] = history(streams, session);
  let [position, digest, records, emptied] = [0, "", [], []];
  const erased = [];
  for (const [[, suite, , at, previous, , , , items], raw, body, upto] of entries) {
    check(suite === "plain", `${at}: suite ${suite}`);
    if (items[0][0] === "deleted") [records, emptied] = [[], []];
    const begins =
      position === 0 &&
      (at === 1 || items[0][0] === "deleted" || (cut !== null && ["", previous].includes(cut[1])));
    check(begins || (at === position + 1 && previous === digest), `${at}: broken link`);
    let start = 0;
    for (const [number, [kind, ownId, length, bodyDigest]] of items.entries()) {
      if (at + number > upto) break;
      const part = body.subarray(start, start + length);
      position = at + number;
      start += length;
      if (part.equals(Buffer.alloc(length, " "))) {
        emptied.push(position);
        records.push([position, kind, ownId, null]);
        continue;
      }
      check(digestOf(part) === bodyDigest, `${position}: altered body`);
      const isPart = kind === "part"; // Its payload is bytes, shown in base64.
      const bytes = part.subarray(26, -1);
      const [payload, given] = isPart ? [{ base64: bytes.toString("base64") }, null] : openBody(part);
      if (kind === "erased") erased.push(...(payload.ranges ?? []));
      records.push([position, kind, given ?? ownId, payload]);
    }
    check(position === upto || start === body.length, `${at}: more bodies than records`);
    digest = digestOf(raw);
  }
  for (const at of emptied) {
    check(erased.some(([first, last]) => first <= at && at <= last), `${at}: overwritten`);
  }
  const parts = new Map(records.filter((item) => item[1] === "part").map((item) => [item[0], item[3]]));
  for (const item of records) checkBodies(item[3], parts);
  return [records, digest];
}

// Check the large bodies that a payload cites, given the parts by their positions.
function checkBodies(tree, parts) {
  if (tree === null || typeof tree !== "object") return;
  const cited = Object.keys(tree).join() === "$large" ? tree.$large : null;
  if (cited !== null) {
    const every = cited.parts.flatMap(([first, last]) =>
      Array.from({ length: last - first + 1 }, (_, number) => first + number),
    );
    if (every.every((at) => parts.get(at))) { // Else they were compacted or erased.
      const data = Buffer.concat(every.map((at) => Buffer.from(parts.get(at).base64, "base64")));
      check(data.length === cited.size && digestOf(data) === cited.digest, "another body");
    }
  }
  for (const item of Object.values(tree)) checkBodies(item, parts);
}

const mapValues = (object, change) =>
  Object.fromEntries(Object.entries(object).map(([key, item]) => [key, change(item)]));

// Return a value with its tagged scalars as [tag, text], which any language can compare.
export function unpack(tree) {
  if (Array.isArray(tree)) return tree.map(unpack);
  if (tree === null || typeof tree !== "object") return tree;
  const keys = Object.keys(tree);
  if (keys.length === 1 && keys[0].startsWith("$")) {
    const [tag] = keys;
    const content = tree[tag];
    if (tag === "$object") return mapValues(content, unpack);
    if (tag === "$bytes") return [tag, Buffer.from(content, "base64").toString("hex")];
    if (tag === "$int") return [tag, hex(BigInt(content))];
    if (tag === "$type") return [tag, content[0], unpack(content[1])];
    if (["$decimal", "$uuid", "$date", "$datetime"].includes(tag)) return [tag, content];
    throw new NewerError(tag);
  }
  return mapValues(tree, unpack);
}

const hex = (number) => (number < 0n ? `-0x${(-number).toString(16)}` : `0x${number.toString(16)}`);

function edited(old, operation, rest) {
  if (operation === "=") return rest[0];
  const [start, removed, added] = rest;
  const items = isText(old) ? [...old] : old; // Indexes of texts count code points.
  const next = [...items.slice(0, start), ...added, ...items.slice(start + removed)];
  return isText(old) ? next.join("") : next;
}

// Apply the edits of a delta to a document.
function edit(document, edits) {
  for (const [path, operation, ...rest] of edits) {
    if (path.length === 0) {
      document = edited(document, operation, rest);
      continue;
    }
    const last = path.at(-1);
    const target = path.slice(0, -1).reduce((place, step) => place[step], document);
    if (operation === "-") delete target[last];
    else target[last] = edited(target[last], operation, rest);
  }
  return document;
}

// Return all versions of each value, null where it was deleted.
function versions(records) {
  const documents = {};
  for (const [, kind, , payload] of records) {
    if (kind !== "value" || payload === null) continue;
    const known = (documents[payload.key] ??= []);
    let data = payload.data ?? null;
    if (payload.form === "delta") data = edit(structuredClone(known.at(-1)), data);
    known.push(payload.form === "deleted" ? null : data);
  }
  return mapValues(documents, (items) => items.map(unpack));
}

function verdict(raw) {
  try {
    parseHeader(raw, 1);
  } catch (error) {
    if (error instanceof NewerError) return "newer";
    if (error instanceof DamagedError) return "damaged";
    throw error;
  }
  return "good";
}

// Return what this reader makes of the vectors.
function answer(vectors) {
  const streams = mapValues(vectors.streams, (items) =>
    items.map((item) => [item.position, Buffer.from(item.header), Buffer.from(item.body)]),
  );
  const found = mapValues(vectors.streams, () => null);
  for (const name of Object.keys(found)) found[name] = read(streams, name);
  return {
    digests: mapValues(found, ([, digest]) => digest),
    records: mapValues(found, ([records]) => records),
    versions: mapValues(found, ([records]) => versions(records)),
    scalars: vectors.scalars.map(unpack),
    headers: vectors.headers.map((header) => verdict(Buffer.from(header))),
  };
}

// Return bytes as they were appended: those that are no plain text are in base64.
const textOf = (stored) =>
  stored.startsWith('"') ? Buffer.from(stored.slice(1, -1), "base64") : Buffer.from(stored);

// Return the entries of files of a `files:` store, by the session that each of them names.
function readFiles(paths) {
  const streams = {};
  for (const path of paths) {
    const [first, ...lines] = readFileSync(path, "utf8").split("\n");
    const kept = lines.filter((line) => line && !line.startsWith('{"perdure":'));
    streams[JSON.parse(first).name] = kept.map((line) => {
      const tab = line.indexOf("\t");
      const header = textOf(line.slice(0, tab));
      return [JSON.parse(header)[3], header, textOf(line.slice(tab + 1))];
    });
  }
  return streams;
}

const paths = process.argv.slice(2);
if (paths[0].endsWith(".json")) {
  process.stdout.write(JSON.stringify(answer(JSON.parse(readFileSync(paths[0], "utf8")))));
} else {
  const streams = readFiles(paths);
  const result = {};
  for (const name of Object.keys(streams)) [result[name]] = read(streams, name);
  process.stdout.write(JSON.stringify(result));
}
