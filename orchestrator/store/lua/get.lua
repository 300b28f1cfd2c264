if redis.call('EXISTS', meta) == 0 then return {'missing'} end
return torn() or snapshot()
