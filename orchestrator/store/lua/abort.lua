-- ARGV: ttl_ms of an ended session. What stays is a tombstone that refuses late writes of any term.
local status = field('status')
if not status then return {'missing'} end
if status == 'finished' or status == 'aborted' then return {'ok', status} end
redis.call('HSET', meta, 'finish_reason', 'abort')
forget_if_ephemeral()
let_go('aborted', ARGV[1])
return {'ok', 'aborted'}
