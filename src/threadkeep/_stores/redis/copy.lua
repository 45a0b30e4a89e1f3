-- Put another thread's rows, as DUMP gave them, in the place of this one's. Arguments: which
-- copy this is, the dumps in the order of the keys, '' where there is none, the time, and what
-- of the other's entry is this one's too: its size, and, if it has one ('1'), its state, where an
-- interrupt waits, its ttl, and its labels.

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
