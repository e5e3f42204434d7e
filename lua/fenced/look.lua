-- fenced/look.lua: as look.lua; the owner's token has to be the latest.
--
-- KEYS[1]  lock   hash: owner -> hold count
-- KEYS[2]  token  integer, without an expiry: how often the lock was taken
-- ARGV[1]  owner  "clientId:threadId"
-- ARGV[5]  token  of the hold
--
-- Returns
--    1  held
--    0  gone: there is no such key
--   -1  taken: another owner holds the lock, or has held it since
--   -2  changed: the key is of another type, or that of the token has no number

local owner, token = ARGV[1], ARGV[5]

-- pcall, as in look.lua.
local held = redis.pcall('hexists', KEYS[1], owner)
if type(held) == 'table' then
  if not string.find(held.err, 'WRONGTYPE', 1, true) then return held end
  return -2
end
if held == 0 then return -redis.call('exists', KEYS[1]) end
local latest = redis.pcall('get', KEYS[2])
if type(latest) == 'table' and not string.find(latest.err, 'WRONGTYPE', 1, true) then return latest end
if latest == token then return 1 end
if type(latest) == 'string' and string.find(latest, '^[1-9]%d*$') then return -1 end
return -2
