-- check.lua: what its user may not call, by calls without effect.
--
-- ARGV[1]  key of the lock, which need not exist
-- ARGV[2]  a word that is no key, no field and no channel
--
-- Returns
--   {command, problem, ...}  for each call that was refused: its command, and the server's reason, which need not be
--                            a missing permission

local lock, nobody = ARGV[1], ARGV[2]

local calls = {
  {'hget', lock, nobody}, {'hexists', lock, nobody}, {'hlen', lock}, {'hkeys', lock}, {'exists', lock}, {'pttl', lock},
  {'hdel', lock, nobody},
  -- What is no number is refused behind the permissions, and before anything changes.
  {'hincrby', lock, nobody, 'x'}, {'pexpire', lock, 'x'},
  -- On the lock they would have an effect. Whether its key and its channel are permitted others show.
  {'del', nobody}, {'publish', nobody, '0'},
}
local refused = {}
for _, call in ipairs(calls) do
  local answer = redis.pcall(unpack(call))
  if type(answer) == 'table' and answer.err then
    refused[#refused + 1] = call[1]
    refused[#refused + 1] = answer.err
  end
end
return refused
