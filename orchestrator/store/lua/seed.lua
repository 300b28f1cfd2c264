-- Give the store a session as its owner remembers it: after a loss, or to catch up.
-- ARGV: term, owner, digest, round, round_base, packed tokens, '1' = the server has lost writes,
-- then the fields of meta as name, value, ...
local term, owner, digest, packed, lost = ARGV[1], ARGV[2], ARGV[3], ARGV[6], ARGV[7] == '1'
local stored = redis.call('HMGET', meta, 'status', 'term', 'digest', 'owner')
local ours = false

if not stored[1] then
  -- Absence alone says nothing: the session may have been ended and forgotten.
  if not lost then return {'missing'} end
else
  if stored[1] == 'aborted' then return {'aborted'} end
  if tonumber(stored[2]) > tonumber(term) then return {'fenced', stored[2]} end
  if stored[1] == 'finished' then return {'ended'} end
  if stored[3] ~= digest then return {'conflict', 'the session has other content'} end
  ours = tonumber(stored[2]) == tonumber(term)
  if ours and stored[4] ~= owner then return {'fenced', stored[2]} end
  if not ours and not lost then return {'lost', 'term ' .. stored[2]} end
end

if ours and not torn() then
  local kept = redis.call('GET', text) or ''
  if #kept >= #packed then
    if string.sub(kept, 1, #packed) ~= packed then return {'conflict', 'the text departs'} end
    hold()
    return {'ok', #kept / 4}
  end
  if string.sub(packed, 1, #kept) ~= kept then return {'conflict', 'the text departs'} end
elseif not ours then
  redis.call('DEL', meta, text, rounds)
  redis.call('HSET', meta, 'created_ms', integer(now_ms()))
end

redis.call('SET', text, packed)
redis.call('HSET', meta, 'status', 'active', 'term', term, 'digest', digest,
  'committed_len', integer(#packed / 4), 'round', ARGV[4], 'round_base', ARGV[5], unpack(ARGV, 8))
hold()
return {'ok', #packed / 4}
