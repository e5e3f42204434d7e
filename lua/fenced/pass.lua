-- fenced/pass.lua: as pass.lua; the receiver has a token of its own.
--
-- KEYS[1]  lock     hash: owner -> hold count
-- KEYS[2]  token    integer, without an expiry: how often the lock was taken
-- ARGV[1]  from     "clientId:threadId" of the holder
-- ARGV[2]  to       "clientId:threadId" of the receiver, which holds nothing yet; its hold count becomes 1
-- ARGV[3]  lease    milliseconds of the receiver's lease, at least 1
-- ARGV[4]  channel  the unlock channel of the lock; there is a message only if the lease becomes shorter
-- ARGV[5]  way      'publish' (if not given), 'spublish', 'both', or 'auto': both if anybody here hears 'publish'
--
-- Returns
--   token  passed: the receiver's token, as text; it holds the lock, now or since an earlier copy of this call
--    0     gone: there is no such key; nothing changed
--   -1     taken: another owner holds the lock; nothing changed
--   -4     no token: its key has no number; the lock did not change

local from, to, lease_ms = ARGV[1], ARGV[2], ARGV[3]
local channel, way = ARGV[4], ARGV[5] or 'publish'

if redis.call('hexists', KEYS[1], from) == 1 then
  -- Changes nothing, as in pass.lua.
  redis.call('hdel', KEYS[1], to)
  local raised = redis.pcall('incr', KEYS[2])
  if type(raised) == 'table' then
    local known = string.find(raised.err, 'WRONGTYPE', 1, true) or string.find(raised.err, 'integer', 1, true)
    if not known and not string.find(raised.err, 'overflow', 1, true) then return raised end
    return -4
  end
  if raised < 1 then return -4 end
  redis.call('persist', KEYS[2])
  local token = redis.call('get', KEYS[2])
  -- Who waits was told the longer lease, or that there is none, and would sleep beside a key that may be gone before.
  local left = redis.call('pttl', KEYS[1])
  if left < 0 or left > tonumber(lease_ms) then
    if way ~= 'publish' then redis.call('spublish', channel, '0') end
    if way ~= 'spublish' and (way ~= 'auto' or redis.call('pubsub', 'numsub', channel)[2] > 0) then
      redis.call('publish', channel, '0')
    end
  end
  redis.call('pexpire', KEYS[1], lease_ms)
  redis.call('hincrby', KEYS[1], to, 1)
  redis.call('hdel', KEYS[1], from)
  -- Read after it was written, as in acquire.lua.
  redis.call('pttl', KEYS[1])
  return token
end

if redis.call('hexists', KEYS[1], to) == 1 then
  local token = redis.pcall('get', KEYS[2])
  if type(token) == 'table' and not string.find(token.err, 'WRONGTYPE', 1, true) then return token end
  if type(token) ~= 'string' or not string.find(token, '^[1-9]%d*$') then return -4 end
  local left = redis.call('pttl', KEYS[1])
  redis.call('pexpire', KEYS[1], left < tonumber(lease_ms) and lease_ms or left)
  redis.call('pttl', KEYS[1])
  return token
end
return -redis.call('exists', KEYS[1])
