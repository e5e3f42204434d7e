-- read_write/read_release.lua: lower the number of this owner's read holds; the last reader frees the lock.
--
-- What is sent has read_write/keys.lua before this text.
--
-- KEYS[1]  lock     hash: mode -> "read" or "write", reader -> hold count, "writer:write" -> hold count
-- KEYS[2]  first    string: "{lock}:owner:rwlock_timeout:1", of this owner's first read hold; the next key ends in 2
-- KEYS     more in a cluster, as in read_write/keys.lua
-- ARGV[1]  owner    "clientId:threadId"
-- ARGV[2]  target   hold count to set, 0 to 99999
-- ARGV[3]  lease    milliseconds promised to the remaining holds, at least 1
-- ARGV[4]  channel  the unlock channel of the lock
-- ARGV[5]  way      'publish' (if not given), 'spublish', 'both', or 'auto': both if anybody here hears 'publish'
--
-- Returns
--    1  released: the count is the target; at 0 the lock stays with an own writer, or with readers that have live keys
--  1+n  released: the lock is free, and n connections have got the message
--    0  gone: there is no such key; nothing changed
--   -1  taken: this owner does not read, and others hold the lock; nothing changed
--   -3  not a lock: a hash of another kind, or the count is not a number; nothing changed
--   {-7, key, ...}  these keys are wanted, see read_write/keys.lua; no more than fields of dead readers are gone

local lock, first, owner, target, lease_ms = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2]), ARGV[3]
local channel, way = ARGV[4], ARGV[5] or 'publish'
local prefix, base = string.sub(first, 1, -2), string.sub(first, 1, -#owner - #':rwlock_timeout:1' - 1)

declare(2)
local mode = redis.call('hget', KEYS[1], 'mode')
local left = redis.call('pttl', KEYS[1])
local count = redis.call('hget', KEYS[1], owner)
if left == -2 then return 0 end
if mode ~= 'read' and mode ~= 'write' then return -3 end
if not count then return -1 end
if not string.find(count, '^%d+$') or #count > 5 then return -3 end
-- The key of the last hold that stays covers all that stay, as in read_acquire.lua.
local last = prefix .. target
local covered = target > 0 and left_of(last)
for n = target + 1, is_cluster and tonumber(count) or 0 do left_of(prefix .. n) end
-- The longest key of another reader, if all were read.
local longest, has_more, fields = -2, false, target == 0 and mode == 'read' and redis.call('hgetall', KEYS[1]) or {}
for n = 1, #fields, 2 do
  if lacking >= most then break end
  local reads = fields[n] ~= owner and #fields[n + 1] <= 5 and tonumber(fields[n + 1]) or 0
  local left_there, more = reader_left(fields[n], base .. fields[n] .. ':rwlock_timeout:', reads, left)
  longest, has_more = math.max(longest, left_there), has_more or more
end
if lacking > 0 then sweep(lock) return wanted end
local others_stay = longest > 0 or has_more

local heard = 0
if target > 0 then
  -- A missing permission fails here, as in read_acquire.lua.
  redis.call('hdel', KEYS[1], '')
  redis.call('set', KEYS[2], '1', 'xx', 'keepttl')
  redis.call('hset', KEYS[1], 'mode', mode)
  redis.call('pexpire', KEYS[1], left < tonumber(lease_ms) and lease_ms or left)
elseif mode == 'write' or others_stay then
  redis.call('hdel', KEYS[1], '')
  if longest > 0 then redis.call('pexpire', KEYS[1], math.max(left, longest)) end
else
  -- Published first: if the message is refused, the lock is still there to be released again.
  if way ~= 'publish' then heard = redis.call('spublish', channel, '0') end
  if way ~= 'spublish' and (way ~= 'auto' or redis.call('pubsub', 'numsub', channel)[2] > 0) then
    heard = heard + redis.call('publish', channel, '0')
  end
  redis.call('del', KEYS[1])
end
for n = target + 1, tonumber(count) do redis.call('del', prefix .. n) end
if target > 0 then
  if covered == -2 then redis.call('set', last, '1', 'px', lease_ms)
  elseif covered < tonumber(lease_ms) then redis.call('pexpire', last, lease_ms) end
  redis.call('hset', KEYS[1], owner, target)
elseif mode == 'write' or others_stay then
  redis.call('hdel', KEYS[1], owner)
  sweep(lock)
  -- Each hold of another reader is covered by a key, so a longer lease of the lock was promised to this owner alone.
  if longest > 0 and not has_more then redis.call('pexpire', KEYS[1], longest) end
end
-- Where holds are left, which may be those of this client: read after it was written, as in acquire.lua.
if target > 0 or mode == 'write' or others_stay then redis.call('pttl', KEYS[1]) end
return 1 + heard
