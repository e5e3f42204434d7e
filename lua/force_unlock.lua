-- force_unlock.lua: free the lock if the named owner holds it, and announce it; nothing after a limit.
--
-- KEYS[1]  lock     hash: owner -> hold count
-- ARGV[1]  owner    "clientId:threadId" of the holder to remove
-- ARGV[2]  limit    milliseconds of this server's clock, after which nothing is done; 0: no limit
-- ARGV[3]  channel  the unlock channel of the lock; empty: no message
-- ARGV[4]  way      'publish' (if not given), 'spublish', 'both', or 'auto': both if anybody here hears 'publish'
--
-- Returns
--    1  freed; a message was published unless the channel is empty
--    0  this owner does not hold it; nothing changed
--   -1  too late: the limit has passed; nothing changed

local owner, limit, channel, way = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4] or 'publish'

if limit > 0 then
  local time = redis.call('time')
  if time[1] * 1000 + time[2] / 1000 > limit then return -1 end
end
if redis.call('hexists', KEYS[1], owner) == 0 then return 0 end
-- Published first: if the message is refused, no waiter is left waiting for a free lock.
if channel ~= '' then
  if way ~= 'publish' then redis.call('spublish', channel, '0') end
  if way ~= 'spublish' and (way ~= 'auto' or redis.call('pubsub', 'numsub', channel)[2] > 0) then
    redis.call('publish', channel, '0')
  end
end
redis.call('del', KEYS[1])
return 1
