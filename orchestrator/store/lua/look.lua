-- ARGV: the fields of meta to tell, short ones
if redis.call('EXISTS', meta) == 0 then return {'missing'} end
return torn() or {'ok', fields(ARGV), size()}
