-- fair/release.lua: lower this owner's hold count to the target, and take it out of the queue; at 0 frees the lock and
-- tells the owner whose turn it is.
--
-- What is sent has fair/queue.lua before this text.
--
-- KEYS[1]  lock     hash: owner -> hold count
-- KEYS[2], KEYS[3]  queue and timeouts, as in fair/queue.lua
-- ARGV[1]  owner    "clientId:threadId"
-- ARGV[2]  target   hold count to set, 0 to 4294967295
-- ARGV[3]  lease    milliseconds promised to the remaining holds, at least 1
-- ARGV[4]  channel  the owner whose turn it is hears `channel:owner`
-- ARGV[5]  way      'publish', 'spublish', 'both', or 'auto': both if anybody here hears 'publish'
-- ARGV[6]  wait     milliseconds that the place was taken with which this owner gives up; 0: a place of it stays
--
-- Returns
--    1  released: the count is the target
--  1+n  released: the lock is free, and n connections have got the message
--    0  gone: there is no such key; the owner whose turn it is was told again
--   -1  taken: another owner holds the lock
--   -3  not a lock: the count is not a number; nothing changed

local owner, target, lease_ms, channel, way = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local waits = ARGV[6] ~= '0' and {[owner] = tonumber(ARGV[6])} or {}

local count = redis.call('hget', KEYS[1], owner)
local stays = count and target ~= '0'
if stays and (not string.find(count, '^%d+$') or #count > 10) then return -3 end
local free = count and not stays or not count and redis.call('exists', KEYS[1]) == 0

local now, ended, head = clock(), {}, false
if free then ended, head = front(now, nil, waits) end
local leaves = waits[owner] and redis.call('zscore', KEYS[3], owner)
if waits[owner] and not leaves then leaves = redis.call('lpos', KEYS[2], owner) end
if leaves or #ended > 0 then may_change() end

local heard = 0
if stays then
  -- The lease is written first, as in acquire.lua.
  local left = redis.call('pttl', KEYS[1])
  redis.call('pexpire', KEYS[1], left < tonumber(lease_ms) and lease_ms or left)
  if count ~= target then redis.call('hincrby', KEYS[1], owner, string.format('%d', target - count)) end
  -- Read after it was written, as in acquire.lua.
  redis.call('pttl', KEYS[1])
elseif free then
  -- Published first: if the message is refused, the lock is still there to be released again.
  if head then heard = tell(head, channel, way) end
  if count then redis.call('del', KEYS[1]) end
end
remove(ended)
if leaves then reorder(waits, now) end
if count then return 1 + heard end
return free and 0 or -1
