-- Everything the other scripts need from a server, on keys that live for a second.
redis.call('HSET', meta, 'at', integer(now_ms()))
redis.call('APPEND', text, 'x')
redis.call('XADD', rounds, 'MAXLEN', '~', '1', '*', 'x', 'x')
expire(1000)
redis.call('DEL', meta, text, rounds)
return {'ok'}
