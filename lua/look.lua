-- look.lua: whether this owner holds the lock. Part of a guarded write, see guarded.lua.
--
-- KEYS[1]  lock   hash: owner -> hold count
-- ARGV[1]  owner  "clientId:threadId"
--
-- Returns
--    1  held
--    0  gone: there is no such key
--   -1  taken: another owner holds the lock
--   -2  changed: the key is of another type

local owner = ARGV[1]

-- pcall, so that a key of another type is a loss like every other.
local held = redis.pcall('hexists', KEYS[1], owner)
if type(held) == 'table' then
  if not string.find(held.err, 'WRONGTYPE', 1, true) then return held end
  return -2
end
if held == 1 then return 1 end
return -redis.call('exists', KEYS[1])
