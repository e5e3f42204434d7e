-- read_write/read_renew.lua: restart the leases of many read holds; reports those that are no longer held.
--
-- What is sent has read_write/keys.lua before this text.
--
-- KEYS[2n-1]  lock   hash: mode -> "read" or "write", reader -> hold count, "writer:write" -> hold count
-- KEYS[2n]    first  string: "{lock}:owner:rwlock_timeout:1", of this owner's first read hold; the next key ends in 2
-- KEYS        more in a cluster, as in read_write/keys.lua
-- ARGV[2n-1]  owner  "clientId:threadId", one for each lock
-- ARGV[2n]    lease  milliseconds, one for each lock; 0 checks without extending
--
-- Returns a list with one number for each lock
--    1  held: the lock and the key of each hold have at least the lease left; a missing key was made again
--    0  gone: there is no such key
--   -1  taken: this owner does not read, and others hold the lock
--   -2  changed: the key is of another type, or a hash of another kind
-- {-7, key, ...} instead: these keys are wanted, see read_write/keys.lua; nothing changed

declare(#ARGV)
local answers, held = {}, {}
for n = 1, #ARGV / 2 do
  local lock, first, owner, lease_ms = KEYS[2 * n - 1], KEYS[2 * n], ARGV[2 * n - 1], tonumber(ARGV[2 * n])
  -- pcall, because a key of another type must not cost its neighbours their leases.
  local mode = redis.pcall('hget', KEYS[2 * n - 1], 'mode')
  if type(mode) == 'table' and not string.find(mode.err, 'WRONGTYPE', 1, true) then return mode end
  local count = (mode == 'read' or mode == 'write') and redis.call('hget', KEYS[2 * n - 1], owner)
  if not mode then
    answers[n] = -2 * redis.call('exists', KEYS[2 * n - 1])
  elseif mode ~= 'read' and mode ~= 'write' or count and (not string.find(count, '^%d+$') or #count > 5) then
    answers[n] = -2
  elseif not count then
    answers[n] = -1
  else
    answers[n], held[n] = 1, {missing = {}, short = {}}
    for hold = 1, lease_ms > 0 and tonumber(count) or 0 do
      local key = string.sub(first, 1, -2) .. hold
      local left = left_of(key)
      local keys = left == -2 and held[n].missing or left < lease_ms and held[n].short or {}
      keys[#keys + 1] = key
    end
  end
end
if lacking > 0 then return wanted end

for n = 1, #ARGV / 2 do
  local lock, first, lease_ms, keys = KEYS[2 * n - 1], KEYS[2 * n], tonumber(ARGV[2 * n]), held[n]
  if keys and lease_ms > 0 then
    -- A missing permission fails here, as in read_acquire.lua.
    if #keys.missing > 0 then
      redis.call('hdel', KEYS[2 * n - 1], '')
      redis.call('set', KEYS[2 * n], '1', 'xx', 'keepttl')
    end
    local left = redis.call('pttl', KEYS[2 * n - 1])
    if left < lease_ms then redis.call('pexpire', KEYS[2 * n - 1], lease_ms) end
    for _, key in ipairs(keys.short) do redis.call('pexpire', key, lease_ms) end
    for _, key in ipairs(keys.missing) do redis.call('set', key, '1', 'px', lease_ms) end
    -- Read after it was written, as in acquire.lua.
    redis.call('pttl', KEYS[2 * n - 1])
  end
end
return answers
