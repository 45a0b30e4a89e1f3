-- Create a thread from some rows of another and all of its segments, as DUMP returned them.
-- Arguments: the mark of this fork, checkpoints and their members of the children's set, writes,
-- the dumps of places and data ('' for a missing key), the entry (see writing.lua), its size.

local fork = take()
local refused = refusal(fork)
if refused then
    return refused
end
local before = found()
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
restore(5)
finish(fork)
redis.call('HDEL', THREAD, 'state', 'waits_at')
put_entry()
redis.call('HSET', THREAD, 'size', take())
return done(news(before))
