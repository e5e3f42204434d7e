-- string/inspect.lua: the value of the lock, and the time left on the lease.
--
-- KEYS[1]  lock  string: value of the holder
-- ARGV[1]  with  'time' to read the server's clock too, if this user may
--
-- Returns
--   nil                         free
--   {left, value, count, time}  held: milliseconds left (-1: no expiry), the value, '1', and the server's clock in
--                               milliseconds (-1: not asked for, or not permitted)
-- A key of another type is refused with WRONGTYPE, which the client reports as NotALock.

local value = redis.call('get', KEYS[1])
if not value then return nil end
local time = -1
if ARGV[1] == 'time' then
  local clock = redis.pcall('time')
  if not clock.err then time = clock[1] * 1000 + clock[2] / 1000 end
end
return {redis.call('pttl', KEYS[1]), value, '1', time}
