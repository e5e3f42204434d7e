-- inspect.lua: the holder of the lock, its hold count, and the time left on the lease.
--
-- KEYS[1]  lock  hash: owner -> hold count
-- ARGV[1]  with  'time' to read the server's clock too, if this user may
--
-- Returns
--   nil                          free
--   {left, holder, count, time}  held: milliseconds left (-1: no expiry), the holder's field, its hold count, and
--                                the server's clock in milliseconds (-1: not asked for, or not permitted)
--   {-3, found}                  not a lock: what was found instead

local fields = redis.call('hlen', KEYS[1])
if fields == 0 then return nil end
if fields ~= 1 then return {-3, 'a hash of another kind'} end
local holder = redis.call('hkeys', KEYS[1])[1]
local count = redis.call('hget', KEYS[1], holder)
if not string.find(count, '^%d+$') or #count > 10 then return {-3, 'a non-numeric hold count'} end
local time = -1
if ARGV[1] == 'time' then
  local clock = redis.pcall('time')
  if not clock.err then time = clock[1] * 1000 + clock[2] / 1000 end
end
return {redis.call('pttl', KEYS[1]), holder, count, time}
