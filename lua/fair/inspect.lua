-- fair/inspect.lua: as inspect.lua, with the queue.
--
-- KEYS[1]  lock      hash: owner -> hold count
-- KEYS[2]  queue     list: the waiting owners, the next one first
-- KEYS[3]  timeouts  sorted set: waiting owner -> the server's clock, in milliseconds, when its place ends
--
-- Returns
--   nil                                 free, and no owner waits
--   {left, holder, count, time, queue}  held: milliseconds left (-1: no expiry), the holder's field, its hold count,
--                                       the server's clock in milliseconds, and the queue
--   {-2, nil, '0', time, queue}         free: it is the turn of the first owner in the queue
--   {-3, found}                         not a lock: what was found instead
-- In the queue each owner is followed by the milliseconds left of its place (below 0: it has ended; nil: no score).


local holder, count, waiting = false, '0', {}
local fields = redis.call('hlen', KEYS[1])
local members = redis.call('lrange', KEYS[2], 0, -1)
if fields > 1 then return {-3, 'a hash of another kind'} end
if fields == 0 and #members == 0 then return nil end
if fields == 1 then
  holder = redis.call('hkeys', KEYS[1])[1]
  count = redis.call('hget', KEYS[1], holder)
  if not string.find(count, '^%d+$') or #count > 10 then return {-3, 'a non-numeric hold count'} end
end
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for _, member in ipairs(members) do
  local ends = redis.call('zscore', KEYS[3], member)
  waiting[#waiting + 1] = member
  waiting[#waiting + 1] = ends and ends - now
end
return {redis.call('pttl', KEYS[1]), holder, count, now, waiting}
