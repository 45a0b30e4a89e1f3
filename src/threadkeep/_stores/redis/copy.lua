-- Replace this thread's rows by another thread's, as DUMP returned them. Arguments: the mark of
-- this copy, the dumps in the order of the keys ('' for a missing key), the time, the other
-- thread's size, and if it has an entry '1' with its state, its `waits_at`, its ttl and its labels,
-- else '0'.

local copy = take()
local refused = refusal(copy)
if refused then
    return refused
end
local before = found()
restore(2)
finish(copy)
local now = take()
redis.call('HSET', THREAD, 'size', take())
if take() == '1' then
    redis.call('HSET', THREAD, 'state', take(), 'created_at', now, 'updated_at', now)
    set_or_remove('waits_at', take())
    redis.call('HINCRBY', THREAD, 'revision', 1)
    local rest = take()
    if rest ~= '' then
        redis.call('HSETNX', THREAD, 'rest', string.sub(rest, 2))
    end
    for _ = 1, tonumber(take()) do
        local beginning, label = take(), take()
        redis.call('HSETNX', THREAD, 'l:' .. beginning, label)
    end
end
return done(news(before))
