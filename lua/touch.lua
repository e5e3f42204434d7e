-- touch.lua: write something about a lock that is held, so that WAIT has something to wait for.
--
-- KEYS[1]  lock   hash: owner -> hold count
-- ARGV[1]  owner  "clientId:threadId"
--
-- Returns
--    1  written: count and lease are what they were
--    0  this owner does not hold it; nothing changed

local lock, owner = KEYS[1], ARGV[1]

if redis.call('hexists', lock, owner) == 0 then return 0 end
redis.call('hincrby', lock, owner, 0)
return 1
