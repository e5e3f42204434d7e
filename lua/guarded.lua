-- guarded.lua: run the user's part if the lock is held, and if it has not run under its id.
--
-- What is sent has a function `look` before this text, the look.lua of the lock's kind.
--
-- KEYS[1]  lock   then the key of the token if the kind has one, then that of the id if there is one, then the user's
-- ARGV[1]  owner  "clientId:threadId", or the value of a string lock
-- ARGV[2]  keep   milliseconds for which the id is remembered; 0: there is none
-- ARGV[3]  own    how many KEYS come before the user's; the last of them is that of the id
-- ARGV[4]  text   the user's script: compiled here, it is a function of its own and sees no local of this text
-- then the token of the hold, empty if the kind has none, and the user's
--
-- Returns
--   {'ran', value}             the user's part has returned this
--   {'done'}                   it has run under this id; nothing changed
--   {'failed', text}           it has failed, and the id is forgotten; what it wrote before that stays. Or it is not Lua
--   {'lost', state, has_run}   the lock is not held, by what look.lua returns; 1 if the part has run under this id;
--                              nothing changed

local owner, keep, own = ARGV[1], ARGV[2], tonumber(ARGV[3])
local id, state = keep ~= '0', look()
-- Some providers accept only calls that name their key literally: below, the first is the key of the id.
local given, KEYS = KEYS, {KEYS[own]}
if type(state) == 'table' then return state end
local exists = id and redis.call('exists', KEYS[1]) or 0
if state ~= 1 then return {'lost', state, exists} end
if exists == 1 then return {'done'} end
local part, mistake = loadstring('local KEYS, ARGV = ...; ' .. ARGV[4], '@user_script')
if not part then return {'failed', mistake} end
if id then
  -- Returns 0 while the key is absent: a missing permission fails here, and not when the id is to be forgotten.
  redis.call('pexpire', KEYS[1], keep)
  redis.call('set', KEYS[1], owner, 'px', keep)
end

local function after(list, count)
  local rest = {}
  for n = count + 1, #list do rest[n - count] = list[n] end
  return rest
end

-- An error that the part returns has to be a failure too: as a reply it would look like a refusal of this call, of which
-- some are a reason to send it again. The value is read as Redis does: of a map the entries, of a set the keys, of another
-- table the list before its first nil. A metatable could show Redis another value. The depth is limited because clients
-- read replies recursively: in a debug build 128 levels take more than the 2 MiB of a thread's stack.
local function failure_in(value, depth)
  if type(value) ~= 'table' then return nil end
  if getmetatable(value) ~= nil then return 'the value has a metatable' end
  if type(value.err) == 'string' then return value.err end
  if type(value.ok) == 'string' or type(value.double) == 'number' then return nil end
  if depth == 32 then return 'the value is nested too deeply' end
  local map = type(value.map) == 'table' and value.map
  local entries = map or type(value.set) == 'table' and value.set
  for key, item in (entries and pairs or ipairs)(entries or value) do
    local found = failure_in(key, depth + 1) or (map or not entries) and failure_in(item, depth + 1)
    if found then return found end
  end
end

-- What is raised may be anything. A function of its metatable is not called: it would find this script among its callers.
local function text_of(raised)
  if type(raised) == 'table' and getmetatable(raised) == nil and type(raised.err) == 'string' then return raised.err end
  if type(raised) == 'string' or type(raised) == 'number' then return raised .. '' end
  return 'an error without a text: ' .. type(raised)
end

-- In a coroutine the part has no callers: where scripts may replace their callers' environment (setfenv, up to Redis 6.2
-- and in Valkey 8), that of this script would be replaced for all clients, as the server keeps the compiled script.
local routine = coroutine.create(part)
local ended, value = coroutine.resume(routine, after(given, own), after(ARGV, 5))
local failure
if not ended then
  failure = text_of(value)
elseif coroutine.status(routine) ~= 'dead' then
  failure = 'the script yielded'
else
  failure = failure_in(value, 0)
end
if not failure then return {'ran', value} end
if id then redis.call('pexpire', KEYS[1], 0) end
return {'failed', failure}
