-- ARGV: fresh timeline, lease. Answers its seconds, 0 when it is gone. One past its end is ended, not revived: its
-- keys may be gone from somebody's view already.
local lease, now = ARGV[2], now_ms()
if not lives(lease, now) then
  end_lease(lease, ARGV[1])
  return 0
end
local ttl = tonumber(redis.call('HGET', TTLS, lease))
redis.call('ZADD', LEASES, whole(now + ttl * 1000), lease)
return ttl
