-- fair/take_over.lua: as take_over.lua; the owner that gets the lock leaves the queue.
--
-- fair/queue.lua comes before this text.
--
-- KEYS[1]  lock   hash: owner -> hold count
-- KEYS     queue and timeouts, as in fair/queue.lua
-- ARGV[1]  owner  "clientId:threadId", which gets the lock
-- ARGV[3]  lease  milliseconds, at least 1
-- ARGV[n]  from   the last one: the owner that has it
--
-- Returns what fair/acquire.lua does, and
--   {-5, 0, from, -1}  the lock is free; nothing changed

if not redis.call('hget', KEYS[1], ARGV[1]) then
  local from = ARGV[#ARGV]
  if redis.call('exists', KEYS[1]) == 0 then return {-5, 0, from, -1} end
  local is_alone = redis.call('hlen', KEYS[1]) == 1
  local held = is_alone and redis.call('hget', KEYS[1], from)
  if held and string.find(held, '^%d+$') and #held <= 10 then
    may_change()
    redis.call('pexpire', KEYS[1], ARGV[3])
    -- No script of fair locks needs the permission for `hdel`.
    redis.call('del', KEYS[1])
    redis.call('hincrby', KEYS[1], ARGV[1], 1)
    remove({ARGV[1]})
  end
end
