-- string/look.lua: whether the key has this value. Part of a guarded write, see guarded.lua.
--
-- KEYS[1]  lock   string: value of the holder
-- ARGV[1]  value  "clientId:number", of one acquisition
--
-- Returns
--    1  held
--    0  gone: there is no such key
--   -1  taken: the key has another value
--   -2  changed: the key is of another type

local value = ARGV[1]

-- pcall, so that a key of another type is a loss like every other.
local holder = redis.pcall('get', KEYS[1])
if type(holder) == 'table' then
  if not string.find(holder.err, 'WRONGTYPE', 1, true) then return holder end
  return -2
end
if holder == value then return 1 end
return holder and -1 or 0
