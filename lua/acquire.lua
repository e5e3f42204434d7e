-- acquire.lua: set this owner's hold count to the target; takes a free lock, reports a busy one.
--
-- KEYS[1]  lock    hash: owner -> hold count
-- ARGV[1]  owner   "clientId:threadId"
-- ARGV[2]  target  hold count to set, 1 to 4294967295
-- ARGV[3]  lease   milliseconds, at least 1
--
-- Returns
--   1                taken: the count is the target, at least the lease is left
--   0                lost: the target is above 1 and this owner holds nothing; nothing changed
--   {left, holder}   busy: milliseconds left (-1: no expiry) and the holder's field
--   {-3, found}      not a lock: what was found instead; nothing changed

local owner, target, lease_ms = ARGV[1], ARGV[2], ARGV[3]

local count = redis.call('hget', KEYS[1], owner)
if count then
  if not string.find(count, '^%d+$') or #count > 10 then return {-3, 'a non-numeric hold count'} end
  -- The lease is written first: if a later step is refused, no count is left with too short a lease. And a
  -- server that is out of memory lets a script continue after its first write.
  local left = redis.call('pttl', KEYS[1])
  redis.call('pexpire', KEYS[1], left < tonumber(lease_ms) and lease_ms or left)
  local step = tonumber(target) - tonumber(count)
  if step ~= 0 then redis.call('hincrby', KEYS[1], owner, string.format('%d', step)) end
  -- Read after it was written, so that the server reports the next change by another connection. By a command that was
  -- permitted before: what fails here has changed the lock.
  redis.call('pttl', KEYS[1])
  return 1
end

if redis.call('exists', KEYS[1]) == 0 then
  if target ~= '1' then return 0 end
  -- Returns 0 while the key is absent: an invalid lease or a missing permission fails here, before any write.
  redis.call('pexpire', KEYS[1], lease_ms)
  redis.call('hincrby', KEYS[1], owner, 1)
  redis.call('pexpire', KEYS[1], lease_ms)
  -- 1, as above.
  return redis.call('exists', KEYS[1])
end

if redis.call('hlen', KEYS[1]) ~= 1 then return {-3, 'a hash of another kind'} end
local holder = redis.call('hkeys', KEYS[1])[1]
count = redis.call('hget', KEYS[1], holder)
if not string.find(count, '^%d+$') or #count > 10 then return {-3, 'a non-numeric hold count'} end
if target ~= '1' then return 0 end
return {redis.call('pttl', KEYS[1]), holder}
