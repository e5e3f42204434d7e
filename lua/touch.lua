-- touch.lua: write something about one of these locks that is still held, so that WAIT has something to wait for.
--
-- KEYS[n]  lock   hash: owner -> hold count
-- ARGV[n]  owner  "clientId:threadId", one for each key
--
-- Returns
--    1  written: count and lease are what they were
--    0  none of these owners holds its lock; nothing changed

for n = 1, #KEYS do
  -- Some providers accept only calls that name their key literally, so each lock is the first in turn.
  KEYS[1] = KEYS[n]
  local owner = ARGV[n]
  if redis.call('hexists', KEYS[1], owner) == 1 then
    redis.call('hincrby', KEYS[1], owner, 0)
    return 1
  end
end
return 0
