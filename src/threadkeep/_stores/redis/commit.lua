-- Batches of one thread, in order, each all or nothing. A script cannot be undone, so each batch is
-- checked completely before any of it is written. See `scripts.py` for the arguments, `model.Batch`
-- for the rules. The answer has an element for each batch.

local function read_drops()
    local drops, is_dropped = {}, {}
    for _ = 1, tonumber(take()) do
        local segment = take()
        if redis.call('ZSCORE', PLACES, segment) and not is_dropped[segment] then
            drops[#drops + 1], is_dropped[segment] = segment, true
        end
    end
    return drops, is_dropped
end

-- Return 'new', 'known' (the same segment is stored) or 'taken'. Stored segments never overlap, so
-- the search ends at the first segment that ends before this one.
local function standing(segment, data, is_dropped)
    local log, start = string.sub(segment, 1, 8), string.sub(segment, 9, 16)
    local first, size = '(' .. log .. string.sub(segment, 17), 2
    while true do
        local found = redis.call(
            'ZREVRANGEBYLEX', PLACES, first, '[' .. log, 'LIMIT', 0, size)
        for _, other in ipairs(found) do
            if not less(start, string.sub(other, 17)) then
                return 'new'
            end
            if not is_dropped[other] then
                local same = other == segment and data_at(other) == data
                return same and 'known' or 'taken'
            end
        end
        if #found < size then
            return 'new'
        end
        first, size = '(' .. found[#found], 64
    end
end

-- Arguments: '1' if segments of the batch overlap each other, then their places and data
-- alternately.
local function read_segments(is_dropped)
    local clash, segments = take() == '1', {}
    for _ = 1, tonumber(take()) do
        local segment, data = take(), take()
        local found = standing(segment, data, is_dropped)
        clash = clash or found == 'taken'
        if found == 'new' then
            segments[#segments + 1] = {segment, data}
        end
    end
    return segments, clash
end

-- Remove a write by the beginning of its member: place, NUL, seq. Return whether it was there.
local function drop_write(number)
    local found = redis.call('ZRANGEBYLEX', WRITES, '[' .. number, '+', 'LIMIT', 0, 1)[1]
    if found and string.sub(found, 1, #number) == number then
        redis.call('ZREM', WRITES, found)
        return true
    end
end

local function drop_writes()
    for _ = 1, tonumber(take()) do
        drop_write(take())
    end
end

local function replace_writes()
    for _ = 1, tonumber(take()) do
        local number, rest = take(), take()
        if drop_write(number) then
            redis.call('ZADD', WRITES, 0, number .. rest)
        end
    end
end

local function hide_checkpoints()
    for _ = 1, tonumber(take()) do
        local place = take()
        local member = checkpoint_at(place)
        if member then
            local flags = #place + 9  -- their last byte
            local hidden = string.char(bit.bor(string.byte(member, flags), HIDDEN))
            redis.call('ZREM', ROWS, member)
            redis.call('ZADD', ROWS, 0,
                string.sub(member, 1, flags - 1) .. hidden .. string.sub(member, flags + 1))
        end
    end
end

-- Arguments: of each member, the name of its table, and the member itself.
local function drop_unreadable()
    local keys = {checkpoints = ROWS, writes = WRITES, children = CHILDREN, segments = PLACES}
    for _ = 1, tonumber(take()) do
        local table_, member = take(), take()
        if table_ == 'data' then
            redis.call('HDEL', DATA, member)
        else
            redis.call('ZREM', keys[table_], member)
        end
    end
end

local function commit()
    local refusal = check_thread() or check_fences()
    if refusal then
        return refusal
    end
    local drops, is_dropped = read_drops()
    local segments, clash = read_segments(is_dropped)
    if clash then
        return {'taken'}
    end
    if lacks_index() then
        return {'unknown'}
    end

    begin()
    -- Free memory first: a full server lets a script continue that has begun to write.
    for _, segment in ipairs(drops) do
        redis.call('ZREM', PLACES, segment)
        redis.call('HDEL', DATA, string.sub(segment, 1, 16))
    end
    for _, each in ipairs(segments) do
        put_segment(each[1], each[2])
    end
    put_checkpoints()
    add_writes()
    for _ = 1, tonumber(take()) do
        drop_checkpoint(take())
    end
    drop_writes()
    replace_writes()
    hide_checkpoints()
    drop_unreadable()
    redis.call('HINCRBY', THREAD, 'generation', take())
    redis.call('HINCRBY', THREAD, 'revision', take())
    put_tip(take())
    local before = state_now()
    tell_registry()
    return done(news(before))
end

-- Arguments: the number of batches, then for each batch the number of its words, and the words.
local answers = {}
for number = 1, tonumber(take()) do
    local last = tonumber(take()) + cursor
    CREATED, BIRTH, GONE = redis.call('EXISTS', THREAD) == 0, nil, {}
    answers[number] = commit()
    cursor = last  -- (a refused batch has not taken all of its words)
end
return answers
