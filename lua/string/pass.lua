-- string/pass.lua: replace the holder's value by that of another acquisition of the same client.
--
-- KEYS[1]  lock   string: value of the holder
-- ARGV[1]  from   "clientId:number" of the holder
-- ARGV[2]  to     "clientId:number" of the receiver
-- ARGV[3]  lease  milliseconds of the receiver's lease, at least 1
--
-- Returns
--    1  passed: the receiver holds the lock, now or since an earlier copy of this call
--    0  gone: there is no such key; nothing changed
--   -1  taken: the key has another value; nothing changed
-- A key of another type is refused with WRONGTYPE, which the client reports as NotALock.

local from, to, lease_ms = ARGV[1], ARGV[2], ARGV[3]

local holder = redis.call('get', KEYS[1])
if holder == from then
  redis.call('set', KEYS[1], to, 'px', lease_ms)
  -- Read after it was written, as in acquire.lua.
  redis.call('get', KEYS[1])
  return 1
end
if holder == to then
  local left = redis.call('pttl', KEYS[1])
  redis.call('pexpire', KEYS[1], left < tonumber(lease_ms) and lease_ms or left)
  redis.call('pttl', KEYS[1])
  return 1
end
return holder and -1 or 0
