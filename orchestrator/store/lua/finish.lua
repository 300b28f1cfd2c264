-- ARGV: term, committed_len, reason, matched stop ('' = none), ttl_ms of a finished session,
-- owner
local term, expected, reason, matched, ttl_ms = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]
local refused = refusal(term, ARGV[6])
if refused then return refused end
local length = tonumber(field('committed_len'))
if length < expected then return {'lost', length .. ' tokens'} end
if length > expected then return {'conflict', 'finished at ' .. expected .. ', but the text has ' .. length} end
return finish(reason, matched, ttl_ms) or {'ok'}
