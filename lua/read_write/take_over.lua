-- read_write/take_over.lua: as take_over.lua, from one writer to another; nothing moves if the first one also reads.
--
-- KEYS[1]  lock   hash: mode -> "read" or "write", reader -> hold count, "writer:write" -> hold count
-- ARGV[1]  field  "clientId:threadId:write", which gets the lock
-- ARGV[3]  lease  milliseconds, at least 1
-- ARGV[n]  from   the last one: the field of the owner that writes
--
-- Returns what write_acquire.lua does, and
--   {-5, 0, from, -1}  the lock is free; nothing changed

if not redis.call('hget', KEYS[1], ARGV[1]) then
  local from = ARGV[#ARGV]
  if redis.call('pttl', KEYS[1]) == -2 then return {-5, 0, from, -1} end
  local mode = redis.call('hget', KEYS[1], 'mode')
  local is_alone = mode == 'write' and redis.call('hlen', KEYS[1]) == 2
  local held = is_alone and string.find(from, ':write$') and redis.call('hget', KEYS[1], from)
  if held and string.find(held, '^%d+$') and #held <= 10 then
    -- The lease is written first, as in acquire.lua.
    redis.call('pexpire', KEYS[1], ARGV[3])
    redis.call('hset', KEYS[1], ARGV[1], 1)
    redis.call('hdel', KEYS[1], from)
  end
end
