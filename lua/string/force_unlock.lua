-- string/force_unlock.lua: delete the key if it has this value; nothing after a limit.
--
-- KEYS[1]  lock   string: value of the holder
-- ARGV[1]  value  of the holder to remove, any bytes
-- ARGV[2]  limit  milliseconds of this server's clock, after which nothing is done; 0: no limit
--
-- Returns
--    1  freed
--    0  the key has another value, or none; nothing changed
--   -1  too late: the limit has passed; nothing changed
-- A key of another type is refused with WRONGTYPE, which the client reports as NotALock.

local value, limit = ARGV[1], tonumber(ARGV[2])

if limit > 0 then
  local time = redis.call('time')
  if time[1] * 1000 + time[2] / 1000 > limit then return -1 end
end
if redis.call('get', KEYS[1]) ~= value then return 0 end
redis.call('del', KEYS[1])
return 1
