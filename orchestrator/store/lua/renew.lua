-- ARGV: term, tokens that must be there, owner
local refused = refusal(ARGV[1], ARGV[3])
if refused then return refused end
local stored = redis.call('HMGET', meta, 'status', 'committed_len')
if tonumber(stored[2]) < tonumber(ARGV[2]) then return {'lost', stored[2] .. ' tokens'} end
if stored[1] == 'active' then hold() end
return {'ok'}
