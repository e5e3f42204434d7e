-- fenced/inspect.lua: as inspect.lua, with the token.
--
-- KEYS[1]  lock   hash: owner -> hold count
-- KEYS[2]  token  integer, without an expiry: how often the lock was taken
--
-- Returns
--   nil                                 free
--   {left, holder, count, time, token}  held: milliseconds left (-1: no expiry), the holder's field, its hold count, -1,
--                                       and the token as text (nil: there is none, or it may not be read)
--   {-3, found}                         not a lock: what was found instead

local fields = redis.call('hlen', KEYS[1])
if fields == 0 then return nil end
if fields ~= 1 then return {-3, 'a hash of another kind'} end
local holder = redis.call('hkeys', KEYS[1])[1]
local count = redis.call('hget', KEYS[1], holder)
if not string.find(count, '^%d+$') or #count > 10 then return {-3, 'a non-numeric hold count'} end
local token = redis.pcall('get', KEYS[2])
if type(token) ~= 'string' then token = false end
return {redis.call('pttl', KEYS[1]), holder, count, -1, token}
