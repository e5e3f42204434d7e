-- read_write/read_acquire.lua: set the number of this owner's read holds; joins other readers, and an own writer.
--
-- What is sent has read_write/keys.lua before this text.
--
-- KEYS[1]  lock    hash: mode -> "read" or "write", reader -> hold count, "writer:write" -> hold count
-- KEYS[2]  first   string: "{lock}:owner:rwlock_timeout:1", of this owner's first read hold; the next key ends in 2
-- KEYS     more in a cluster, as in read_write/keys.lua: first that of the hold numbered target
-- ARGV[1]  owner   "clientId:threadId"
-- ARGV[2]  target  hold count to set, 1 to 99999
-- ARGV[3]  lease   milliseconds, at least 1
--
-- Returns
--   1               taken, and this owner also writes: the count is the target, the key of the last hold and the lock have
--                   at least the lease left
--   2               taken in the same way, and this owner does not write
--   0               lost: the target is above 1 and this owner does not read; nothing changed
--   {left, holder}  busy: milliseconds left (-1: no expiry) and the writer's field
--   {-3, found}     not a lock: what was found instead; nothing changed
--   {-7, key, ...}  these keys are wanted, see read_write/keys.lua; nothing changed

local lock, first, owner, target, lease_ms = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2]), ARGV[3]
local prefix = string.sub(first, 1, -2)

declare(2)
local mode = redis.call('hget', KEYS[1], 'mode')
local left = redis.call('pttl', KEYS[1])
if left ~= -2 and mode ~= 'read' and mode ~= 'write' then return {-3, 'a hash of another kind'} end
local count = redis.call('hget', KEYS[1], owner)
if count and (not string.find(count, '^%d+$') or #count > 5) then return {-3, 'a non-numeric hold count'} end
if not count and target > 1 then return 0 end
local writes = mode == 'write' and redis.call('hexists', KEYS[1], owner .. ':write') == 1
if mode == 'write' and not count and not writes then
  local writer = false
  for _, field in ipairs(redis.call('hkeys', KEYS[1])) do
    if string.find(field, ':write$') then writer = field end
  end
  if not writer then return {-3, 'no writer'} end
  local held = redis.call('hget', KEYS[1], writer)
  if not string.find(held, '^%d+$') or #held > 10 then return {-3, 'a non-numeric hold count'} end
  return {left, writer}
end
-- No lock lacks an expiry. A hash that is joined would get one, and be deleted with its last reader.
local others = mode == 'read' and not count and left == -1 and redis.call('hgetall', KEYS[1]) or {}
for n = 1, #others, 2 do
  local is_count = string.find(others[n + 1], '^%d+$') and #others[n + 1] <= 5
  if others[n] ~= 'mode' and not is_count then return {-3, 'a non-numeric hold count'} end
end
-- The key of the last hold covers all holds of this owner: another reader's release looks at the longest.
local last = prefix .. target
local covered = left_of(last)
for n = target + 1, is_cluster and tonumber(count or 0) or 0 do left_of(prefix .. n) end
if lacking > 0 then return wanted end

-- A missing permission or an invalid lease fails here, before anything changes: no field is the empty text, values are
-- set as they are, and `pexpire` returns 0 while the key is absent. A server that is out of memory accepts `hdel`, and
-- lets a script continue after its first write.
redis.call('hdel', KEYS[1], '')
redis.call('set', KEYS[2], '1', 'xx', 'keepttl')
if mode then redis.call('hset', KEYS[1], 'mode', mode) end
redis.call('pexpire', KEYS[1], left < tonumber(lease_ms) and lease_ms or left)
for n = target + 1, tonumber(count or 0) do redis.call('del', prefix .. n) end
redis.call('hset', KEYS[1], 'mode', mode or 'read', owner, target)
if left == -2 then redis.call('pexpire', KEYS[1], lease_ms) end
if covered == -2 then redis.call('set', last, '1', 'px', lease_ms)
elseif covered < tonumber(lease_ms) then redis.call('pexpire', last, lease_ms) end
-- Read after it was written, as in acquire.lua.
redis.call('pttl', KEYS[1])
return writes and 1 or 2
