-- ARGV: owner, lease_ms, nonce of this call, newest record version this caller reads,
-- '1' = from now on the text may be ahead of what is stored, the reader and its call
local owner, lease_ms, nonce, version, relaxed = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local reader, call = ARGV[6], ARGV[7]
local stored = redis.call('HMGET', meta, 'status', 'version', 'acquired_by')
if not stored[1] then return {'missing'} end
if tonumber(stored[2]) > tonumber(version) then return {'newer', stored[2]} end
-- The text is read apart: it may be long.
local function taken() return {'ok', field('status'), field('term'), size()} end
if stored[1] == 'finished' or stored[1] == 'aborted' then return taken() end
if overtaken(reader, call) then return {'overtaken'} end
-- Whoever owns it may still have all of it.
local refused = torn()
if refused then return refused end
if stored[3] ~= nonce then
  redis.call('HINCRBY', meta, 'term', 1)
  redis.call('HSET', meta, 'status', 'active', 'owner', owner, 'acquired_by', nonce,
    'lease_ms', lease_ms, 'round', '0', 'round_base', '0')
  if reader ~= '' then note_call(reader, call) end
  if relaxed == '1' then redis.call('HSET', meta, 'relaxed', '1') end
end
hold()
return taken()
