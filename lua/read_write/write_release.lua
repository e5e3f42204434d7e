-- read_write/write_release.lua: lower the number of this owner's write holds; at 0 frees the lock, or leaves it to this
-- owner's read holds, and announces it.
--
-- KEYS[1]  lock     hash: mode -> "read" or "write", reader -> hold count, "writer:write" -> hold count
-- ARGV[1]  field    "clientId:threadId:write"
-- ARGV[2]  target   hold count to set, 0 to 4294967295
-- ARGV[3]  lease    milliseconds promised to the remaining holds, at least 1
-- ARGV[4]  channel  the unlock channel of the lock
-- ARGV[5]  way      'publish' (if not given), 'spublish', 'both', or 'auto': both if anybody here hears 'publish'
--
-- Returns
--    1  released: the count is the target
--  1+n  released: the lock is free, or others may read beside this owner, and n connections have got the first message
--    0  gone: there is no such key; nothing changed
--   -1  taken: this owner does not write, and holds are left; nothing changed
--   -3  not a lock: a hash of another kind, or the count is not a number; nothing changed

local lock, field, target, lease_ms, channel, way = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5] or 'publish'

local mode = redis.call('hget', KEYS[1], 'mode')
local count = redis.call('hget', KEYS[1], field)
if not mode then return -3 * redis.call('exists', KEYS[1]) end
if not count then return -1 end
if target ~= '0' then
  if not string.find(count, '^%d+$') or #count > 10 then return -3 end
  -- The lease is written first, as in acquire.lua.
  local left = redis.call('pttl', KEYS[1])
  redis.call('pexpire', KEYS[1], left < tonumber(lease_ms) and lease_ms or left)
  redis.call('hset', KEYS[1], field, target)
  -- Read after it was written, as in acquire.lua.
  redis.call('pttl', KEYS[1])
  return 1
end

local reads = redis.call('hlen', KEYS[1]) > 2
-- A missing permission fails here, as in read_acquire.lua.
if reads then
  redis.call('hdel', KEYS[1], '')
  redis.call('hset', KEYS[1], 'mode', 'write')
end
-- Published first: if the message is refused, the lock is still there to be released again. In Redisson `1` wakes all
-- readers that wait, since 3.8.2; `0` wakes one, also in older versions, and one that is about to wait.
local heard = 0
for _, message in ipairs({'1', '0'}) do
  local got = way ~= 'publish' and redis.call('spublish', channel, message) or 0
  if way ~= 'spublish' and (way ~= 'auto' or redis.call('pubsub', 'numsub', channel)[2] > 0) then
    got = got + redis.call('publish', channel, message)
  end
  heard = math.max(heard, got)
end
if reads then
  redis.call('hset', KEYS[1], 'mode', 'read')
  redis.call('hdel', KEYS[1], field)
  -- Read after it was written, as in acquire.lua.
  redis.call('hlen', KEYS[1])
else
  redis.call('del', KEYS[1])
end
return 1 + heard
