-- ARGV: the fields of meta to tell
if redis.call('EXISTS', meta) == 0 then return {'missing'} end
return torn() or {'ok', fields(ARGV), redis.call('GET', text) or ''}
