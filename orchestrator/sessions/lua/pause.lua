-- ARGV: term
local refused = refusal(ARGV[1])
if refused then return refused end
if field('status') ~= 'finished' then let_go('paused', field('ttl_ms')) end
return {'ok'}
