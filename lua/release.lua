-- release.lua: lower this owner's hold count to the target; at 0 frees the lock and announces it.
--
-- KEYS[1]  lock     hash: owner -> hold count
-- ARGV[1]  owner    "clientId:threadId"
-- ARGV[2]  target   hold count to set, 0 to 4294967295
-- ARGV[3]  lease    milliseconds promised to the remaining holds, at least 1
-- ARGV[4]  channel  the unlock channel of the lock; empty: no message
-- ARGV[5]  way      'publish' (if not given), 'spublish', 'both', or 'auto': both if anybody here hears 'publish'
--
-- Returns
--    1  released: the count is the target
--  1+n  released: the lock is free, and n connections have got the message
--    0  gone: there is no such key; nothing changed
--   -1  taken: another owner holds the lock; nothing changed
--   -3  not a lock: the count is not a number; nothing changed

local owner, target, lease_ms, channel, way = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5] or 'publish'

local count = redis.call('hget', KEYS[1], owner)
if not count then return -redis.call('exists', KEYS[1]) end

if target == '0' then
  -- Published first: if the message is refused, the lock is still there to be released again.
  local heard = 0
  if channel ~= '' then
    if way ~= 'publish' then heard = redis.call('spublish', channel, '0') end
    if way ~= 'spublish' and (way ~= 'auto' or redis.call('pubsub', 'numsub', channel)[2] > 0) then
      heard = heard + redis.call('publish', channel, '0')
    end
  end
  redis.call('del', KEYS[1])
  return 1 + heard
end

if not string.find(count, '^%d+$') or #count > 10 then return -3 end
-- The lease is written first, as in acquire.lua.
local left = redis.call('pttl', KEYS[1])
redis.call('pexpire', KEYS[1], left < tonumber(lease_ms) and lease_ms or left)
local step = tonumber(target) - tonumber(count)
if step ~= 0 then redis.call('hincrby', KEYS[1], owner, string.format('%d', step)) end
-- Read after it was written, as in acquire.lua.
redis.call('pttl', KEYS[1])
return 1
