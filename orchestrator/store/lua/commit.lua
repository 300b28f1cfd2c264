-- ARGV: term, round, base_len, packed tokens, opaque record, most rounds kept, owner, verifier;
-- of the last round also the end, as finish.lua has it: reason ('' = it goes on), matched stop, ttl_ms
local term, round, base = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local packed, record, keep = ARGV[4], ARGV[5], ARGV[6]
local reason, matched, ttl_ms = ARGV[9], ARGV[10], ARGV[11]
local refused = refusal(term, ARGV[7])
if refused then return refused end

local stored = redis.call('HMGET', meta, 'status', 'committed_len', 'round', 'round_base')
local length, last, last_base = tonumber(stored[2]), tonumber(stored[3]), tonumber(stored[4])
local count = #packed / 4

if round <= last then
  -- A replay. What it says must be what is stored, unless that was dropped at an ephemeral end.
  local ended = stored[1] == 'finished'
  local dropped = ended and redis.call('EXISTS', text) == 0
  local fits = base + count <= length and (reason == '' or base + count == length)
  local same = fits and (round < last or base == last_base)
  if same and not dropped and count > 0 then
    same = redis.call('GETRANGE', text, base * 4, (base + count) * 4 - 1) == packed
  end
  if not same then return {'conflict', 'round ' .. round .. ' was committed with other content'} end
  if reason ~= '' then return finish(reason, matched, ttl_ms) or {'ok', base + count} end
  if not ended then hold() end
  return {'ok', base + count}
end

if stored[1] == 'finished' then return {'ended'} end
if base > length then return {'lost', length .. ' tokens'} end
if base < length then return {'conflict', 'base ' .. base .. ' is before the end of the text, ' .. length} end

if count > 0 then redis.call('APPEND', text, packed) end
redis.call('XADD', rounds, 'MAXLEN', '~', keep, '*', 'term', term, 'round', ARGV[2],
  'base_len', ARGV[3], 'tokens', integer(count), 'record', record)
redis.call('HSET', meta, 'committed_len', integer(length + count), 'round', ARGV[2], 'round_base', ARGV[3],
  'verifier', ARGV[8])
if reason ~= '' then finish(reason, matched, ttl_ms) else hold() end
return {'ok', length + count}
