-- force_unlock.lua: free the lock if the named owner holds it, and announce it.
--
-- KEYS[1]  lock     hash: owner -> hold count
-- ARGV[1]  owner    "clientId:threadId" of the holder to remove
-- ARGV[2]  channel  the unlock channel of the lock
-- ARGV[3]  way      'publish' (if not given), 'spublish', 'both', or 'auto': both if anybody here hears 'publish'
--
-- Returns
--   1  freed, and a message was published
--   0  this owner does not hold it; nothing changed

local lock, owner, channel, way = KEYS[1], ARGV[1], ARGV[2], ARGV[3] or 'publish'

if redis.call('hexists', lock, owner) == 0 then return 0 end
-- Published first: if the message is refused, no waiter is left waiting for a free lock.
if way ~= 'publish' then redis.call('spublish', channel, '0') end
if way ~= 'spublish' and (way ~= 'auto' or redis.call('pubsub', 'numsub', channel)[2] > 0) then
  redis.call('publish', channel, '0')
end
redis.call('del', lock)
return 1
