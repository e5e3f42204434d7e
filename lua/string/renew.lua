-- string/renew.lua: restart the leases of many held locks; reports locks that are no longer held.
--
-- KEYS[n]    lock   string: value of the holder
-- ARGV[2n-1] value  "clientId:number", one for each key
-- ARGV[2n]   lease  milliseconds, one for each key; 0 checks without extending
--
-- Returns a list with one number for each key
--    1  held: at least the lease is left
--    0  gone: there is no such key
--   -1  taken: the key has another value
--   -2  changed: the key is of another type

local answers = {}
for n = 1, #KEYS do
  -- Some providers accept only calls that name their key literally, so each lock is the first in turn.
  KEYS[1] = KEYS[n]
  local value, lease_ms = ARGV[2 * n - 1], ARGV[2 * n]
  -- pcall, because a key of another type must not cost its neighbours their leases.
  local holder = redis.pcall('get', KEYS[1])
  if type(holder) == 'table' then
    if not string.find(holder.err, 'WRONGTYPE', 1, true) then return holder end
    answers[n] = -2
  elseif holder == value then
    if lease_ms ~= '0' and redis.call('pttl', KEYS[1]) < tonumber(lease_ms) then
      redis.call('pexpire', KEYS[1], lease_ms)
      -- Read after it was written, as in acquire.lua.
      redis.call('pttl', KEYS[1])
    end
    answers[n] = 1
  else
    answers[n] = holder and -1 or 0
  end
end
return answers
