"""The Lua scripts that a Redis or Valkey server runs. Each is atomic and may be sent twice.

A script sees one bucket, which is one hash slot: `KEYS[1]` is one of the bucket's keys with a name
of one letter, and the names of the others begin with the same text (see `layout`). Each call names
all keys that it writes or relies on. While a slot moves to another node, some of its keys are here
and some there. A server refuses a script some of whose keys it does not have. A key that the call
does not name would seem to be missing, and be created twice. Positions are decimal texts: Lua's
numbers lose the last digits of large ones.

To edit: every check comes before the first write. A script that fails in the middle keeps what it
has written. A change in how keys are used needs a new `layout.LAYOUT`.
"""

from hashlib import sha1
from typing import NamedTuple


class Script(NamedTuple):
    """The text of a script, the digest that a server knows it by, and whether it writes.

    `keys` are the letters of the keys that it uses; `e` means the entries of the streams.
    """

    text: str
    digest: str
    writes: bool
    keys: str


# `less`: compare positions. `name_in`: the stream in a member of the label index, behind the first
# zero byte that is not an escaped one. `members`: the members of a stream with packed labels, and
# whether it is deleted.
_LESS = r"""
local function less(a, b)
  if #a ~= #b then
    return #a < #b
  end
  return a < b
end
"""

_SHARED = (
    _LESS
    + r"""
local base = string.sub(KEYS[1], 1, -2)
local function split(head)
  return string.match(head, '^(%d+):([^:]*):(%d+):(.*)$')
end
local function name_in(member)
  local at = 0
  repeat
    at = string.find(member, '%z', at + 1)
  until string.byte(member, at + 1) ~= 255
  return string.sub(member, at + 1)
end
local function members(labels, name)
  local found, deleted = {}, false
  for _, label in ipairs(cmsgpack.unpack(labels)) do
    deleted = deleted or label == 'deleted'
    found[(string.gsub(label, '%z', '\0\255')) .. '\0' .. name] = true
  end
  return found, deleted
end
"""
)

# Arguments: whether all or none, the channel; of each append the stream, the position before it
# (empty: it begins the stream), the digest before it, its head and its packed labels, the number of
# entries, and of each the id, the header and the body. Returns 1 (stored) or 0 (look at the stream)
# for each, or the text of an error.
_APPEND = r"""
local together, channel = ARGV[1] == '1', ARGV[2]
local appends, at, all_fit = {}, 3, true
while ARGV[at] do
  local append = {name = ARGV[at], head = ARGV[at + 3], labels = ARGV[at + 4], first = at + 6}
  append.last = at + 5 + 3 * tonumber(ARGV[at + 5])
  local old = redis.call('HGET', base .. 'h', append.name)
  if old then
    local position, digest, _, labels = split(old)
    append.old = labels
    append.fits = position == ARGV[at + 1] and digest == ARGV[at + 2]
  else
    append.fits = ARGV[at + 1] == ''
  end
  if together and append.fits then
    local tip = redis.call('XREVRANGE', base .. 'e:' .. append.name, '+', '-', 'COUNT', 1)[1]
    append.fits = (tip and string.match(tip[1], '%-(%d+)$') or '') == ARGV[at + 1]
  end
  all_fit = all_fit and append.fits
  appends[#appends + 1] = append
  at = append.last + 1
end
local results, score, now = {}, nil, nil
for number, append in ipairs(appends) do
  results[number] = 0
  if append.fits and (all_fit or not together) then
    local key, failed = base .. 'e:' .. append.name, nil
    for entry = append.first, append.last, 3 do
      local reply = redis.pcall(
        'XADD', key, ARGV[entry], 'h', ARGV[entry + 1], 'b', ARGV[entry + 2])
      if type(reply) == 'table' and reply.err then
        failed = reply
        break
      end
    end
    if failed and not score then
      return failed
    elseif failed then
      results[number] = failed.err
    else
      if not score then
        local time = redis.call('TIME')
        now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
        score = tonumber(time[1]) * 1000000 + tonumber(time[2])
        local newest = redis.call('ZREVRANGE', base .. 'r', 0, 0, 'WITHSCORES')[2]
        if newest and tonumber(newest) >= score then
          score = tonumber(newest) + 1
        end
      else
        score = score + 1
      end
      redis.call('HSET', base .. 'h', append.name, append.head)
      local recent = 'r'
      if append.old ~= append.labels then
        local new, deleted = members(append.labels, append.name)
        local old, was_deleted = {}, nil
        if append.old then
          old, was_deleted = members(append.old, append.name)
        end
        for member in pairs(old) do
          if not new[member] then
            redis.call('ZREM', base .. 'x', member)
          end
        end
        for member in pairs(new) do
          if not old[member] then
            redis.call('ZADD', base .. 'x', 0, member)
          end
        end
        if deleted ~= was_deleted then
          if deleted then
            redis.call('ZREM', base .. 'n', append.name)
            redis.call('ZREM', base .. 'r', append.name)
          else
            redis.call('ZADD', base .. 'n', 0, append.name)
            redis.call('ZREM', base .. 'd', append.name)
          end
        end
        if deleted then
          recent = 'd'
        end
      elseif string.find(append.labels, 'deleted', 1, true) then
        local _, deleted = members(append.labels, append.name)
        recent = deleted and 'd' or 'r'
      end
      redis.call('ZADD', base .. recent, score, append.name)
      results[number] = 1
    end
  end
end
if score and redis.call('EXISTS', base .. 'w') == 1 then
  for number, append in ipairs(appends) do
    local until_time = results[number] == 1 and redis.call('ZSCORE', base .. 'w', append.name)
    if until_time and tonumber(until_time) > now then
      redis.pcall('PUBLISH', channel, append.name)
    end
  end
end
return results
"""

# Arguments: the stream, the position before the first of an append, the append's last position.
# Returns the head, and the id and the header of each entry that may cover these positions.
_LOOK = r"""
local key = base .. 'e:' .. ARGV[1]
local before = redis.call('XREVRANGE', key, ARGV[2], '-', 'COUNT', 1)[1]
local found = {redis.call('HGET', base .. 'h', ARGV[1])}
for _, entry in ipairs(redis.call('XRANGE', key, before and before[1] or '-', ARGV[3])) do
  found[#found + 1] = {entry[1], entry[2][2]}
end
return found
"""

# Arguments: the stream, where to begin (empty: at the end it reads from), whether in reverse, how
# many entries and bytes, the longest body (empty: any). Returns id, header and body of each.
_READ = r"""
local key, from, reverse = KEYS[1], ARGV[2], ARGV[3] == '1'
local count, bytes, longest = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
if reverse then
  from = from == '' and '+' or from
elseif from ~= '' then
  local covering = redis.call('XREVRANGE', key, from, '-', 'COUNT', 1)[1]
  if covering and not less(string.match(covering[1], '%-(%d+)$'), from) then
    from = covering[1]
  end
else
  from = '-'
end
local found, chunk = {}, 16
while #found < count and bytes > 0 do
  local size = math.min(chunk, count - #found)
  local entries = redis.call(
    reverse and 'XREVRANGE' or 'XRANGE', key, from, reverse and '-' or '+', 'COUNT', size)
  for _, entry in ipairs(entries) do
    local header, body = entry[2][2], entry[2][4]
    if longest and body and #body > longest then
      body = false
    end
    found[#found + 1] = {entry[1], header, body or false}
    bytes = bytes - #header - (body and #body or 0)
    from = '(' .. entry[1]
    if bytes <= 0 then
      break
    end
  end
  if bytes > 0 and #entries < size then
    return found
  end
  chunk = chunk * 4
end
found[#found + 1] = 'more'
return found
"""

# Arguments: the index ('n' names, 'x' labels, 'r' and 'd' times), where to begin and to end, how
# many, whether in reverse, whether with headers, whether with times. Returns of each the member,
# its time, the stream, its head and its last header.
_LIST = r"""
local index, count, reverse = ARGV[1], tonumber(ARGV[4]), ARGV[5] == '1'
local found = {}
local function add(member, name, time)
  local header = false
  if ARGV[6] == '1' then
    local tip = redis.call('XREVRANGE', base .. 'e:' .. name, '+', '-', 'COUNT', 1)[1]
    header = tip and tip[2][2] or false
  end
  if not time and ARGV[7] == '1' then
    time = redis.call('ZSCORE', base .. 'r', name) or redis.call('ZSCORE', base .. 'd', name)
  end
  found[#found + 1] = {member, time, name, redis.call('HGET', base .. 'h', name), header}
end
if index == 'r' or index == 'd' then
  local rows = redis.call('ZREVRANGEBYSCORE', base .. index, ARGV[2], ARGV[3], 'WITHSCORES',
    'LIMIT', 0, count)
  for at = 1, #rows, 2 do
    add(rows[at], rows[at], rows[at + 1])
  end
  return found
end
local rows = redis.call(reverse and 'ZREVRANGEBYLEX' or 'ZRANGEBYLEX', base .. index,
  ARGV[2], ARGV[3], 'LIMIT', 0, count)
for _, member in ipairs(rows) do
  add(member, index == 'n' and member or name_in(member), false)
end
return found
"""

# Arguments: the stream, the position. The bytes of dropped entries stay in the node of the stream
# that the first kept one is in, so a short rest is stored anew.
_DROP = r"""
local key, before = KEYS[1], ARGV[2]
local boundary = redis.call('XREVRANGE', key, ARGV[3], '-', 'COUNT', 1)[1]
local tip = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)[1]
if not boundary then
  return 0
end
local oldest = boundary[1]
if boundary[1] ~= tip[1] and less(string.match(oldest, '%-(%d+)$'), before) then
  oldest = before .. '-0'
end
if redis.call('XTRIM', key, 'MINID', '=', oldest) == 0 then
  return 0
end
if redis.call('XLEN', key) <= tonumber(ARGV[4]) then
  local kept = redis.call('XRANGE', key, '-', '+')
  redis.call('DEL', key)
  for _, entry in ipairs(kept) do
    redis.call('XADD', key, entry[1], unpack(entry[2]))
  end
end
return 1
"""

# Arguments: the stream, the digest of its head.
_REMOVE = r"""
local head = redis.call('HGET', base .. 'h', ARGV[1])
if not head then
  return 1
end
local _, digest, _, labels = split(head)
if digest ~= ARGV[2] then
  return 0
end
redis.call('HDEL', base .. 'h', ARGV[1])
redis.call('UNLINK', base .. 'e:' .. ARGV[1])
for member in pairs((members(labels, ARGV[1]))) do
  redis.call('ZREM', base .. 'x', member)
end
for _, index in ipairs({'n', 'r', 'd', 'w'}) do
  redis.call('ZREM', base .. index, ARGV[1])
end
return 1
"""

# Arguments: the cursor and the number of heads. Returns the next cursor, and of each head with a
# problem the stream and a word for it.
_CHECK_HEADS = r"""
local page = redis.call('HSCAN', base .. 'h', ARGV[1], 'COUNT', ARGV[2])
local problems = {}
for at = 1, #page[2], 2 do
  local name, position, _, _, labels = page[2][at], split(page[2][at + 1])
  local problem = 'head'
  if position then
    local tip = redis.call('XREVRANGE', base .. 'e:' .. name, '+', '-', 'COUNT', 1)[1]
    local found, deleted = members(labels, name)
    problem = nil
    for member in pairs(found) do
      if not redis.call('ZSCORE', base .. 'x', member) then
        problem = 'label'
      end
    end
    if not redis.call('ZSCORE', base .. (deleted and 'd' or 'r'), name) then
      problem = 'time'
    end
    if not deleted and not redis.call('ZSCORE', base .. 'n', name) then
      problem = 'name'
    end
    if not tip or string.match(tip[1], '%-(%d+)$') ~= position then
      problem = 'tip'
    end
  end
  if problem then
    problems[#problems + 1] = {name, problem}
  end
end
return {page[1], problems}
"""

# Arguments: streams. Returns those that have entries and no head.
_CHECK_ENTRIES = r"""
local found = {}
for _, name in ipairs(ARGV) do
  if redis.call('EXISTS', base .. 'e:' .. name) == 1
    and redis.call('HEXISTS', base .. 'h', name) == 0 then
    found[#found + 1] = name
  end
end
return found
"""

# Arguments: the layout, the number of buckets. Returns both as stored. It uses each command that
# writes, so that a user who lacks one of them gets an error before the first append, not in it.
_PREPARE = r"""
local probe = base .. 'p'
redis.call('XADD', probe, '1-1', 'h', '')
redis.call('XREVRANGE', probe, '+', '-')
redis.call('XRANGE', probe, '-', '+')
redis.call('XTRIM', probe, 'MINID', '=', '2-0')
redis.call('XLEN', probe)
redis.call('DEL', probe)
redis.call('ZADD', probe, 0, '')
redis.call('ZSCORE', probe, '')
redis.call('ZREVRANGE', probe, 0, 0)
redis.call('ZREM', probe, '')
redis.call('HSET', probe, '', '')
redis.call('HEXISTS', probe, '')
redis.call('HDEL', probe, '')
redis.call('EXISTS', probe)
redis.call('TIME')
redis.call('UNLINK', probe)
redis.call('SET', probe, '')
redis.call('DEL', probe)
redis.call('HSETNX', base .. 's', 'layout', ARGV[1])
redis.call('HSETNX', base .. 's', 'buckets', ARGV[2])
return redis.call('HMGET', base .. 's', 'layout', 'buckets')
"""

# Arguments: the stream, until when (milliseconds since 1970 by the server's clock: from now on).
_REGISTER = r"""
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local key = base .. 'w'
redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
redis.call('ZADD', key, now + tonumber(ARGV[2]), ARGV[1])
redis.call('PEXPIRE', key, ARGV[2])
return 1
"""

# A write that replicas confirm: if they have it, they have every write before it.
_BARRIER = r"""
return redis.call('SET', base .. 'b', '')
"""


def _script(text: str, keys: str, *, writes: bool) -> Script:
    whole = (_SHARED if "base" in text else _LESS) + text
    digest = sha1(whole.encode()).hexdigest()  # noqa: S324 - a server's name for it
    return Script(whole, digest, writes, keys)


APPEND = _script(_APPEND, "hnrdxe", writes=True)

LOOK = _script(_LOOK, "he", writes=False)

READ = _script(_READ, "e", writes=False)

LIST = _script(_LIST, "hnrdx", writes=False)

DROP = _script(_DROP, "e", writes=True)

REMOVE = _script(_REMOVE, "hnrdxwe", writes=True)

CHECK_HEADS = _script(_CHECK_HEADS, "hnrdx", writes=False)

CHECK_ENTRIES = _script(_CHECK_ENTRIES, "h", writes=False)

PREPARE = _script(_PREPARE, "s", writes=True)

REGISTER = _script(_REGISTER, "w", writes=True)

BARRIER = _script(_BARRIER, "b", writes=True)
