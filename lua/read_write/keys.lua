-- read_write/keys.lua: how the scripts of read-write locks read the keys of read holds. No script by itself: each of them
-- begins with this text.
--
-- KEYS[n]  key  after those of the script: in a cluster at least one, and each key that was wanted; elsewhere none
-- Returns nothing: it defines what the rest calls. Two of these functions return milliseconds left, or
--   -2  there is no such key

-- Under another name, because a refusal without a line is one that `pcall` has kept, and this one is raised below.
local declared, wanted, lacking, dead, is_cluster, try = {}, {-7}, 0, {}, false, redis.pcall
-- How many keys may be lacking: a server before 7.2 tracks all KEYS of a call at each read.
local most = 50

-- `own` is the number of KEYS that the script always has.
local function declare(own)
  is_cluster = #KEYS > own
  for n, key in ipairs(KEYS) do declared[key] = n > own end
end

-- Milliseconds left of a key (-1: no expiry). While a slot moves, a key may be on the other node, and
-- only of declared keys a server knows that. It fails at others if they have left it, and finds nothing if they are still
-- to come. So an absent key that is not declared is lacking: the script leaves all holds and returns `wanted`, and the call
-- is sent again with these keys as its others.
local function left_of(key)
  if declared[key] then wanted[#wanted + 1] = key end
  if not is_cluster or declared[key] ~= nil then return redis.call('pttl', key) end
  if lacking >= most then
    lacking = lacking + 1
    return -2
  end
  local left = try('pttl', key)
  if type(left) == 'number' and left ~= -2 then return left end
  -- A missing permission fails here again.
  if left ~= -2 and not string.find(left.err, 'non local key', 1, true) then return redis.call('pttl', key) end
  lacking, wanted[#wanted + 1] = lacking + 1, key
  return -2
end

-- The keys of a reader's last 300 holds, and whether it has more: another program may have written any count.
local function keys_of(prefix, count)
  local keys = {}
  for hold = count, math.max(count - 299, 1), -1 do keys[#keys + 1] = prefix .. hold end
  return keys, count > 300
end

-- Milliseconds left of the longest of these keys. One without an expiry counts as `endless`.
local function longest_of(keys, endless)
  local longest = -2
  for _, key in ipairs(keys) do
    local left = left_of(key)
    longest = math.max(longest, left == -1 and endless or left)
  end
  return longest
end

-- Milliseconds left of the longest key of a reader, and whether it has more keys than were read. If certainly all are gone, it
-- is dead: its keys are not wanted again, because its field is swept. Where no key has to be declared it stays, as
-- Redisson's scripts leave it: a Redisson that does not renew its keys finds it when it unlocks.
local function reader_left(field, prefix, count, endless)
  local keys, has_more = keys_of(prefix, count)
  local wanted_before, lacking_before = #wanted, lacking
  local longest = longest_of(keys, endless)
  if is_cluster and longest == -2 and #keys > 0 and not has_more and lacking == lacking_before then
    dead[#dead + 1] = field
    for n = #wanted, wanted_before + 1, -1 do wanted[n] = nil end
  end
  return longest, has_more
end

-- Removes the fields of dead readers but one. They keep no other owner out, and no later call asks for their keys.
local function sweep(lock, but)
  for _, field in ipairs(dead) do
    if field ~= but then redis.call('hdel', lock, field) end
  end
  -- Read after it was written, as in acquire.lua.
  if #dead > 0 then redis.call('pttl', lock) end
end
