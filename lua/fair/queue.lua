-- fair/queue.lua: how fair locks' scripts change the queue. No script by itself: each of them begins with this text.
--
-- KEYS[2]  queue     list: the waiting owners, the next one first; without an expiry, deleted when it is empty
-- KEYS[3]  timeouts  sorted set: waiting owner -> the server's clock, in milliseconds, when its place ends
-- Returns nothing: it defines what the rest calls.

-- The server's clock in milliseconds.
local function clock()
  local time = redis.call('time')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Returns the owners at the front whose places have ended, the owner whose turn it is, and when its place ends (false:
-- it has no score). The owner `asks` is alive, whatever its score, and those in `waits` are about to leave.
local function front(now, asks, waits)
  local ended, at, head, ends = {}, 0, redis.call('lindex', KEYS[2], 0), false
  while head do
    ends = redis.call('zscore', KEYS[3], head)
    if not waits[head] and (head == asks or not ends or tonumber(ends) > now) then break end
    if not waits[head] then ended[#ended + 1] = head end
    at, head = at + 1, redis.call('lindex', KEYS[2], at + 1)
  end
  return ended, head, ends
end

-- Calls what a change of the queue needs, for no owner: a missing permission or a full memory fails here. Takes away an
-- expiry, with which all places would end: a RedissonMultiLock gives its lease to all keys of a lock that it takes.
local function may_change()
  redis.call('lrange', KEYS[2], 0, 0)
  redis.call('zrange', KEYS[3], 0, 0)
  redis.call('lrem', KEYS[2], 1, '')
  redis.call('zrem', KEYS[3], '')
  redis.call('zadd', KEYS[3], 'xx', 0, '')
  redis.call('persist', KEYS[2])
  redis.call('persist', KEYS[3])
end

-- Tells the owner whose turn it is; returns how many connections have got the message.
local function tell(head, channel, way)
  local heard, channel = 0, channel .. ':' .. head
  if way ~= 'publish' then heard = redis.call('spublish', channel, '0') end
  if way ~= 'spublish' and (way ~= 'auto' or redis.call('pubsub', 'numsub', channel)[2] > 0) then
    heard = heard + redis.call('publish', channel, '0')
  end
  return heard
end

local function remove(owners)
  for _, owner in ipairs(owners) do
    redis.call('lrem', KEYS[2], 0, owner)
    redis.call('zrem', KEYS[3], owner)
  end
end

-- Removes owners with their waits, and makes room for a place that gets `longer`. The turns of those after it come later;
-- of those after an owner that leaves earlier, by what its place has left, at most its wait. Places that end before stay,
-- and those that do not count from the one before (Redisson's before 3.11.1 count from the first).
local function reorder(waits, now, prolonged, longer)
  local scores, ends = redis.call('zrange', KEYS[3], 0, -1, 'withscores'), {}
  for n = 1, #scores, 2 do ends[scores[n]] = tonumber(scores[n + 1]) end
  local members, moved, last, before, changes = redis.call('lrange', KEYS[2], 0, -1), 0, 0, 0, {}
  for n, member in ipairs(members) do
    local wait, score = waits[member], ends[member] or 0
    if wait then redis.call('lrem', KEYS[2], 1, member) end
    moved, before = moved < 0 and score <= before and 0 or moved, score
    if wait or member == prolonged then
      last = math.max(last, score)
      moved = moved + (wait and -math.max(0, math.min(wait, score + moved - now)) or longer)
    elseif moved ~= 0 and score > last then
      changes[#changes + 1], changes[#changes + 2] = string.format('%d', score + moved), member
    end
    -- Lua does not unpack a list of any length.
    if #changes == 2000 or #changes > 0 and n == #members then
      redis.call('zadd', KEYS[3], 'xx', unpack(changes))
      changes = {}
    end
  end
  for owner in pairs(waits) do redis.call('zrem', KEYS[3], owner) end
end
