-- read_write/force_unlock.lua: remove the named holders; frees the lock, and announces it, if no other is left; nothing
-- after a limit.
--
-- What is sent has read_write/keys.lua before this text.
--
-- KEYS[1]  lock     hash: mode -> "read" or "write", reader -> hold count, "writer:write" -> hold count
-- KEYS     more in a cluster, as in read_write/keys.lua
-- ARGV[1]  field    "clientId:threadId" of a reader, or "clientId:threadId:write"
-- ARGV[2]  limit    milliseconds of this server's clock, after which nothing is done; 0: no limit
-- ARGV[3]  channel  the unlock channel of the lock
-- ARGV[4]  way      'publish', 'spublish', 'both', or 'auto': both if anybody here hears 'publish'
-- ARGV[n]  field    another one, for each n from 5 on
--
-- Returns
--    1  freed: no other owner held it, or only readers whose keys are gone
--    2  removed: other holders are left
--    0  none of these holds it; nothing changed
--   -1  too late: the limit has passed; nothing changed
--   {-7, key, ...}  these keys are wanted, see read_write/keys.lua; no more than fields of dead readers are gone

local lock, limit, channel, way = KEYS[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]

declare(1)
local time = redis.call('time')
if limit > 0 and time[1] * 1000 + time[2] / 1000 > limit then return -1 end
local mode = redis.call('hget', KEYS[1], 'mode')
local left = redis.call('pttl', KEYS[1])
local fields = redis.call('hgetall', KEYS[1])
if mode ~= 'read' and mode ~= 'write' then return 0 end
local named, found, ended, longest, writes, has_more = {[ARGV[1]] = true}, {}, {}, -2, false, false
for n = 5, #ARGV do named[ARGV[n]] = true end
local base = string.find(lock, '{', 1, true) and lock or '{' .. lock .. '}'
for n = 1, #fields, 2 do
  if lacking >= most then break end
  local field, count = fields[n], #fields[n + 1] <= 5 and tonumber(fields[n + 1]) or 0
  if field ~= 'mode' and named[field] then found[#found + 1] = field
  elseif string.find(field, ':write$') then writes = true end
  local reads = field ~= 'mode' and not string.find(field, ':write$') and count or 0
  local prefix = base .. ':' .. field .. ':rwlock_timeout:'
  if named[field] then
    for _, key in ipairs(keys_of(prefix, reads)) do ended[#ended + 1] = key end
  end
  local left_there, more = reader_left(field, prefix, reads, left)
  if not named[field] then longest, has_more = math.max(longest, left_there), has_more or more end
end
if #found == 0 and lacking < most then return 0 end
-- One of them stays, by which the call that follows knows that it is to free the lock.
if lacking > 0 then sweep(lock, found[1]) return wanted end

local frees = not writes and longest <= 0 and not has_more
local reads = not writes and not frees
if not frees then
  -- A missing permission fails here, as in read_acquire.lua.
  redis.call('hdel', KEYS[1], '')
  redis.call('hset', KEYS[1], 'mode', mode)
  if longest > 0 and reads then redis.call('pexpire', KEYS[1], math.max(left, longest)) end
end
-- Published first, as in write_release.lua.
for _, message in ipairs(writes and {} or {'1', '0'}) do
  if way ~= 'publish' then redis.call('spublish', channel, message) end
  if way ~= 'spublish' and (way ~= 'auto' or redis.call('pubsub', 'numsub', channel)[2] > 0) then
    redis.call('publish', channel, message)
  end
end
if frees then redis.call('del', KEYS[1]) end
for _, key in ipairs(ended) do redis.call('del', key) end
if frees then return 1 end
for _, field in ipairs(found) do redis.call('hdel', KEYS[1], field) end
sweep(lock)
if reads then
  redis.call('hset', KEYS[1], 'mode', 'read')
  if not has_more then redis.call('pexpire', KEYS[1], longest) end
end
-- Read after it was written, as in acquire.lua.
redis.call('pttl', KEYS[1])
return 2
