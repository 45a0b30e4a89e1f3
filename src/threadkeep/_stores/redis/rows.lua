-- Expectations of a change and the rows that it puts, after writing.lua. Expectations are checked
-- before anything is written. Arguments: the life and the generation ('' for none), the tips that
-- the thread must name, then the fences.

local function check_thread()
    local life, generation, base = take(), take(), take_tips()
    local found = redis.call('HMGET', THREAD, 'life', 'generation')
    if life ~= '' and life ~= (found[1] or '0') then
        return {'deleted'}
    end
    if (generation ~= '' and generation ~= (found[2] or '0')) or not names(base) then
        return {'stale'}
    end
    return nil
end

-- Arguments: the namespace, the bound after which members count, the batch's own places.
local function check_head()
    local ns, first, own = take(), take(), {}
    for _ = 1, tonumber(take()) do
        own[take()] = true
    end
    local size = 2
    while true do
        local newer = redis.call(
            'ZRANGEBYLEX', ROWS, first, '(' .. ns .. '\1', 'LIMIT', 0, size)
        for _, member in ipairs(newer) do
            local place, at = place_of(member)
            if not own[place] and not has_flag(member, at, NESTED) then
                return {'conflict', place}
            end
        end
        if #newer < size then
            return nil
        end
        first, size = '(' .. newer[#newer], 64
    end
end

-- Arguments: the checkpoint's place, the first seq that counts, the run whose writes do not count.
local function check_writes()
    local place, first, run = take(), take(), take()
    local newer = redis.call(
        'ZRANGEBYLEX', WRITES, '[' .. place .. '\0' .. first, '(' .. place .. '\1')
    for _, member in ipairs(newer) do
        local _, at = place_of(member)
        if string.sub(member, at + 8, at + 15) ~= run then
            return {'conflict', place}
        end
    end
    return nil
end

local function check_rows()
    local checkpoints, writes = tonumber(take()), tonumber(take())
    if redis.call('ZCARD', ROWS) ~= checkpoints or redis.call('ZCARD', WRITES) ~= writes then
        return {'conflict'}
    end
    return nil
end

-- Argument: the revision of the entry, '0' for none.
local function check_entry()
    local found = redis.call('HMGET', THREAD, 'state', 'revision')
    if (found[1] and found[2] or '0') ~= take() then
        return {'conflict'}
    end
    return nil
end

local CHECKS = {
    head = check_head, writes = check_writes, rows = check_rows, entry = check_entry}

local function check_fences()
    for _ = 1, tonumber(take()) do
        local refusal = CHECKS[take()]()
        if refusal then
            return refusal
        end
    end
    return nil
end

-- Rows of a batch, or the rows that replace a thread.

local function put_segment(segment, data)
    redis.call('ZADD', PLACES, 0, segment)
    redis.call('HSET', DATA, string.sub(segment, 1, 16), data)
end

local function drop_checkpoint(place)
    local member = checkpoint_at(place)
    if not member then
        return
    end
    redis.call('ZREM', ROWS, member)
    local _, at = place_of(member)
    local parent = parent_of(member, at)
    if parent then
        local between = string.find(place, '\0', 1, true)
        redis.call('ZREM', CHILDREN, table.concat({
            string.sub(place, 1, between), parent, string.sub(place, between), '\0',
            string.sub(member, at + 8, at + 23)}))
    end
end

local function put_checkpoints()
    for _ = 1, tonumber(take()) do
        local place, member, child = take(), take(), take()
        drop_checkpoint(place)
        redis.call('ZADD', ROWS, 0, member)
        if child ~= '' then
            redis.call('ZADD', CHILDREN, 0, child)
        end
    end
end

local function add_writes()
    for _ = 1, tonumber(take()) do
        local place, rest = take(), take()
        local last = redis.call(
            'ZREVRANGEBYLEX', WRITES, '(' .. place .. '\1', '[' .. place .. '\0',
            'LIMIT', 0, 1)[1]
        local seq = 1
        if last then
            local _, at = place_of(last)
            seq = struct.unpack('>I8', last, at) + 1
        end
        redis.call('ZADD', WRITES, 0, place .. '\0' .. struct.pack('>I8', seq) .. rest)
    end
end
