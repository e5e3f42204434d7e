-- string/touch.lua: write one of these locks that is still held as it is, so that WAIT has something to wait for.
--
-- KEYS[n]  lock   string: value of the holder
-- ARGV[n]  value  "clientId:number", one for each key
--
-- Returns
--    1  written: value and lease are what they were
--    0  none of these keys has its value; nothing changed
-- A key of another type is refused with WRONGTYPE.

for n = 1, #KEYS do
  -- Some providers accept only calls that name their key literally, so each lock is the first in turn.
  KEYS[1] = KEYS[n]
  local value = ARGV[n]
  if redis.call('get', KEYS[1]) == value then
    redis.call('set', KEYS[1], value, 'xx', 'keepttl')
    return 1
  end
end
return 0
