-- check.lua: what its user may not call, by calls without effect.
--
-- ARGV[1]  key of the lock, which need not exist
-- ARGV[2]  a word that is no key, no field and no channel
-- ARGV[3]  way: how the other scripts announce that a lock is free, 'publish' (if not given), 'spublish', 'both' or 'auto'
--
-- Returns
--   {command, problem, ...}  for each call that was refused: its command, and the server's reason, which need not be
--                            a missing permission

local lock, nobody, way = ARGV[1], ARGV[2], ARGV[3] or 'publish'

local calls = {
  {'hget', lock, nobody}, {'hexists', lock, nobody}, {'hlen', lock}, {'hkeys', lock}, {'exists', lock}, {'pttl', lock},
  {'hdel', lock, nobody}, {'time'},
  -- What is no number is refused behind the permissions, and before anything changes.
  {'hincrby', lock, nobody, 'x'}, {'pexpire', lock, 'x'},
  -- On the lock they would have an effect. Whether its key and its channel are permitted others show.
  {'del', nobody},
}
if way ~= 'spublish' then calls[#calls + 1] = {'publish', nobody, '0'} end
if way ~= 'publish' then calls[#calls + 1] = {'spublish', nobody, '0'} end
if way == 'auto' then calls[#calls + 1] = {'pubsub', 'numsub', nobody} end
local refused = {}
for _, call in ipairs(calls) do
  local answer = redis.pcall(unpack(call))
  if type(answer) == 'table' and answer.err then
    refused[#refused + 1] = call[1] == 'pubsub' and 'pubsub|numsub' or call[1]
    refused[#refused + 1] = answer.err
  end
end
return refused
