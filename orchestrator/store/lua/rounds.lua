return {'ok', redis.call('XRANGE', rounds, '-', '+')}
