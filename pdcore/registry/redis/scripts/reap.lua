-- ARGV: fresh timeline, most leases to end, most ms between two reaps. Answers the ms until the next lease ends, -1
-- when there is none.
local now, limit, longest = now_ms(), tonumber(ARGV[2]), tonumber(ARGV[3])
local reaped_at = tonumber(redis.call('HGET', STORE, 'reaped_at') or now)

if redis.call('ZCARD', LEASES) == 0 then return -1 end
-- Nobody came for so long: the server was stopped or unreachable, so no holder could renew. All begin anew.
if now - reaped_at > longest then
  for _, lease in ipairs(redis.call('ZRANGE', LEASES, 0, -1)) do
    local ends = now + redis.call('HGET', TTLS, lease) * 1000
    redis.call('ZADD', LEASES, 'GT', whole(ends), lease)
  end
end
if math.abs(now - reaped_at) >= 1000 then redis.call('HSET', STORE, 'reaped_at', whole(now)) end

for _, lease in ipairs(redis.call('ZRANGEBYSCORE', LEASES, '-inf', whole(now), 'LIMIT', 0, limit)) do
  end_lease(lease, ARGV[1])
end
local next_end = redis.call('ZRANGE', LEASES, 0, 0, 'WITHSCORES')[2]
return next_end and math.max(0, tonumber(next_end) - now) or -1
