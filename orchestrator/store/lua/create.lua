-- ARGV: digest, nonce of this call, ttl_ms, then the fields of meta as name, value, ...
local digest, nonce, ttl_ms = ARGV[1], ARGV[2], ARGV[3]
local stored = redis.call('HMGET', meta, 'digest', 'term', 'created_by')
if stored[1] then
  if stored[1] ~= digest then return {'conflict'} end
  return {'ok', stored[3] == nonce and 1 or 0, stored[2]}
end
redis.call('DEL', text, rounds)
redis.call('HSET', meta, 'digest', digest, 'created_by', nonce, 'ttl_ms', ttl_ms,
  'status', 'active', 'term', '1', 'created_ms', integer(now_ms()),
  'committed_len', '0', 'round', '0', 'round_base', '0', unpack(ARGV, 4))
hold()
return {'ok', 1, '1'}
