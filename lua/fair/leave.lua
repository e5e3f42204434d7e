-- fair/leave.lua: take many owners, which no longer wait, out of the queue. If one of them has the lock, by a call that
-- was executed late, it is freed.
--
-- What is sent has fair/queue.lua before this text.
--
-- KEYS[1]  lock     hash: owner -> hold count
-- KEYS     queue and timeouts, as in fair/queue.lua
-- ARGV[1]  channel  the owner whose turn it is hears `channel:owner`
-- ARGV[2]  way      'publish', 'spublish', 'both', or 'auto': both if anybody here hears 'publish'
-- ARGV[2n+1]  owner  "clientId:threadId"; at most 200 of them, each once
-- ARGV[2n+2]  wait   milliseconds that its place was taken with, at least 1
--
-- Returns a list with one number for each owner, which has no place now
--    1  released: it held the lock, which is free now
--    0  gone: it held nothing, and nobody holds the lock
--   -1  taken: it held nothing, and another owner holds the lock

local channel, way = ARGV[1], ARGV[2]

local waits, answers = {}, {}
for n = 1, (#ARGV - 2) / 2 do waits[ARGV[2 * n + 1]] = tonumber(ARGV[2 * n + 2]) end

local fields = redis.call('hlen', KEYS[1])
local holder = fields == 1 and redis.call('hkeys', KEYS[1])[1]
local frees = holder and waits[holder]
local now, ended, head = clock(), {}, false
if fields == 0 or frees then ended, head = front(now, nil, waits) end
may_change()
-- Published first, as in release.lua.
if head then tell(head, channel, way) end
if frees then redis.call('del', KEYS[1]) end
remove(ended)
reorder(waits, now)

for n = 1, #ARGV / 2 - 1 do
  local held = ARGV[2 * n + 1] == holder
  answers[n] = held and 1 or (fields == 0 or frees) and 0 or -1
end
return answers
