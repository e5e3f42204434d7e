-- read_write/keys.lua: how the scripts of read-write locks read the keys of read holds. No script by itself: each of them
-- begins with this text.
--
-- KEYS[n]  key  after those of the script: in a cluster at least one, and each key that was wanted; elsewhere none
-- Returns nothing: it defines what the rest calls. Two of these functions return milliseconds left, or
--   -2  there is no such key

-- Under another name, because a refusal without a line is one that `pcall` has kept, and this one is raised below.
local declared, wanted, is_cluster, try = {}, {-7}, false, redis.pcall

-- `own` is the number of KEYS that the script always has.
local function declare(own)
  is_cluster = #KEYS > own
  for _, key in ipairs(KEYS) do declared[key] = true end
end

-- Milliseconds left of a key (-1: no expiry). While a slot moves, a key may be on the other node, and
-- only of declared keys a server knows that. It fails at others if they have left it, and finds nothing if they are still
-- to come. So an absent key that is not declared is wanted: the script changes nothing and returns `wanted`, and the call
-- is sent again with those keys.
local function left_of(key)
  if not is_cluster or declared[key] then return redis.call('pttl', key) end
  local left = try('pttl', key)
  if type(left) == 'number' and left ~= -2 then return left end
  -- A missing permission fails here again.
  if left ~= -2 and not string.find(left.err, 'non local key', 1, true) then return redis.call('pttl', key) end
  if #wanted <= 1000 then wanted[#wanted + 1] = key end
  return -2
end

-- The keys of a reader's last thousand holds, and whether it has more: another program may have written any count.
local function keys_of(prefix, count)
  local keys = {}
  for hold = count, math.max(count - 999, 1), -1 do keys[#keys + 1] = prefix .. hold end
  return keys, count > 1000
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
