-- ARGV: a revision somebody knows, then the areas they follow. Answers {revision, timeline, 1 if the known revision
-- was lost in a restart, the first revision from which all the areas can be followed, the last one in any of them}.
local known = tonumber(ARGV[1])
local hole = redis.call('ZRANGEBYSCORE', HOLES, whole(known), '+inf', 'LIMIT', 0, 1)[1]
local lost = hole and tonumber(hole) < known and 1 or 0
local floor, top = 0, 0
for at = 2, #ARGV do
  local last = tonumber(redis.call('HGET', STORE, ARGV[at]) or 0)
  local oldest = redis.call('XRANGE', STREAMS[ARGV[at]], '-', '+', 'COUNT', 1)[1]
  local follows = oldest and tonumber(oldest[2][2]:match(' (%d+)$')) or last
  floor, top = math.max(floor, follows), math.max(top, last)
end
return { current_revision(), redis.call('HGET', STORE, 'timeline') or '', lost, floor, top }
