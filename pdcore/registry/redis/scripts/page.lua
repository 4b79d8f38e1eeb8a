-- ARGV: first and last name as bounds of a lexicographical range, most keys, most bytes. Answers {revision, timeline,
-- 1 if more keys follow, {key, entry, ...}}.
local limit, room = tonumber(ARGV[3]), tonumber(ARGV[4])
local found, more = {}, 0
for _, key in ipairs(redis.call('ZRANGEBYLEX', NAMES, ARGV[1], ARGV[2], 'LIMIT', 0, limit + 1)) do
  if #found == 2 * limit or room <= 0 then
    more = 1
    break
  end
  local entry = redis.call('HGET', ENTRIES, key)
  found[#found + 1] = key
  found[#found + 1] = entry
  room = room - #key - #entry
end
return { current_revision(), redis.call('HGET', STORE, 'timeline') or '', more, found }
