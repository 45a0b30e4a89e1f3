-- Remove everything of a thread and leave a tombstone. Argument: its time.

if lacks_index() then
    return {'unknown'}
end
begin()
local generation = redis.call('HGET', THREAD, 'generation')
local ttl = redis.call('HGET', THREAD, 'ttl')
redis.call('DEL', THREAD, ROWS, CHILDREN, WRITES, PLACES, DATA)
redis.call('HSET', THREAD, 'generation', generation, 'deleted_at', take())
redis.call('HINCRBY', THREAD, 'generation', 1)
if ttl then
    redis.call('HSET', THREAD, 'ttl', ttl)
end
return done()
