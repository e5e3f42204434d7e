-- fair/force_unlock.lua: free the lock if the named owner holds it, and tell the owner whose turn it is; nothing after
-- a limit.
--
-- What is sent has fair/queue.lua before this text.
--
-- KEYS[1]  lock     hash: owner -> hold count
-- KEYS     queue and timeouts, as in fair/queue.lua
-- ARGV[1]  owner    "clientId:threadId" of the holder to remove
-- ARGV[2]  limit    milliseconds of this server's clock, after which nothing is done; 0: no limit
-- ARGV[3]  channel  the owner whose turn it is hears `channel:owner`
-- ARGV[4]  way      'publish' (if not given), 'spublish', 'both', or 'auto': both if anybody here hears 'publish'
--
-- Returns
--    1  freed; the owner whose turn it is was told, if one waits
--    0  this owner does not hold it; nothing changed
--   -1  too late: the limit has passed; nothing changed

local owner, limit, channel, way = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4] or 'publish'

local now = clock()
if limit > 0 and now > limit then return -1 end
if redis.call('hexists', KEYS[1], owner) == 0 then return 0 end
local ended, head = front(now, nil, {})
if #ended > 0 then may_change() end
-- Published first, as in release.lua.
if head then tell(head, channel, way) end
redis.call('del', KEYS[1])
remove(ended)
return 1
