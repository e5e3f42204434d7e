-- fair/acquire.lua: set this owner's hold count to the target; takes a free lock in its turn, or a place in the queue.
--
-- What is sent has fair/queue.lua before this text.
--
-- KEYS[1]  lock     hash: owner -> hold count
-- KEYS[2], KEYS[3]  queue and timeouts, as in fair/queue.lua
-- ARGV[1]  owner    "clientId:threadId"
-- ARGV[2]  target   hold count to set, 1 to 4294967295
-- ARGV[3]  lease    milliseconds, at least 1
-- ARGV[4]  wait     milliseconds for which a place counts after its turn has come, at least 1
-- ARGV[5]  stays    an owner that cannot take the lock takes a place, or prolongs its own to this; 0: it only attempts
-- ARGV[6]  channel  the owner whose turn it is hears `channel:owner`
-- ARGV[7]  way      'publish' (if not given), 'spublish', 'both', or 'auto': both if anybody here hears 'publish'
--
-- Returns
--   1                        taken: the count is the target, at least the lease is left; this owner has left the queue
--   0                        lost: the target is above 1 and this owner holds nothing; nothing changed
--   {left, holder, place}    busy: milliseconds left (-1: no expiry), the holder's field, and the number of owners that
--                            are before this one (-1: it has no place)
--   {-3, found}              not a lock: what was found instead; nothing changed
--   {-5, left, head, place}  free, but another owner's turn: milliseconds left of its place, and that owner

local owner, target, lease_ms, wait_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local stays_ms, channel, way = tonumber(ARGV[5]), ARGV[6], ARGV[7] or 'publish'

local left = redis.call('pttl', KEYS[1])
local count = redis.call('hget', KEYS[1], owner)
if not count and left ~= -2 and redis.call('hlen', KEYS[1]) ~= 1 then return {-3, 'a hash of another kind'} end
local holder = not count and left ~= -2 and redis.call('hkeys', KEYS[1])[1]
local held = holder and redis.call('hget', KEYS[1], holder) or count
if held and (not string.find(held, '^%d+$') or #held > 10) then return {-3, 'a non-numeric hold count'} end
if count then
  -- The lease is written first, as in acquire.lua.
  redis.call('pexpire', KEYS[1], left < tonumber(lease_ms) and lease_ms or left)
  if count ~= target then redis.call('hincrby', KEYS[1], owner, string.format('%d', target - count)) end
  -- Read after it was written, as in acquire.lua.
  redis.call('pttl', KEYS[1])
  return 1
end
if target ~= '1' then return 0 end
local now, own = clock(), redis.call('zscore', KEYS[3], owner)
local ended, head, ends = front(now, owner, {})
local place = (redis.call('lpos', KEYS[2], owner) or #ended - 1) - #ended
local takes = left == -2 and (not head or head == owner)
local joins = stays_ms > 0 and not takes and place == -1

-- Returns 0 while the key is absent: an invalid lease or a missing permission fails here, before any write.
if takes then redis.call('pexpire', KEYS[1], lease_ms) end
if head or own or joins or #ended > 0 then may_change() end

if takes then
  redis.call('hincrby', KEYS[1], owner, 1)
  redis.call('pexpire', KEYS[1], lease_ms)
  remove(ended)
  if head or own then reorder({[owner] = wait_ms}, now) end
  redis.call('pttl', KEYS[1])
  return 1
end

-- A release told an owner whose place has ended since, or the lease ended, and none was told. One that only now takes a
-- place may come directly after a release, which has told this one.
if left == -2 and (#ended > 0 or not joins) then tell(head, channel, way) end
if joins or place > -1 and (stays_ms > 0 or not own) then
  local before = head and (joins or place > 0) and redis.call('lindex', KEYS[2], joins and -1 or place + #ended - 1)
  local turn = before and (redis.call('zscore', KEYS[3], before) or now + wait_ms) or 0
  turn = math.max(turn, joins and now + left or now, now)
  local known = not joins and tonumber(own or 0) or 0
  local due = math.max(known, turn + (known == 0 and wait_ms or stays_ms))
  if joins then place = redis.call('rpush', KEYS[2], owner) - 1 - #ended end
  if known > 0 and due > known then reorder({}, now, owner, due - known) end
  redis.call('zadd', KEYS[3], string.format('%d', due), owner)
end
remove(ended)
if own and place == -1 then redis.call('zrem', KEYS[3], owner) end
if head and not ends and head ~= owner then
  ends = now + wait_ms
  redis.call('zadd', KEYS[3], string.format('%d', ends), head)
end
if left == -2 then return {-5, ends - now, head, place} end
return {left, holder, place}
