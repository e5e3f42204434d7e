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
  local value = ARGV[n]
  if redis.call('get', KEYS[n]) == value then
    redis.call('set', KEYS[n], value, 'xx', 'keepttl')
    return 1
  end
end
return 0
