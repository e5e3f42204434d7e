-- force_unlock.lua: free the lock if the named owner holds it, and announce it.
--
-- KEYS[1]  lock     hash: owner -> hold count
-- ARGV[1]  owner    "clientId:threadId" of the holder to remove
-- ARGV[2]  channel  the unlock channel of the lock
--
-- Returns
--   1  freed, and a message was published
--   0  this owner does not hold it; nothing changed

local lock, owner, channel = KEYS[1], ARGV[1], ARGV[2]

if redis.call('hexists', lock, owner) == 0 then return 0 end
-- Published first: if the message is refused, no waiter is left waiting for a free lock.
redis.call('publish', channel, '0')
redis.call('del', lock)
return 1
