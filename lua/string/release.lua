-- string/release.lua: delete the key if it has this value. No message: those who wait pause.
--
-- KEYS[1]  lock    string: value of the holder
-- ARGV[1]  value   "clientId:number", of one acquisition
-- ARGV[2]  target  hold count to go to: 0, or 1 if the hold stays
-- ARGV[3]  lease   milliseconds promised to the hold that stays, at least 1
--
-- Returns
--    1  released: the key is gone; or it stays, for at least the lease
--    0  gone: there is no such key; nothing changed
--   -1  taken: the key has another value; nothing changed
-- A key of another type is refused with WRONGTYPE, which the client reports as NotALock.

local value, target, lease_ms = ARGV[1], ARGV[2], ARGV[3]

local holder = redis.call('get', KEYS[1])
if holder ~= value then return holder and -1 or 0 end
if target == '0' then
  redis.call('del', KEYS[1])
  return 1
end
local left = redis.call('pttl', KEYS[1])
redis.call('pexpire', KEYS[1], left < tonumber(lease_ms) and lease_ms or left)
-- Read after it was written, as in acquire.lua.
redis.call('pttl', KEYS[1])
return 1
