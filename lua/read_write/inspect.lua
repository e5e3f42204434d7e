-- read_write/inspect.lua: as inspect.lua, with all holders.
--
-- What is sent has read_write/keys.lua before this text.
--
-- KEYS[1]  lock  hash: mode -> "read" or "write", reader -> hold count, "writer:write" -> hold count
-- KEYS     more in a cluster, as in read_write/keys.lua
--
-- Returns
--   nil                                         free
--   {left, holder, count, time, mode, holders}  held: milliseconds left (-1: no expiry), the field of the writer or of a
--                                               reader, its hold count, the server's clock in milliseconds, "read" or
--                                               "write", and the holders
--   {-3, found}                                 not a lock: what was found instead
--   {-7, key, ...}                              these keys are wanted, see read_write/keys.lua
-- Of each holder the field, its hold count, and milliseconds left: for the writer those of the lock, for a reader those
-- of the longest key of its last 300 holds (-2: it has none, so the lock becomes free when the other readers release it).

local lock = KEYS[1]

declare(1)
most = math.huge
local mode = redis.call('hget', KEYS[1], 'mode')
local left = redis.call('pttl', KEYS[1])
local fields = redis.call('hgetall', KEYS[1])
if left == -2 then return nil end
if mode ~= 'read' and mode ~= 'write' then return {-3, 'a hash of another kind'} end
local base, first, holders = string.find(lock, '{', 1, true) and lock or '{' .. lock .. '}', nil, {}
for n = 1, #fields, 2 do
  local field, count = fields[n], fields[n + 1]
  if field ~= 'mode' then
    local writes = string.find(field, ':write$')
    if not string.find(count, '^%d+$') or #count > (writes and 10 or 5) then return {-3, 'a non-numeric hold count'} end
    local keys = keys_of(base .. ':' .. field .. ':rwlock_timeout:', writes and 0 or tonumber(count))
    local longest = longest_of(keys, -1)
    if not first or writes then first = #holders + 1 end
    for _, value in ipairs({field, count, writes and left or longest}) do holders[#holders + 1] = value end
  end
end
-- It changes nothing, so the keys of more are taken for expired.
if lacking > 0 and #wanted <= 300 then return wanted end
if not first then return {-3, 'no holder'} end
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
return {left, holders[first], holders[first + 1], now, mode, holders}
