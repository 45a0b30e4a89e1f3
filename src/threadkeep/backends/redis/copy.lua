-- Put another thread's rows, as DUMP gave them, in the place of this one's. Arguments: which
-- copy this is, and the dumps in the order of the keys, '' where there is none.

local copy = take()
if redis.call('EXISTS', ROWS) == 1 then
    -- The answer may have been lost: the same copy again is done already.
    return {redis.call('HGET', THREAD, 'copy') == copy and 'changed' or 'exists'}
end
if lacks_index() then
    return {'unknown'}
end
begin()
redis.call('DEL', ROWS, CHILDREN, WRITES, PLACES, DATA)
for number = 2, 6 do
    local dump = take()
    if dump ~= '' then
        redis.call('RESTORE', KEYS[number], 0, dump)
    end
end
redis.call('HINCRBY', THREAD, 'generation', 1)
redis.call('HSET', THREAD, 'copy', copy)
redis.call('HDEL', THREAD, 'deleted_at')
return done()
