-- ARGV: lease, seconds. Answers 1, or 0 when there is such a lease already.
local lease, now = ARGV[1], now_ms()
if redis.call('ZSCORE', LEASES, lease) then return 0 end
if redis.call('ZCARD', LEASES) == 0 then redis.call('HSET', STORE, 'reaped_at', whole(now)) end
redis.call('ZADD', LEASES, whole(now + ARGV[2] * 1000), lease)
redis.call('HSET', TTLS, lease, ARGV[2])
return 1
