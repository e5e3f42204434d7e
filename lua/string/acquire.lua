-- string/acquire.lua: set the key to this value if it is absent; reports who has it otherwise.
--
-- KEYS[1]  lock    string: value of the holder
-- ARGV[1]  value   "clientId:number", of this acquisition alone
-- ARGV[2]  target  1 for a new hold; above 1 for a nested one, which only finds a value that is there already
-- ARGV[3]  lease   milliseconds, at least 1
--
-- Returns
--   1               taken: the key has the value, at least the lease is left
--   0               lost: the target is above 1 and the key has another value, or none; nothing changed
--   {left, holder}  busy: milliseconds left (-1: no expiry) and the start of the holder's value
-- A key of another type is refused with WRONGTYPE, which the client reports as NotALock.

local value, target, lease_ms = ARGV[1], ARGV[2], ARGV[3]

local holder = redis.call('get', KEYS[1])
if holder == value then
  local left = redis.call('pttl', KEYS[1])
  redis.call('pexpire', KEYS[1], left < tonumber(lease_ms) and lease_ms or left)
  -- Read after it was written, as in acquire.lua.
  redis.call('pttl', KEYS[1])
  return 1
end
if target ~= '1' then return 0 end
if not holder then
  -- A script is alone, so `nx` refuses nothing. With it this line can overwrite no holder, whatever stands above.
  redis.call('set', KEYS[1], value, 'nx', 'px', lease_ms)
  redis.call('get', KEYS[1])
  return 1
end
local left = redis.call('pttl', KEYS[1])
-- A value may be as large as Redis permits, and this one is only shown. force_unlock has all of it from inspect.
return {left, string.sub(holder, 1, 200)}
