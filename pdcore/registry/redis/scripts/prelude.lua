-- What every script begins with: the names, the server's clock, and the only ways to write a key and end a lease.
--
-- STORE    hash  revision, timeline, run (the server's run id when the timeline began), view and side (the last
--                revision in each stream), reaped_at (ms)
-- ENTRIES  hash  key -> "create_revision mod_revision lease value" (lease 0: none)
-- NAMES    zset  every key at score 0, for ranges by prefix
-- LEASES   zset  lease -> when it ends, in ms of the server's clock
-- TTLS     hash  lease -> seconds
-- HELD     zset  "lease key" at score 0: what hangs on a lease
-- HOLES    zset  last revision before a restart -> first one after it; no revision between them is ever given again
-- streams  one entry per revision that changed something there, with the id "revision-0": first the field "after" =
--          "timeline last-revision-in-this-stream", then "gone" = deleted keys joined by NUL, then per put a field
--          "+key" = "create_revision lease value"
local STORE, ENTRIES, NAMES, LEASES, TTLS, HELD, HOLES = unpack(KEYS, 1, 7)
local STREAMS = { view = KEYS[8], side = KEYS[9] }
local HISTORY, JUMP, KEPT_HOLES = 10000, 1000000000, 1000

local function whole(number)
  return string.format('%.0f', number)
end

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function current_revision()
  return tonumber(redis.call('HGET', STORE, 'revision') or 1)
end

-- A server that was restarted may have lost its newest revisions, and whoever saw them still knows their numbers. So
-- that no other change gets one of these, revisions go on from the server's clock, in microseconds.
local function begin_timeline(run, timeline)
  local last = redis.call('HGET', STORE, 'revision')
  local first = 1
  if last then
    first = math.max(1000 * now_ms(), tonumber(last) + JUMP)
    redis.call('ZADD', HOLES, whole(first), last)
    redis.call('ZREMRANGEBYRANK', HOLES, 0, -1 - KEPT_HOLES)
  end
  redis.call('HSET', STORE, 'revision', whole(first), 'run', run, 'timeline', timeline)
end

local function next_revision(fresh_timeline)
  local run = redis.call('INFO', 'server'):match('run_id:(%w+)')
  if redis.call('HGET', STORE, 'run') ~= run then begin_timeline(run, fresh_timeline) end
  return whole(redis.call('HINCRBY', STORE, 'revision', 1))
end

-- Followers of the view must not wake for what changes beside it.
local function area_of(key)
  return key:find('^/[^/]*/[^/]*/side/') and 'side' or 'view'
end

local function changed_in(changes, key)
  local area = area_of(key)
  changes[area] = changes[area] or { gone = {}, puts = {} }
  return changes[area]
end

local function unhang(key, entry)
  local lease = entry:match('^%d+ %d+ (%d+) ')
  if lease ~= '0' then redis.call('ZREM', HELD, lease .. ' ' .. key) end
end

local function delete(key, entry, changes)
  unhang(key, entry)
  redis.call('HDEL', ENTRIES, key)
  redis.call('ZREM', NAMES, key)
  table.insert(changed_in(changes, key).gone, key)
end

local function put(key, value, lease, entry, revision, changes)
  local created = revision
  if entry then
    unhang(key, entry)
    created = entry:match('^%d+')
  else
    redis.call('ZADD', NAMES, 0, key)
  end
  if lease ~= '0' then redis.call('ZADD', HELD, 0, lease .. ' ' .. key) end
  redis.call('HSET', ENTRIES, key, created .. ' ' .. revision .. ' ' .. lease .. ' ' .. value)
  local puts = changed_in(changes, key).puts
  puts[#puts + 1] = '+' .. key
  puts[#puts + 1] = created .. ' ' .. lease .. ' ' .. value
end

local function publish(revision, changes)
  local timeline = redis.call('HGET', STORE, 'timeline')
  for area, changed in pairs(changes) do
    local fields = { 'after', timeline .. ' ' .. (redis.call('HGET', STORE, area) or '0') }
    if #changed.gone > 0 then
      fields[3], fields[4] = 'gone', table.concat(changed.gone, '\0')
    end
    for _, text in ipairs(changed.puts) do fields[#fields + 1] = text end
    redis.call('XADD', STREAMS[area], 'MAXLEN', '~', HISTORY, revision .. '-0', unpack(fields))
    redis.call('HSET', STORE, area, revision)
  end
end

local function held_by(lease)
  local keys = {}
  for _, member in ipairs(redis.call('ZRANGEBYLEX', HELD, '[' .. lease .. ' ', '(' .. lease .. '!')) do
    keys[#keys + 1] = member:sub(#lease + 2)
  end
  return keys
end

-- The lease's keys vanish in one revision; a lease without keys makes none.
local function end_lease(lease, fresh_timeline)
  redis.call('ZREM', LEASES, lease)
  redis.call('HDEL', TTLS, lease)
  local keys, changes = held_by(lease), {}
  if #keys == 0 then return end
  local revision = next_revision(fresh_timeline)
  for _, key in ipairs(keys) do
    delete(key, redis.call('HGET', ENTRIES, key), changes)
  end
  publish(revision, changes)
end

local function lives(lease, now)
  local ends = redis.call('ZSCORE', LEASES, lease)
  return ends and tonumber(ends) > now
end
