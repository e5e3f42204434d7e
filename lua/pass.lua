-- pass.lua: hand the lock from its holder to another owner of the same client.
--
-- KEYS[1]  lock     hash: owner -> hold count
-- ARGV[1]  from     "clientId:threadId" of the holder
-- ARGV[2]  to       "clientId:threadId" of the receiver, which holds nothing yet; its hold count becomes 1
-- ARGV[3]  lease    milliseconds of the receiver's lease, at least 1
-- ARGV[4]  channel  the unlock channel of the lock; there is a message only if the lease becomes shorter. Empty: none
-- ARGV[5]  way      'publish' (if not given), 'spublish', 'both', or 'auto': both if anybody here hears 'publish'
--
-- Returns
--    1  passed: the receiver holds the lock, now or since an earlier copy of this call
--    0  gone: there is no such key; nothing changed
--   -1  taken: another owner holds the lock; nothing changed

local from, to, lease_ms, channel, way = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5] or 'publish'

if redis.call('hexists', KEYS[1], from) == 1 then
  -- Changes nothing, the receiver has no field: a missing permission fails here and not when both have one.
  -- And a server that is out of memory lets a script continue after its first write.
  redis.call('hdel', KEYS[1], to)
  -- Who waits was told the longer lease, or that there is none, and would sleep beside a key that may be gone before.
  local left = redis.call('pttl', KEYS[1])
  if channel ~= '' and (left < 0 or left > tonumber(lease_ms)) then
    if way ~= 'publish' then redis.call('spublish', channel, '0') end
    if way ~= 'spublish' and (way ~= 'auto' or redis.call('pubsub', 'numsub', channel)[2] > 0) then
      redis.call('publish', channel, '0')
    end
  end
  -- The receiver's own lease, shorter perhaps: what was promised to the holder's holds is over.
  redis.call('pexpire', KEYS[1], lease_ms)
  redis.call('hincrby', KEYS[1], to, 1)
  redis.call('hdel', KEYS[1], from)
  -- Read after it was written, as in acquire.lua.
  redis.call('pttl', KEYS[1])
  return 1
end

if redis.call('hexists', KEYS[1], to) == 1 then
  local left = redis.call('pttl', KEYS[1])
  redis.call('pexpire', KEYS[1], left < tonumber(lease_ms) and lease_ms or left)
  redis.call('pttl', KEYS[1])
  return 1
end
return -redis.call('exists', KEYS[1])
