-- ARGV: fresh timeline, number of conditions, per condition kind key argument, per write lease key value
-- (lease "-": delete; 0: none). Answers {outcome, revision or lease}.
local fresh_timeline, conditions = ARGV[1], tonumber(ARGV[2])
local first_write = 3 + 3 * conditions

local function holds(kind, key, argument)
  local entry = redis.call('HGET', ENTRIES, key)
  if kind == 'absent' then return not entry end
  if not entry then return false end
  local mod_revision, value = entry:match('^%d+ (%d+) %d+ (.*)$')
  if kind == 'value' then return value == argument end
  return mod_revision == argument
end

for at = 3, first_write - 1, 3 do
  if not holds(ARGV[at], ARGV[at + 1], ARGV[at + 2]) then return { 'refused', current_revision() } end
end

local now, changing = now_ms(), false
for at = first_write, #ARGV, 3 do
  local lease, key = ARGV[at], ARGV[at + 1]
  if lease ~= '-' and lease ~= '0' and not lives(lease, now) then return { 'gone', lease } end
  changing = changing or lease ~= '-' or redis.call('HEXISTS', ENTRIES, key) == 1
end
if not changing then return { 'done', current_revision() } end

local revision, changes = next_revision(fresh_timeline), {}
for at = first_write, #ARGV, 3 do
  local lease, key = ARGV[at], ARGV[at + 1]
  local entry = redis.call('HGET', ENTRIES, key)
  if lease ~= '-' then
    put(key, ARGV[at + 2], lease, entry, revision, changes)
  elseif entry then
    delete(key, entry, changes)
  end
end
publish(revision, changes)
return { 'done', tonumber(revision) }
