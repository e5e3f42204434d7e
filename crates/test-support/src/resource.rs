//! A resource that checks fencing tokens. It is in the server of the locks, and knows nothing of them.

use crate::server::Control;

/// It stores the token and its owner with each write, and accepts a larger token, or an equal one from the same owner.
///
/// KEYS: the resource, the list of what it has accepted. ARGV: token, owner. Returns 1 if it accepts the write, 2 if it
/// is the first of a holder.
const WRITE: &str = "\
local function is_larger(a, b) return #a > #b or #a == #b and a > b end
local last, by = unpack(redis.call('hmget', KEYS[1], 'token', 'owner'))
if last and last == ARGV[1] and by == ARGV[2] then return 1 end
if last and not is_larger(ARGV[1], last) then
  redis.call('hincrby', KEYS[1], 'refused', 1)
  return 0
end
redis.call('hset', KEYS[1], 'token', ARGV[1], 'owner', ARGV[2])
redis.call('rpush', KEYS[2], ARGV[1] .. ' ' .. ARGV[2])
return 2";

/// Writes as this holder, whether it still is one or not.
pub fn write(control: &mut Control, [resource, writes]: [&str; 2], token: u64, owner: &str) -> i64 {
    let token = token.to_string();
    control.number(&["EVAL", WRITE, "2", resource, writes, &token, owner])
}

/// The tokens that it has accepted, each with its owner.
pub fn accepted(control: &mut Control, writes: &str) -> Vec<(u64, String)> {
    let writes = control.run(&["LRANGE", writes, "0", "-1"]);
    let words: Vec<&str> = writes.split(' ').collect();
    let pair = |pair: &[&str]| (pair[0].parse().expect("a number"), pair[1].to_owned());
    words.chunks_exact(2).map(pair).collect()
}
