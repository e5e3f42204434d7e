-- read_write/downgrade.lua: make the write hold of an owner a read hold of the same owner, and let other readers in.
--
-- KEYS[1]  lock     hash: mode -> "read" or "write", reader -> hold count, "writer:write" -> hold count
-- KEYS[2]  first    string: "{lock}:owner:rwlock_timeout:1", of this owner's first read hold
-- ARGV[1]  from     "clientId:threadId:write", which writes
-- ARGV[2]  to       "clientId:threadId", which does not read yet; its hold count becomes 1
-- ARGV[3]  lease    milliseconds of the read hold's lease, at least 1
-- ARGV[4]  channel  the unlock channel of the lock
-- ARGV[5]  way      'publish' (if not given), 'spublish', 'both', or 'auto': both if anybody here hears 'publish'
--
-- Returns
--    1  done: the owner reads, now or since an earlier copy of this call
--    0  gone: there is no such key; nothing changed
--   -1  taken: this owner has no hold; nothing changed

local from, to, lease_ms, channel, way = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5] or 'publish'

local mode = redis.call('hget', KEYS[1], 'mode')
if mode == 'write' and redis.call('hexists', KEYS[1], from) == 1 then
  -- A missing permission or an invalid lease fails here, as in read_acquire.lua.
  redis.call('hdel', KEYS[1], '')
  redis.call('set', KEYS[2], '1', 'xx', 'keepttl')
  redis.call('pexpire', KEYS[1], lease_ms)
  -- Published first, as in write_release.lua.
  for _, message in ipairs({'1', '0'}) do
    if way ~= 'publish' then redis.call('spublish', channel, message) end
    if way ~= 'spublish' and (way ~= 'auto' or redis.call('pubsub', 'numsub', channel)[2] > 0) then
      redis.call('publish', channel, message)
    end
  end
  redis.call('hset', KEYS[1], 'mode', 'read', to, 1)
  redis.call('set', KEYS[2], '1', 'px', lease_ms)
  redis.call('hdel', KEYS[1], from)
  -- Read after it was written, as in acquire.lua.
  redis.call('pttl', KEYS[1])
  return 1
end

if mode and redis.call('hexists', KEYS[1], to) == 1 then
  local left = redis.call('pttl', KEYS[1])
  redis.call('pexpire', KEYS[1], left < tonumber(lease_ms) and lease_ms or left)
  redis.call('set', KEYS[2], '1', 'px', lease_ms)
  redis.call('pttl', KEYS[1])
  return 1
end
return -redis.call('exists', KEYS[1])
