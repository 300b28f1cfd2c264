-- ARGV: term, committed_len, reason, matched stop ('' = none), ttl_ms of a finished session,
-- owner
local term, expected, reason, matched, ttl_ms = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]
local refused = refusal(term, ARGV[6])
if refused then return refused end
local stored = redis.call('HMGET', meta, 'status', 'committed_len', 'finish_reason')
local length = tonumber(stored[2])
if length < expected then return {'lost', length .. ' tokens'} end
if length > expected then return {'conflict', 'finished at ' .. expected .. ', but the text has ' .. length} end
if stored[1] == 'finished' then
  return stored[3] == reason and {'ok'} or {'conflict', 'already finished with ' .. stored[3]}
end
redis.call('HSET', meta, 'finish_reason', reason, 'matched_stop', matched)
forget_if_ephemeral()
let_go('finished', ttl_ms)
return {'ok'}
