-- ARGV: owner, lease_ms, nonce of this call, newest record version this caller reads
local owner, lease_ms, nonce, version = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local stored = redis.call('HMGET', meta, 'status', 'version', 'acquired_by')
if not stored[1] then return {'missing'} end
if tonumber(stored[2]) > tonumber(version) then return {'newer', stored[2]} end
if stored[1] == 'finished' or stored[1] == 'aborted' then return snapshot() end
if stored[3] ~= nonce then
  redis.call('HINCRBY', meta, 'term', 1)
  redis.call('HSET', meta, 'status', 'active', 'owner', owner, 'acquired_by', nonce,
    'lease_ms', lease_ms, 'round', '0', 'round_base', '0')
end
hold()
return snapshot()
