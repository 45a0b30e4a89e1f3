-- Begin a thread with some rows of another, and all of its segments, as DUMP gave them. Arguments:
-- which fork this is, checkpoints with the members that make them children, writes, the dumps of
-- places and data ('' where there is none), the entry (see registry.lua), its size.

local fork = take()
if redis.call('EXISTS', ROWS) == 1 then
    -- The answer may have been lost: the same fork again is done already.
    return {redis.call('HGET', THREAD, 'copy') == fork and 'again' or 'exists'}
end
if lacks_index() then
    return {'unknown'}
end
begin()
local before = state_now()
redis.call('DEL', ROWS, CHILDREN, WRITES, PLACES, DATA)
for _ = 1, tonumber(take()) do
    redis.call('ZADD', ROWS, 0, take())
    local child = take()
    if child ~= '' then
        redis.call('ZADD', CHILDREN, 0, child)
    end
end
for _ = 1, tonumber(take()) do
    redis.call('ZADD', WRITES, 0, take())
end
for number = 5, 6 do
    local dump = take()
    if dump ~= '' then
        redis.call('RESTORE', KEYS[number], 0, dump)
    end
end
redis.call('HINCRBY', THREAD, 'generation', 1)
redis.call('HSET', THREAD, 'copy', fork)
redis.call('HDEL', THREAD, 'deleted_at')
redis.call('HDEL', THREAD, 'state', 'waits_at')
put_entry()
redis.call('HSET', THREAD, 'size', take())
return done(news(before))
