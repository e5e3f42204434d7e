-- pass.lua: give the lock to the next owner, with one call. Only the benchmarks use it, as a floor.
--
-- KEYS[1]  lock   hash: owner -> hold count
-- ARGV[1]  from   "clientId:threadId" of the holder, or of the owner that takes a free lock
-- ARGV[2]  to     "clientId:threadId" of the next holder
-- ARGV[3]  lease  milliseconds
--
-- Returns
--   1  passed
--   0  another owner holds it; nothing changed

local lock, from, to, lease_ms = KEYS[1], ARGV[1], ARGV[2], ARGV[3]

if redis.call('hdel', lock, from) == 0 and redis.call('exists', lock) == 1 then return 0 end
redis.call('hincrby', lock, to, 1)
redis.call('pexpire', lock, lease_ms)
return 1
