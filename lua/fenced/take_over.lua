-- fenced/take_over.lua: as take_over.lua; the owner that gets the lock has a token that is larger than all before.
--
-- KEYS[1]  lock   hash: owner -> hold count
-- KEYS[2]  token  integer, without an expiry: how often the lock was taken
-- ARGV[1]  owner  "clientId:threadId", which gets the lock
-- ARGV[3]  lease  milliseconds, at least 1
-- ARGV[n]  from   the last one: the owner that has it
--
-- Returns what fenced/acquire.lua does, and
--   {-4, found}        no token: what its key has instead; nothing changed
--   {-5, 0, from, -1}  the lock is free; nothing changed

if not redis.call('hget', KEYS[1], ARGV[1]) then
  local from = ARGV[#ARGV]
  if redis.call('exists', KEYS[1]) == 0 then return {-5, 0, from, -1} end
  local is_alone = redis.call('hlen', KEYS[1]) == 1
  local held = is_alone and redis.call('hget', KEYS[1], from)
  if held and string.find(held, '^%d+$') and #held <= 10 then
    -- As in fenced/acquire.lua. Where a token was deleted, the next is 1 again.
    local raised = redis.pcall('incr', KEYS[2])
    if type(raised) == 'table' then
      local known = string.find(raised.err, 'WRONGTYPE', 1, true) or string.find(raised.err, 'integer', 1, true)
      if not known and not string.find(raised.err, 'overflow', 1, true) then return raised end
      return {-4, 'no integer'}
    end
    if raised < 1 then return {-4, 'a number below 1'} end
    redis.call('persist', KEYS[2])
    redis.call('pexpire', KEYS[1], ARGV[3])
    redis.call('hincrby', KEYS[1], ARGV[1], 1)
    redis.call('hdel', KEYS[1], from)
  end
end
