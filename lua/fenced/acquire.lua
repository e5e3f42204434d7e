-- fenced/acquire.lua: as acquire.lua; a taken lock has a token that is larger than all before.
--
-- KEYS[1]  lock    hash: owner -> hold count
-- KEYS[2]  token   integer, without an expiry: how often the lock was taken
-- ARGV[1]  owner   "clientId:threadId"
-- ARGV[2]  target  hold count to set, 1 to 4294967295
-- ARGV[3]  lease   milliseconds, at least 1
--
-- Returns
--   token            taken: the token of this owner, as text; the count is the target, at least the lease is left
--   0                lost: the target is above 1 and this owner holds nothing; nothing changed
--   {left, holder}   busy: milliseconds left (-1: no expiry) and the holder's field
--   {-3, found}      not a lock: what was found instead; nothing changed
--   {-4, found}      no token: what its key has instead; the lock did not change

local owner, target, lease_ms = ARGV[1], ARGV[2], ARGV[3]

local count = redis.call('hget', KEYS[1], owner)
if count then
  if not string.find(count, '^%d+$') or #count > 10 then return {-3, 'a non-numeric hold count'} end
  -- While the field is there no other owner raises the token: an earlier copy of this call did, or an outer hold.
  local token = redis.pcall('get', KEYS[2])
  if type(token) == 'table' and not string.find(token.err, 'WRONGTYPE', 1, true) then return token end
  if type(token) ~= 'string' or not string.find(token, '^[1-9]%d*$') then return {-4, 'no token'} end
  redis.call('persist', KEYS[2])
  -- The lease is written first, as in acquire.lua.
  local left = redis.call('pttl', KEYS[1])
  redis.call('pexpire', KEYS[1], left < tonumber(lease_ms) and lease_ms or left)
  local step = tonumber(target) - tonumber(count)
  if step ~= 0 then redis.call('hincrby', KEYS[1], owner, string.format('%d', step)) end
  -- Read after it was written, as in acquire.lua.
  redis.call('pttl', KEYS[1])
  return token
end

if redis.call('exists', KEYS[1]) == 0 then
  if target ~= '1' then return 0 end
  -- Returns 0 while the key is absent: an invalid lease or a missing permission fails here, before any write.
  redis.call('pexpire', KEYS[1], lease_ms)
  -- pcall, so that a key of another type or without a number is not taken for the lock. A number that is raised
  -- and not used does no harm.
  local raised = redis.pcall('incr', KEYS[2])
  if type(raised) == 'table' then
    local known = string.find(raised.err, 'WRONGTYPE', 1, true) or string.find(raised.err, 'integer', 1, true)
    if not known and not string.find(raised.err, 'overflow', 1, true) then return raised end
    return {-4, 'no integer'}
  end
  if raised < 1 then return {-4, 'a number below 1'} end
  redis.call('persist', KEYS[2])
  -- As text: a number of Lua is exact up to 2^53 only.
  local token = redis.call('get', KEYS[2])
  redis.call('hincrby', KEYS[1], owner, 1)
  redis.call('pexpire', KEYS[1], lease_ms)
  redis.call('exists', KEYS[1])
  return token
end

if redis.call('hlen', KEYS[1]) ~= 1 then return {-3, 'a hash of another kind'} end
local holder = redis.call('hkeys', KEYS[1])[1]
count = redis.call('hget', KEYS[1], holder)
if not string.find(count, '^%d+$') or #count > 10 then return {-3, 'a non-numeric hold count'} end
if target ~= '1' then return 0 end
return {redis.call('pttl', KEYS[1]), holder}
