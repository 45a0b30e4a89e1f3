-- Remove all rows of a thread and leave a tombstone. Arguments: the new life or '', the expectations
-- (rows.lua), the tombstone's time, the tip, '1' and an entry (writing.lua) or '0', '1' and the rows
-- that replace the thread or '0'.

local life = take()
if life ~= '' and redis.call('HGET', THREAD, 'life') == life then
    -- A retry after a lost answer: later saves are not deleted.
    return done(news(state_now()))
end
local refusal = check_thread() or check_fences()
if refusal then
    return refusal
end
if lacks_index() then
    return {'unknown'}
end
begin()
local before = state_now()
drop_labels()
local kept = redis.call('HMGET', THREAD, 'generation', 'ttl', 'revision', 'life')
redis.call('DEL', THREAD, ROWS, CHILDREN, WRITES, PLACES, DATA)
local at, tip = take(), take()
redis.call('HSET', THREAD, 'generation', kept[1], 'deleted_at', at, 'revision', kept[3] or 0)
redis.call('HINCRBY', THREAD, 'generation', 1)
redis.call('HINCRBY', THREAD, 'revision', 1)
if at ~= '0' then
    redis.call('HSET', THREAD, 'state', 'deleted', 'created_at', at, 'updated_at', at)
end
put_only_tip(tip)
life = life ~= '' and life or kept[4]
if life then
    redis.call('HSET', THREAD, 'life', life)
end
if kept[2] then
    redis.call('HSET', THREAD, 'ttl', kept[2])
end
if take() == '1' then
    put_entry()
end
if take() == '1' then  -- the rows that replace it
    for _ = 1, tonumber(take()) do
        local segment, data = take(), take()
        put_segment(segment, data)
    end
    put_checkpoints()
    add_writes()
    redis.call('HINCRBY', THREAD, 'generation', take())
    put_tip(take())
    tell_registry()
end
return done(news(before))
