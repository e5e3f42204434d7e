-- take_over.lua: how a lock moves from the owner that has it to another one. No script by itself: the acquire.lua of the
-- kind comes after this text, and reports what has become of it.
--
-- KEYS[1]  lock   hash: owner -> hold count
-- ARGV[1]  owner  "clientId:threadId", which gets the lock
-- ARGV[3]  lease  milliseconds, at least 1
-- ARGV[n]  from   the last one: the owner that has it
--
-- Returns what acquire.lua does, and
--   {-5, 0, from, -1}  the lock is free; nothing changed

-- An earlier copy of this call has moved it if this owner has it.
if not redis.call('hget', KEYS[1], ARGV[1]) then
  local from = ARGV[#ARGV]
  if redis.call('exists', KEYS[1]) == 0 then return {-5, 0, from, -1} end
  local is_alone = redis.call('hlen', KEYS[1]) == 1
  local held = is_alone and redis.call('hget', KEYS[1], from)
  if held and string.find(held, '^%d+$') and #held <= 10 then
    -- The lease is written first, as in acquire.lua.
    redis.call('pexpire', KEYS[1], ARGV[3])
    redis.call('hincrby', KEYS[1], ARGV[1], 1)
    redis.call('hdel', KEYS[1], from)
  end
end
