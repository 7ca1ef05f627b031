"""The SQL of a Postgres store: constant text except for the schema's quoted name. Pure.

Each call is one statement in a transaction of its own, so nothing depends on the session: it works
behind a pooler that routes every statement to another connection. Names given by users are bytea:
they sort by code point whatever the database's locale, and no byte is special in them.

No statement but two of `check` goes through all rows, and none relies on the planner's statistics
to avoid it: lookups are lateral joins by a whole key. Indexes for listings have a condition
(`changed > 0`, `present` or one of `labels`), so that no other statement can use them.

Position and digest of a head are both the lock and the proof: an append moves them from the entry
before its own to its last one, or does nothing at all.

Editing: no statement may change a table in two places, because engines that only speak the protocol
(CockroachDB) refuse that. Changed columns need a migration in `schema`.
"""

from typing import NamedTuple

from perdure.backends.postgres.schema import DELETED
from perdure.backends.protocol import HEADER_MAX

# Another client may have left synchronous_commit off in a session that a pooler hands out. This
# raises it for one transaction, and never lowers a stricter setting.
FORCE_SYNC_COMMIT = (
    "(select case when current_setting('synchronous_commit', true) = 'off'"
    " then set_config('synchronous_commit', 'on', true) end)"
)


# Microseconds by the server's clock. Used to order listings, never as a version.
NOW_MICROSECONDS = "(extract(epoch from clock_timestamp()) * 1000000)::bigint"


# The head of a continued stream is locked first, so that no other client removes it and the row
# proposed for it can only update it: that row carries the expected position in `changed`, as a
# negative number. The head of a new stream is inserted; if it exists already, it is locked too and
# stays unchanged. Heads are locked one by one, ordered by stream, so that appends cannot deadlock.
_APPEND = """
with new as (
  select * from unnest(%b::bytea[], %b::bytea[], %b::bigint[], %b::text[], %b::bigint[],
    %b::text[], %b::bytea[], %b::boolean[], %b::bigint[])
    as new (stream, name, expected, previous, position, digest, labels, relabels, snapshot)
), held as (
  select found.name
  from (select * from new order by stream offset 0) as new
  cross join lateral (
    select head.name from {schema}.head as head
    where head.tenant = %b::text and head.name = new.name
      and (new.expected = 0 or head.position = new.expected and head.digest = new.previous
        and (head.labels = new.labels or new.relabels))
    limit 1 for update
  ) as found
), taken as (
  insert into {schema}.head as head
    (tenant, stream, name, position, digest, labels, changed, snapshot)
  select %b::text, stream, name, position, digest, labels,
    case when expected = 0 then {now} else -expected end, snapshot
  from new where (expected > 0) = (name in (select held.name from held)) order by stream
  on conflict (tenant, name) do update
  set position = excluded.position, digest = excluded.digest, labels = excluded.labels,
    changed = {now}, snapshot = excluded.snapshot
  where head.position = -excluded.changed
  returning head.stream
), written as (
  insert into {schema}.entry (tenant, stream, position, first, header, body)
  select %b::text, entry.stream, entry.position, entry.first, entry.header, entry.body
  from unnest(%b::bytea[], %b::bigint[], %b::bigint[], %b::bytea[], %b::bytea[])
    as entry (stream, position, first, header, body)
  where entry.stream in (select stream from taken)
)"""


# The same for one continued stream with unchanged labels: most appends are like this, and
# planning the general statement takes longer than running it.
_APPEND_NEXT = """
with taken as (
  update {schema}.head as head
  set position = %b::bigint, digest = %b::text, snapshot = %b::bigint, changed = {now}
  where head.tenant = %b::text and head.name = %b::bytea and head.position = %b::bigint
    and head.digest = %b::text and head.labels = %b::bytea
  returning head.stream
), written as (
  insert into {schema}.entry (tenant, stream, position, first, header, body)
  select %b::text, taken.stream, entry.position, entry.first, entry.header, entry.body
  from taken, unnest(%b::bigint[], %b::bigint[], %b::bytea[], %b::bytea[])
    as entry (position, first, header, body)
)"""


# A label that a stream no longer has is marked, not deleted, so that the statement changes the
# table in one place only; its value is removed. Old labels are looked up by name alone and
# `present` is checked afterwards: in one condition, the planner could use the listings' index and
# scan all labels.
_RELABEL = """, wanted as (
  select * from unnest(%b::bytea[], %b::bytea[], %b::bytea[]) as wanted (stream, label, value)
), relabelled as (
  select new.stream, new.name from new join taken on taken.stream = new.stream
  where new.relabels
), labelled as (
  insert into {schema}.label as label (tenant, name, label, value, present)
  select %b::text, relabelled.name, wanted.label, wanted.value, true
  from relabelled join wanted on wanted.stream = relabelled.stream
  union all
  select old.tenant, old.name, old.label, ''::bytea, false
  from relabelled cross join lateral (
    select * from {schema}.label where tenant = %b::text and name = relabelled.name offset 0
  ) as old
  where old.present and not exists (
    select 1 from wanted where wanted.stream = relabelled.stream and wanted.label = old.label)
  on conflict (tenant, name, label) do update
  set present = excluded.present, value = excluded.value
  where label.present <> excluded.present or label.value <> excluded.value
)"""


_APPEND_RESULT = """
select stream, {durably}, exists (
  select 1 from {schema}.watch as watch
  where watch.tenant = %b::text and watch.stream = taken.stream and watch.until > {now})
from taken"""


# Committed asynchronously: a registered wait need not survive a crash.
_REGISTER_WATCH = """
insert into {schema}.watch (tenant, stream, until)
values (%b::text, %b::bytea, {now} + 1000000 * %b::bigint)
on conflict (tenant, stream) do update set until = excluded.until
returning (select set_config('synchronous_commit', 'off', true))"""


_EXPIRE_WATCHES = "delete from {schema}.watch where until < {now} - 60000000 returning until"


_NOTIFY = "select pg_notify(%b::text, notice.stream) from unnest(%b::text[]) as notice (stream)"


# A consistent view of heads and of the entries at some positions; at least one row per stream.
_INSPECT = """
select ask.number, head.stream, head.position, head.digest,
  entry.position, entry.first, entry.header
from unnest(%b::bytea[], %b::bytea[], %b::bigint[], %b::bigint[])
  with ordinality as ask (stream, name, first, last, number)
left join lateral (
  select stream, position, digest from {schema}.head
  where tenant = %b::text and name = ask.name limit 1
) as head on true
left join lateral (
  select position, first, header from {schema}.entry
  where tenant = %b::text and stream = ask.stream and position >= ask.first
    and entry.first <= ask.last
  order by position limit ask.last - ask.first + 1
) as entry on true
order by ask.number, entry.position"""


# A row lock is written to the log, so its commit waits until everything before it is durable too.
# The streams are passed in the order in which heads are locked.
_CONFIRM_DURABLE = """
select {durably}
from (
  select name from unnest(%b::bytea[]) with ordinality as ask (name, number)
  order by number offset 0
) as ask
cross join lateral (
  select name from {schema}.head where tenant = %b::text and name = ask.name limit 1 for update
) as held"""


# A page ends where the sum of its bodies exceeds the limit; the first entry always fits.
_READ = """
select head.stream, head.position, entry.first,
  case when octet_length(entry.header) <= {header_max} then entry.header end,
  entry.body, entry.position - entry.first + 1, entry.many
from (select 1) as one (nothing)
left join {schema}.head as head on head.tenant = %b::text and head.name = %b::bytea
left join lateral (
  select position, first, header, case when short then body end as body, many
  from (
    select position, first, header, body, octet_length(body) <= %b::bigint as short,
      sum(octet_length(header) + case when octet_length(body) <= %b::bigint
        then octet_length(body) else 0 end) over (order by position {order}) as total,
      row_number() over (order by position {order}) as number,
      count(*) over () as many
    from (
      select position, first, header, body from {schema}.entry
      where tenant = %b::text and stream = %b::bytea and {beyond}
      order by position {order} limit %b::bigint
    ) as near
  ) as counted
  where total <= %b::bigint or number = 1
) as entry on true
order by entry.position {order}"""


# From the entry that covers the position before this one, which may end after it.
_BEGINS_BEFORE = """position <= coalesce((
        select position from {schema}.entry
        where tenant = %b::text and stream = %b::bytea and position >= %b::bigint - 1
        order by position limit 1), 9223372036854775807)
      and first < %b::bigint"""


_COLUMNS = (
    "head.name, head.position, head.digest, head.labels, head.changed, head.snapshot, head.stream"
)


# Heads of a listing, each with the header of its last entry.
_WITH_HEADERS = """
select head.*, entry.header
from ({heads}) as head
left join lateral (
  select case when octet_length(header) <= {header_max} then header end as header
  from {schema}.entry
  where %b::boolean and tenant = %b::text and stream = head.stream
    and position = head.position limit 1
) as entry on true
order by {order}"""


_STREAMS = """
select {columns}
from {schema}.head as head
where tenant = %b::text and name > %b::bytea and name >= %b::bytea{lives}
order by name limit %b::bigint"""


_LABELLED = """
select {columns}
from (
  select name from {schema}.label
  where tenant = %b::text and label = %b::bytea and value = %b::bytea and present
    and name > %b::bytea and name >= %b::bytea
  order by name limit %b::bigint
) as label
cross join lateral (
  select * from {schema}.head where head.tenant = %b::text and head.name = label.name limit 1
) as head
order by label.name"""


# In the order of a field's values; each row has its value last.
_ORDERED = """
select {columns}, label.value
from (
  select name, value from {schema}.label
  where tenant = %b::text and label = %b::bytea and present
    and value {within} %b::bytea and (value, name) {beyond} (%b::bytea, %b::bytea)
  order by value {order}, name {order} limit %b::bigint
) as label
cross join lateral (
  select * from {schema}.head where head.tenant = %b::text and head.name = label.name limit 1
) as head
order by label.value {order}, label.name {order}"""


# How many streams have each of some labels, up to a limit.
_COUNT_LABELS = """
select (
  select count(*) from (
    select 1 from {schema}.label
    where tenant = %b::text and label = ask.label and value = ask.value and present
    limit %b::bigint
  ) as rows
)
from unnest(%b::bytea[], %b::bytea[]) with ordinality as ask (label, value, number)
order by ask.number"""


_RECENT = """
select {columns}
from {schema}.head as head
where tenant = %b::text and changed > 0 and labels {which} {deleted}
  and (changed, name) < (%b::bigint, %b::bytea) and name >= %b::bytea and name < %b::bytea
order by changed desc, name desc limit %b::bigint"""


_CHANGED = """
select {columns}
from {schema}.head as head
where tenant = %b::text and changed > 0 and labels {which} {deleted} and changed > %b::bigint"""


# One index holds live heads by their last change, another one the deleted heads.
_LIVE_AND_DELETED = """
select * from ({live}) as live union all select * from ({gone}) as gone
order by changed desc, name desc"""


# At least one row, with the number of matches; above the limit none are looked up and sorted.
_SORTED = """
with meant as (
  select name from {source} and name >= %b::bytea and name < %b::bytea
  order by name limit %b::bigint
)
select (select count(*) from meant) as count, {columns}
from (select 1) as one (nothing)
left join (
  select head.* from meant cross join lateral (
    select * from {schema}.head where head.tenant = %b::text and head.name = meant.name limit 1
  ) as head
  where (select count(*) from meant) <= %b::bigint
  order by head.changed desc, head.name desc limit %b::bigint
) as head on true
order by head.changed desc, head.name desc"""


_HEADS_BY_NAME = """
select {columns}
from unnest(%b::bytea[]) as ask (name)
cross join lateral (
  select * from {schema}.head where head.tenant = %b::text and head.name = ask.name limit 1
) as head
order by head.changed desc, head.name desc"""


_DROP = """
with gone as (
  delete from {schema}.entry as entry
  where entry.tenant = %b::text and entry.stream = %b::bytea
    and entry.position < least(%b::bigint, (
      select position from {schema}.head as head
      where head.tenant = %b::text and head.name = %b::bytea))
)
select {durably}"""


_REMOVE = """
with gone as (
  delete from {schema}.head as head
  where head.tenant = %b::text and head.name = %b::bytea and head.digest = %b::text
  returning head.stream
), emptied as (
  delete from {schema}.entry as entry
  where entry.tenant = %b::text and entry.stream in (select stream from gone)
), unlabelled as (
  delete from {schema}.label as label
  where label.tenant = %b::text and label.name = %b::bytea and exists (select 1 from gone)
)
select exists (select 1 from gone) or not exists (
  select 1 from {schema}.head as head where head.tenant = %b::text and head.name = %b::bytea
), {durably}"""


# Each head with the labels that it is listed under.
_CHECK_HEADS = """
select {columns}, array(
  select label.label || label.value from {schema}.label as label
  where label.tenant = %b::text and label.name = head.name and label.present)
from (
  select * from {schema}.head where tenant = %b::text and name > %b::bytea
  order by name limit %b::bigint
) as head
order by head.name"""


_CHECK_LABELS = """
select label.name from {schema}.label as label
where label.tenant = %b::text and label.present and not exists (
  select 1 from {schema}.head as head where head.tenant = %b::text and head.name = label.name)
order by label.name limit %b::bigint"""


# The streams of all entries, from each one to the next in the index, that have no head. Heads have
# no index by stream, because nothing else needs it: EXCEPT sorts or hashes them, whatever the
# planner expects. A join might look through all heads for each stream.
_CHECK_STREAMS = """
with recursive streams (stream) as (
  (select stream from {schema}.entry where tenant = %b::text order by stream limit 1)
  union all
  select (
    select entry.stream from {schema}.entry as entry
    where entry.tenant = %b::text and entry.stream > streams.stream
    order by entry.stream limit 1)
  from streams where streams.stream is not null
)
select stream from streams where stream is not null
except select stream from {schema}.head where tenant = %b::text
order by stream limit %b::bigint"""


class Statements(NamedTuple):
    """Every statement of one store."""

    append: str
    append_relabelling: str
    append_next: str
    inspect: str
    confirm_durable: str
    forward: str
    reverse: str
    streams: str
    streams_live: str
    labelled: str
    ordered: str
    ordered_down: str
    count_labels: str
    recent: str
    recent_live: str
    changed: str
    few: str
    few_live: str
    few_labelled: str
    named: str
    drop: str
    remove: str
    check_heads: str
    check_labels: str
    check_streams: str
    register_watch: str
    expire_watches: str
    notify: str


def build_statements(schema: str) -> Statements:
    """Return the statements for a schema, given its quoted name."""
    schema = schema.replace("%", "%%")  # They are sent with parameters.

    def text(template: str, **parts: str) -> str:
        return template.format(
            schema=schema,
            durably=FORCE_SYNC_COMMIT,
            now=NOW_MICROSECONDS,
            deleted=DELETED,
            header_max=str(HEADER_MAX),
            columns=_COLUMNS,
            **parts,
        )

    def listing(heads: str, order: str = "head.changed desc, head.name desc") -> str:
        return text(_WITH_HEADERS, heads=heads, order=order)

    lives = f" and labels <> {DELETED}"
    live, gone = text(_RECENT, which="<>"), text(_RECENT, which="=")
    heads = f"{schema}.head where tenant = %b::text"
    labels = f"{schema}.label where tenant = %b::text and label = %b::bytea"
    labels += " and value = %b::bytea and present"
    return Statements(
        append=text(_APPEND + _APPEND_RESULT),
        append_relabelling=text(_APPEND + _RELABEL + _APPEND_RESULT),
        append_next=text(_APPEND_NEXT + _APPEND_RESULT),
        inspect=text(_INSPECT),
        confirm_durable=text(_CONFIRM_DURABLE),
        forward=text(_READ, order="", beyond="position > %b::bigint"),
        reverse=text(_READ, order="desc", beyond=text(_BEGINS_BEFORE)),
        streams=listing(text(_STREAMS, lives=""), "head.name"),
        streams_live=listing(text(_STREAMS, lives=lives), "head.name"),
        labelled=listing(text(_LABELLED), "head.name"),
        ordered=listing(text(_ORDERED, within="<", beyond=">", order=""), "head.value, head.name"),
        ordered_down=listing(
            text(_ORDERED, within=">=", beyond="<", order="desc"),
            "head.value desc, head.name desc",
        ),
        count_labels=text(_COUNT_LABELS),
        recent=listing(text(_LIVE_AND_DELETED, live=live, gone=gone) + " limit %b::bigint"),
        recent_live=listing(live),
        changed=listing(
            text(_LIVE_AND_DELETED, live=text(_CHANGED, which="<>"), gone=text(_CHANGED, which="="))
        ),
        few=listing(text(_SORTED, source=heads)),
        few_live=listing(text(_SORTED, source=heads + lives)),
        few_labelled=listing(text(_SORTED, source=labels)),
        named=listing(text(_HEADS_BY_NAME)),
        drop=text(_DROP),
        remove=text(_REMOVE),
        check_heads=text(_CHECK_HEADS),
        check_labels=text(_CHECK_LABELS),
        check_streams=text(_CHECK_STREAMS),
        register_watch=text(_REGISTER_WATCH),
        expire_watches=text(_EXPIRE_WATCHES),
        notify=_NOTIFY,
    )
