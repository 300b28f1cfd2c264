-- ARGV: term, owner
local refused = refusal(ARGV[1], ARGV[2])
if refused then return refused end
if field('status') ~= 'finished' then let_go('paused', field('ttl_ms')) end
return {'ok'}
