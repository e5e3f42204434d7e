-- string/take_over.lua: as take_over.lua, for a key that has the value of its owner.
--
-- KEYS[1]  lock   string: value of the holder
-- ARGV[1]  value  "clientId:number", of this acquisition alone
-- ARGV[3]  lease  milliseconds, at least 1
-- ARGV[n]  from   the last one: the value that the key has
--
-- Returns what string/acquire.lua does, and
--   {-5, 0, from, -1}  the lock is free; nothing changed

local held = redis.call('get', KEYS[1])
if not held then return {-5, 0, ARGV[#ARGV], -1} end
if held == ARGV[#ARGV] then redis.call('set', KEYS[1], ARGV[1], 'xx', 'px', ARGV[3]) end
