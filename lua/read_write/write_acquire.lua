-- read_write/write_acquire.lua: set the number of this owner's write holds; takes a free lock, reports a busy one.
--
-- KEYS[1]  lock    hash: mode -> "read" or "write", reader -> hold count, "writer:write" -> hold count
-- ARGV[1]  field   "clientId:threadId:write"
-- ARGV[2]  target  hold count to set, 1 to 4294967295
-- ARGV[3]  lease   milliseconds, at least 1
--
-- Returns
--   1               taken: the count is the target, at least the lease is left
--   0               lost: the target is above 1 and this owner does not write; nothing changed
--   {left, holder}  busy: milliseconds left (-1: no expiry) and the writer's field, or that of a reader
--   {-3, found}     not a lock: what was found instead; nothing changed
--   {-6, left}      this owner reads, and would wait for itself; nothing changed

local lock, field, target, lease_ms = KEYS[1], ARGV[1], ARGV[2], ARGV[3]

local mode = redis.call('hget', KEYS[1], 'mode')
local left = redis.call('pttl', KEYS[1])
if left ~= -2 and mode ~= 'read' and mode ~= 'write' then return {-3, 'a hash of another kind'} end
local count = redis.call('hget', KEYS[1], field)
if count then
  if not string.find(count, '^%d+$') or #count > 10 then return {-3, 'a non-numeric hold count'} end
  -- The lease is written first, as in acquire.lua.
  redis.call('pexpire', KEYS[1], left < tonumber(lease_ms) and lease_ms or left)
  redis.call('hset', KEYS[1], field, target)
  -- Read after it was written, as in acquire.lua.
  redis.call('pttl', KEYS[1])
  return 1
end
if target ~= '1' then return 0 end
if left == -2 then
  -- Returns 0 while the key is absent: an invalid lease or a missing permission fails here, before any write.
  redis.call('pexpire', KEYS[1], lease_ms)
  redis.call('hset', KEYS[1], 'mode', 'write', field, 1)
  redis.call('pexpire', KEYS[1], lease_ms)
  redis.call('pttl', KEYS[1])
  return 1
end
if redis.call('hexists', KEYS[1], string.sub(field, 1, -#':write' - 1)) == 1 then return {-6, left} end
local holder = false
for _, other in ipairs(redis.call('hkeys', KEYS[1])) do
  if other ~= 'mode' and (not holder or string.find(other, ':write$')) then holder = other end
end
if not holder then return {-3, 'no holder'} end
count = redis.call('hget', KEYS[1], holder)
local digits = string.find(holder, ':write$') and 10 or 5
if not string.find(count, '^%d+$') or #count > digits then return {-3, 'a non-numeric hold count'} end
return {left, holder}
